"""Each family as a plain pytest test: the first anomaly that is not a known failure of the system is red."""

from __future__ import annotations

import hypothesis
import msgspec
import pytest
from hypothesis.stateful import run_state_machine_as_test

from harness.known_failing import KnownFailures, known_failures_for
from harness.worlds.plan import Plan
from harness.worlds.world import Outcome, World, run_plan
from properties.explore import directed_plans
from properties.families import FAMILIES
from properties.machine import bind


@pytest.fixture(scope="session")
def known(request: pytest.FixtureRequest) -> KnownFailures:
    return known_failures_for(request.config.getoption("--system"), request.config.getoption("--known"))


def conclude(plan: Plan, outcome: Outcome, world: World, known: KnownFailures) -> None:
    """Fail with everything a reader needs: rule broken, witness events, and the plan that led there."""
    assert outcome.error is None, f"the harness failed, the system is not to blame: {outcome.error}"
    fresh = [
        anomaly for anomaly in outcome.judgement.anomalies
        if known.match(client=world.client.name, clause=anomaly.clause, anomaly=anomaly.name) is None
    ]
    if fresh:
        indexed = {event.index: event for event in outcome.history}
        lines = [f"{anomaly.clause} {anomaly.name}: {anomaly.message}" for anomaly in fresh]
        for index in fresh[0].witness:
            if index in indexed:
                lines.append(f"  {msgspec.json.encode(indexed[index]).decode()}")
        lines.append(f"plan: {msgspec.json.encode(plan).decode()}")
        pytest.fail("\n".join(lines), pytrace=False)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_directed_plans(family: str, starquake_world: World, known: KnownFailures) -> None:
    plans = directed_plans(family)
    assert plans, f"no directed plan for {family}"
    for _, plan in plans:
        conclude(plan, run_plan(starquake_world, plan), starquake_world, known)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_drawn_plans(family: str, starquake_world: World, known: KnownFailures) -> None:
    machine = bind(
        FAMILIES[family], starquake_world, lambda plan, outcome: conclude(plan, outcome, starquake_world, known)
    )
    run_state_machine_as_test(machine, settings=hypothesis.settings())
