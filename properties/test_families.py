"""Each family as a plain pytest test: the first anomaly that is not a known failure of the system is red."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import msgspec
import pytest
from hypothesis.stateful import run_state_machine_as_test

from harness.fixture_files import known_failing_file
from harness.known_failing import KnownFailure, read
from harness.worlds.plan import Plan
from harness.worlds.world import Outcome, World, run_plan
from properties.explore import directed_plans
from properties.families import FAMILIES
from properties.machine import bind


@pytest.fixture(scope="session")
def known(request: pytest.FixtureRequest) -> list[KnownFailure]:
    chosen = request.config.getoption("--known")
    path = Path(chosen) if chosen else known_failing_file(request.config.getoption("--system"))
    entries = read(path) if path else []
    system, client = request.config.getoption("--system"), request.config.getoption("--client")
    return [entry for entry in entries if entry.covers(system, client, entry.clause)]


def conclude(plan: Plan, outcome: Outcome, known: list[KnownFailure]) -> None:
    """Fail with everything a reader needs: rule broken, witness events, and the plan that led there."""
    assert outcome.error is None, f"the harness failed, the system is not to blame: {outcome.error}"
    fresh = [
        anomaly
        for anomaly in outcome.judgement.anomalies
        if not any(entry.clause in ("*", anomaly.clause) and entry.allows(anomaly.name) for entry in known)
    ]
    if fresh:
        indexed = {event.index: event for event in outcome.history}
        lines = [f"{anomaly.clause} {anomaly.name}: {anomaly.message}" for anomaly in fresh]
        lines += [f"  {msgspec.json.encode(indexed[index]).decode()}" for index in fresh[0].witness if index in indexed]
        lines.append(f"plan: {msgspec.json.encode(plan).decode()}")
        pytest.fail("\n".join(lines), pytrace=False)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_directed_plans(family: str, starquake_world: World, known: list[KnownFailure]) -> None:
    plans = directed_plans(family)
    assert plans, f"no directed plan for {family}"
    for _, plan in plans:
        conclude(plan, run_plan(starquake_world, plan), known)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_drawn_plans(family: str, starquake_world: World, known: list[KnownFailure]) -> None:
    machine = bind(FAMILIES[family], starquake_world, lambda plan, outcome: conclude(plan, outcome, known))
    run_state_machine_as_test(machine, settings=hypothesis.settings())
