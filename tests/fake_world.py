"""A world without a broker, for tests of what users see: it loses a send that follows a cut, and says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from harness.clauses.catalogue import Catalogue, Clause
from harness.history.event import Event
from harness.invariants.core import Anomaly, Undecided
from harness.invariants.engine import ClauseResult, Judgement
from harness.worlds.plan import Fault, Operation, Plan, ScheduledFault
from harness.worlds.world import Described, DescribedSystem, Outcome, World

TOPIC = "persistent://public/default/t"


class Party(msgspec.Struct):
    name: str
    version: str
    capabilities: frozenset[str]
    product: str = "lite"
    configuration: dict[str, str] = {}


CATALOGUE = Catalogue(
    {
        clause.id: clause
        for clause in (
            Clause(
                id="KEPT-01",
                family="dedup",
                title="A send is not lost",
                rule="A send after a cut must be stored.",
                binds="broker",
                source="CommandSend",
                decided_by=("kept",),
            ),
            Clause(
                id="KEPT-02",
                family="dedup",
                title="Sends keep their order",
                rule="Sends are stored in order.",
                binds="broker",
                source="CommandSend.sequence_id",
                decided_by=("kept",),
            ),
            Clause(
                id="ASK-01",
                family="receipts",
                title="Never asked",
                rule="Nobody asks this.",
                binds="client",
                source="PIP-0",
                decided_by=("kept",),
            ),
            Clause(
                id="GATED-01",
                family="receipts",
                title="Needs what nobody has",
                rule="Needs more.",
                binds="both",
                source="PIP-0",
                needs_system=("cursor_view",),
                decided_by=("kept",),
            ),
        )
    }
)


class FakeSession:
    def __init__(self, world: FakeWorld) -> None:
        self.world = world
        self.steps: list[Operation | Fault] = []

    def perform(self, step: Operation | Fault) -> None:
        self.steps.append(step)

    def finish(self) -> Outcome:
        self.world.runs += 1
        if self.world.interrupt_after is not None and self.world.runs > self.world.interrupt_after:
            raise KeyboardInterrupt
        history: list[Event] = []

        def record(**columns: object) -> int:
            event = msgspec.convert({"index": len(history), "time_ns": len(history) * 1_300_000, **columns}, Event)
            history.append(event)
            return event.index

        anomalies: list[Anomaly] = []
        sends, cut_at = 0, None
        for step in self.steps:
            if isinstance(step, Fault):
                cut_at = record(layer="fault", kind=step.kind, topic=None)
            elif step.verb == "send":
                sends += 1
                invoked = record(layer="api", kind="send", phase="invoke", topic=TOPIC, actor=step.handle)
                sent = record(
                    layer="tap.client",
                    kind="SEND",
                    topic=TOPIC,
                    sequence_id=sends,
                    connection="client-1",
                    extra={"direction": "to_broker"},
                )
                if cut_at is not None and self.world.loses(self.world.runs):
                    anomalies.append(
                        Anomaly(
                            name="lost-send",
                            clause="KEPT-01",
                            key=(TOPIC,),
                            message="the send left & was <never> stored",
                            witness=(cut_at, invoked, sent),
                        )
                    )
                    continue
                record(
                    layer="tap.broker",
                    kind="SEND_RECEIPT",
                    topic=TOPIC,
                    sequence_id=sends,
                    ledger_id=3,
                    entry_id=sends,
                    connection="broker-1",
                    extra={"direction": "to_client"},
                )
                record(layer="api", kind="send", phase="ok", topic=TOPIC, actor=step.handle)
        kept = ClauseResult(judged=sends, anomalies=anomalies, anomalies_total=len(anomalies))
        unsure = ClauseResult(
            undecided=[Undecided(clause="ASK-01", key=(), reason="no answer was seen")], undecided_total=1
        )
        judgement = Judgement(results={"KEPT-01": kept, "KEPT-02": ClauseResult(judged=sends), "ASK-01": unsure})
        return Outcome(judgement=judgement, events=len(history), history=history, error=self.world.error)


class FakeWorld:
    """``loses(run)``: whether that run loses its sends after a cut. ``error``: the harness fails in every run."""

    lanes = 1

    def __init__(
        self,
        loses: Callable[[int], bool] = lambda _: True,
        error: str | None = None,
        fails_to_start: Exception | None = None,
        interrupt_after: int | None = None,
    ) -> None:
        self.loses = loses
        self.error = error
        self.fails_to_start = fails_to_start
        self.interrupt_after = interrupt_after
        self.runs = 0
        self.running = False
        self.system: DescribedSystem = Party("fake", "1.2", frozenset())
        self.client: Described = Party("reference", "0.1", frozenset())

    def start(self) -> None:
        if self.fails_to_start is not None:
            raise self.fails_to_start
        self.running = True

    def stop(self) -> None:
        self.running = False

    def open(self, plan: Plan | None = None, *, alone: bool = False) -> FakeSession:
        return FakeSession(self)


def failing_plan() -> Plan:
    """Ten steps of which three matter: a producer, a cut, a send."""
    sends = [
        Operation(verb="send", handle="p0", params={"tag": f"m{n}", "size": 64}, wait=n % 2 == 0) for n in range(6)
    ]
    return Plan(
        operations=[
            Operation(verb="producer", handle="p0", params={"topic": 0, "batching": {"max_messages": 10}}),
            Operation(verb="consumer", handle="c0", params={"subscription": "s"}),
            *sends,
            Operation(verb="consume", handle="c0", params={"count": 6}),
        ],
        schedule=[ScheduledFault(before=4, fault=Fault(kind="cut"))],
        topic_options={"dedup": True},
    )


def passing_plan() -> Plan:
    """Nothing is cut, nothing is lost."""
    return Plan(
        operations=[Operation(verb="producer", handle="p0"), Operation(verb="send", handle="p0", params={"tag": "m"})]
    )


class FakeExploration:
    """Offers given directed plans, and random 'examples' that all are the passing plan."""

    def __init__(self, plans: Sequence[tuple[str, Plan]], explore_error: Exception | None = None) -> None:
        self.plans = list(plans)
        self.explore_error = explore_error
        self.seeds: list[int] = []

    @property
    def families(self) -> Sequence[str]:
        return ["dedup", "receipts"]

    def directed(self, family: str, profile: str) -> list[tuple[str, Plan]]:
        return self.plans if family == "dedup" else []

    def explore(
        self,
        family: str,
        world: World,
        examples: int,
        steps: int,
        seed: int,
        on_outcome: Callable[[Plan, Outcome], None],
    ) -> None:
        from harness.worlds.world import run_plan

        self.seeds.append(seed)
        if self.explore_error is not None:
            raise self.explore_error
        for _ in range(examples):
            on_outcome(passing_plan(), run_plan(world, passing_plan()))


class Silent:
    """A watcher that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pair(self, system: str, client: str) -> None:
        self.told.append(f"{system} x {client}")

    def activity(self, text: str) -> None:
        self.told.append(text)

    def progress(self, family: str, runs: int, tally: object) -> None:
        self.told.append(family)

    def finding(self, finding: object, accepted: str) -> None:
        self.told.append(accepted or "new")


def make_fake(world: FakeWorld) -> Callable[..., FakeWorld]:
    """A stand-in for ``world_for``."""

    def make(
        system: str, client: str, history: Path | None, progress: Callable[[str], None], access: object = None
    ) -> FakeWorld:
        return world

    return make
