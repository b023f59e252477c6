"""Each family as plain pytest tests: an anomaly that is not a known failure of the system is red."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis.stateful import run_state_machine_as_test

from harness import __version__
from harness.clauses.catalogue import load
from harness.clauses.requirements import exempted
from harness.clients.resolve import ADAPTERS
from harness.fixture_files import known_failing_files
from harness.gate.lanes import together
from harness.invariants.core import Anomaly
from harness.known_failing import KnownFailure, check_names, listed_for, read
from harness.seeds.rate import Rate
from harness.seeds.seed import Expectation, make_seed, write
from harness.verdict import missing_capabilities
from harness.worlds.plan import Plan
from harness.worlds.world import Outcome, World, run_plan
from properties.explore import directed_plans
from properties.families import FAMILIES
from properties.machine import bind
from properties.plugin import KNOWN_SEEN, family_profile, family_settings, only_the_message

SEEDS = Path("reports/seeds")
"""Where new failures are stored, below the directory that pytest was started in."""


@dataclass(frozen=True)
class Policy:
    """What of a judgement is a failure: neither what does not bind this pair, nor what is known.

    ``unbound``: clauses this version never promised, or that need what system or client lacks. ``seen`` collects the
    known failures that came up.
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


@dataclass
class Keeper:
    """Stores the reproduction of a failure. ``last`` is the plan that failed last, which is Hypothesis's shortest."""

    world: World
    system: str
    client: str
    last: tuple[Plan, Anomaly] | None = None

    def kept(self, plan: Plan, anomaly: Anomaly) -> str:
        """The command that repeats the failure, or why there is none."""
        seed = make_seed(
            Expectation(anomaly.clause, anomaly.name),
            plan,
            protocol="pulsar",
            system=self.system,
            client=self.client,
            versions={
                "starquake": __version__,
                f"system {self.system}": self.world.system.version,
                f"client {self.client}": self.world.client.version,
            },
            # It was seen, but how often it shows nobody has measured.
            rate=Rate(0, 0),
            note=anomaly.message,
        )
        try:
            return f"run it again: starquake replay {write(seed, SEEDS)}"
        except OSError as error:
            return f"no seed, {error.filename or SEEDS} cannot be written: {error.strerror or error}"


@pytest.fixture
def keeper(request: pytest.FixtureRequest, starquake_world: World) -> Keeper:
    return Keeper(starquake_world, request.config.getoption("--system"), request.config.getoption("--client"))


@pytest.fixture(scope="session")
def policy(request: pytest.FixtureRequest, starquake_world: World) -> Policy:
    option = request.config.getoption
    of = starquake_world.system
    given = option("--known")
    with only_the_message():
        files = {of.product: Path(given)} if given else known_failing_files()
        listed = {name: read(path) for name, path in files.items()}
        if given:
            check_names(listed[of.product], [clause.id for clause in load()], list(ADAPTERS))
    entries = listed_for(option("--system"), of.product, option("--client"), listed)
    system, client = starquake_world.system.capabilities, starquake_world.client.capabilities
    return Policy(
        unbound=frozenset(
            clause.id
            for clause in load()
            if exempted(clause.id, of.product, of.version, of.configuration)
            or missing_capabilities(clause, system, client)
        ),
        known=[entry for entry in entries if entry.covers(option("--system"), option("--client"), entry.clause)],
        seen=request.config.stash.setdefault(KNOWN_SEEN, set()),
    )


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_directed_plans(
    family: str, starquake_world: World, policy: Policy, keeper: Keeper, pytestconfig: pytest.Config
) -> None:
    plans = directed_plans(family, family_profile(pytestconfig))
    assert plans, f"no directed plan for {family}"
    outcomes: dict[str, Outcome] = {}

    def carry_out(name: str, plan: Plan) -> None:
        outcomes[name] = run_plan(starquake_world, plan)

    together(starquake_world.lanes, [partial(carry_out, *named) for named in plans], starquake_world.stop)
    broken = [
        f"{name}: {_told(plan, outcomes[name], fresh)}\n{keeper.kept(plan, fresh[0])}"
        for name, plan in plans
        if (fresh := policy.failures(outcomes[name]))
    ]
    if broken:
        pytest.fail("\n\n".join(broken), pytrace=False)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_drawn_plans(
    family: str, starquake_world: World, policy: Policy, keeper: Keeper, pytestconfig: pytest.Config
) -> None:
    def conclude(plan: Plan, outcome: Outcome) -> None:
        if fresh := policy.failures(outcome):
            keeper.last = (plan, fresh[0])
            # No pytest.fail: Hypothesis takes what is no Exception for an interruption of its own.
            raise AssertionError(_told(plan, outcome, fresh))

    try:
        run_state_machine_as_test(
            bind(FAMILIES[family], starquake_world, conclude), settings=family_settings(pytestconfig)
        )
    except Exception as error:
        if keeper.last is not None:
            error.add_note(keeper.kept(*keeper.last))
        raise
