"""Runs one plan again and again and counts how often it shows the expected anomaly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.history.event import Event
from harness.invariants.core import Anomaly
from harness.seeds.rate import Rate
from harness.seeds.seed import Expectation
from harness.worlds.plan import Plan
from harness.worlds.world import Outcome, World, run_plan


@dataclass(frozen=True, slots=True)
class Sighting:
    """One run that showed the anomaly: the anomaly with the fewest witness events, and the run's events."""

    anomaly: Anomaly
    outcome: Outcome

    @property
    def witness(self) -> list[Event]:
        """The witness events, in order."""
        return witness_events(self.outcome.history, self.anomaly)


@dataclass(slots=True)
class Reproduction:
    """Several runs of one plan. Runs in which the harness itself failed are in ``errors`` and count for nothing."""

    failed: int = 0
    tries: int = 0
    sighting: Sighting | None = None
    errors: list[str] = field(default_factory=list)

    @property
    def rate(self) -> Rate:
        """Failures over the runs that could be judged."""
        return Rate(self.failed, self.tries)


def sighting(outcome: Outcome, expect: Expectation) -> Sighting | None:
    """The expected anomaly in an outcome, or None. An outcome with a harness error proves nothing."""
    result = outcome.judgement.results.get(expect.clause)
    if outcome.error is not None or result is None:
        return None
    matching = [anomaly for anomaly in result.anomalies if anomaly.name == expect.anomaly]
    if not matching:
        return None
    return Sighting(min(matching, key=lambda anomaly: len(anomaly.witness)), outcome)


def witness_events(history: list[Event], anomaly: Anomaly) -> list[Event]:
    """The events an anomaly names, in order of index."""
    wanted = set(anomaly.witness)
    return [event for event in history if event.index in wanted]


def attempt(
    world: World,
    plan: Plan,
    expect: Expectation,
    times: int,
    enough: Callable[[Reproduction], bool] = lambda _: False,
    each: Callable[[Reproduction], None] = lambda _: None,
) -> Reproduction:
    """Run ``plan`` up to ``times`` times, stopping early once ``enough``; ``each`` is told after every run."""
    reproduction = Reproduction()
    for _ in range(times):
        outcome = run_plan(world, plan)
        if outcome.error is not None:
            reproduction.errors.append(outcome.error)
        else:
            reproduction.tries += 1
            seen = sighting(outcome, expect)
            if seen is not None:
                reproduction.failed += 1
                reproduction.sighting = seen
        each(reproduction)
        if enough(reproduction):
            break
    return reproduction
