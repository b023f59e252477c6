"""Each family as plain pytest tests: an anomaly that is not a known failure of the system is red."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import hypothesis
import msgspec
import pytest
from hypothesis.stateful import run_state_machine_as_test

from harness.clauses.catalogue import load
from harness.fixture_files import known_failing_files
from harness.gate.lanes import together
from harness.invariants.core import Anomaly
from harness.known_failing import KnownFailure, listed_for, read
from harness.verdict import missing_capabilities
from harness.worlds.plan import Plan
from harness.worlds.world import Outcome, World, run_plan
from properties.explore import directed_plans
from properties.families import FAMILIES
from properties.machine import bind
from properties.plugin import KNOWN_SEEN


@dataclass(frozen=True)
class Policy:
    """What of a judgement is a failure: neither what does not bind this pair, nor what is known.

    ``unbound``: clauses that need what this system or client lacks. ``seen`` collects the known failures that came up.
    """

    unbound: frozenset[str]
    known: list[KnownFailure]
    seen: set[str]

    def failures(self, outcome: Outcome) -> list[Anomaly]:
        assert outcome.error is None, f"the harness failed, the system is not to blame: {outcome.error}"
        return [
            anomaly
            for anomaly in outcome.judgement.anomalies
            if anomaly.clause not in self.unbound and not self._known(anomaly)
        ]

    def conclude(self, plan: Plan, outcome: Outcome) -> None:
        """Fail with everything a reader needs: rule broken, witness events, and the plan that led there."""
        if fresh := self.failures(outcome):
            # No pytest.fail: Hypothesis takes what is no Exception for an interruption of its own.
            raise AssertionError(_told(plan, outcome, fresh))

    def _known(self, anomaly: Anomaly) -> bool:
        for entry in self.known:
            if entry.clause in ("*", anomaly.clause) and entry.allows(anomaly.name):
                self.seen.add(f"{anomaly.clause} {anomaly.name}: {entry.reason} ({entry.place})")
                return True
        return False


def _told(plan: Plan, outcome: Outcome, anomalies: list[Anomaly]) -> str:
    indexed = {event.index: event for event in outcome.history}
    lines = [f"{anomaly.clause} {anomaly.name}: {anomaly.message}" for anomaly in anomalies]
    lines += [f"  {msgspec.json.encode(indexed[index]).decode()}" for index in anomalies[0].witness if index in indexed]
    lines.append(f"plan: {msgspec.json.encode(plan).decode()}")
    return "\n".join(lines)


@pytest.fixture(scope="session")
def policy(request: pytest.FixtureRequest, starquake_world: World) -> Policy:
    option = request.config.getoption
    of = starquake_world.system
    files = {of.product: Path(option("--known"))} if option("--known") else known_failing_files()
    listed = {name: read(path) for name, path in files.items()}
    entries = listed_for(option("--system"), of.product, option("--client"), listed)
    system, client = starquake_world.system.capabilities, starquake_world.client.capabilities
    return Policy(
        unbound=frozenset(clause.id for clause in load() if missing_capabilities(clause, system, client)),
        known=[entry for entry in entries if entry.covers(option("--system"), option("--client"), entry.clause)],
        seen=request.config.stash.setdefault(KNOWN_SEEN, set()),
    )


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_directed_plans(family: str, starquake_world: World, policy: Policy) -> None:
    plans = directed_plans(family, hypothesis.settings.get_current_profile_name())
    assert plans, f"no directed plan for {family}"
    outcomes: dict[str, Outcome] = {}

    def carry_out(name: str, plan: Plan) -> None:
        outcomes[name] = run_plan(starquake_world, plan)

    together(starquake_world.lanes, [partial(carry_out, *named) for named in plans], starquake_world.stop)
    broken = [
        f"{name}: {_told(plan, outcomes[name], fresh)}"
        for name, plan in plans
        if (fresh := policy.failures(outcomes[name]))
    ]
    if broken:
        pytest.fail("\n\n".join(broken), pytrace=False)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_drawn_plans(family: str, starquake_world: World, policy: Policy) -> None:
    run_state_machine_as_test(bind(FAMILIES[family], starquake_world, policy.conclude), settings=hypothesis.settings())
