"""What a schedule has a broker's admin service do, in both worlds; and the namespaces of the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from harness.clients.reference import ReferenceClient
from harness.history.event import Event
from harness.seeds.plan_check import BadPlan, check_plan
from harness.setup_error import SetupError
from harness.systems.admin import AdminExists, AdminRefused, AdminUnreachable, TopicStats
from harness.systems.machine_admin import MachineAdmin
from harness.systems.reference import ReferenceSystem
from harness.worlds import deduplication, namespaces
from harness.worlds.audit import SUBSCRIPTION
from harness.worlds.broken import WorldBroken
from harness.worlds.deduplication import NotInForce, SwitchedByNamespace
from harness.worlds.plan import Fault, Operation, Plan, ScheduledFault
from harness.worlds.real import RealWorld
from harness.worlds.simulated import SimulatedWorld
from harness.worlds.world import Outcome, World, run_plan
from tests.test_process_faults import BURST, CONSUME, CONSUMER, PRODUCER, clean, faults, op, plan_of, stored


@pytest.fixture(params=["simulated", "sockets"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world: World = SimulatedWorld() if request.param == "simulated" else RealWorld(ReferenceSystem(), ReferenceClient())
    world.start()
    yield world
    world.stop()


def of_kind(outcome: Outcome, kind: str) -> list[Event]:
    return [event for event in outcome.history if event.kind == kind]


@pytest.mark.parametrize("kind", ["unload", "unload_namespace"])
def test_an_unload_under_load_loses_nothing(world: World, kind: Any) -> None:
    first = op("send", "p0", tag="first")
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, first, *BURST, Fault(kind=kind), *BURST, CONSUME))
    clean(outcome)
    assert faults(outcome) == [kind, "healed", "quiescent"]
    assert len({event.payload_digest for event in stored(outcome)}) == 13
    [event] = of_kind(outcome, kind)
    topic = stored(outcome)[0].topic
    assert event.topic == (topic if kind == "unload" else None)


def test_nothing_is_stored_in_a_topic_that_was_terminated(world: World) -> None:
    sent = [op("send", "p0", tag="kept") for _ in range(3)]
    late = op("send", "p0", tag="late")
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, *sent, Fault(kind="terminate"), late, CONSUME))
    assert outcome.error is None
    assert len(stored(outcome)) == 3
    assert [event.phase for event in of_kind(outcome, "send") if event.phase != "invoke"][:3] == ["ok"] * 3
    assert [event.phase for event in of_kind(outcome, "send") if event.phase != "invoke"][3] != "ok"


def test_a_refusal_about_another_topic_takes_no_termination_back(world: World) -> None:
    other = Fault(kind="terminate", attributes={"topic": 5})
    sent = op("send", "p0", tag="m")
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, sent, Fault(kind="terminate"), other, CONSUME, sent))
    assert outcome.judgement.anomalies == []
    [refused] = of_kind(outcome, "not_injected")
    assert refused.topic != stored(outcome)[0].topic
    assert {event.topic for event in outcome.history if event.error == "TopicTerminatedError"} == {
        stored(outcome)[0].topic
    }


def test_a_refusal_is_recorded_with_the_brokers_words_and_the_plan_goes_on(world: World) -> None:
    fault = Fault(kind="delete_subscription", attributes={"subscription": "s"})
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="m"), fault, CONSUME))
    clean(outcome)
    assert faults(outcome) == ["delete_subscription", "not_injected", "healed", "quiescent"]
    [asked] = of_kind(outcome, "delete_subscription")
    assert (asked.topic, asked.subscription) == (stored(outcome)[0].topic, "s")
    [refused] = of_kind(outcome, "not_injected")
    assert refused.extra["fault"] == "delete_subscription"
    assert (refused.topic, refused.subscription) == (asked.topic, asked.subscription)
    assert "connected consumers" in refused.extra["why"]


def test_a_subscription_deleted_by_force_begins_anew(world: World) -> None:
    fault = Fault(kind="delete_subscription", attributes={"subscription": "s", "force": True})
    steps = (CONSUMER, PRODUCER, op("send", "p0", tag="m"), CONSUME, op("settle", ms=300), fault, CONSUME)
    outcome = run_plan(world, plan_of(*steps))
    clean(outcome)
    received = [event for event in of_kind(outcome, "receive") if event.payload_digest]
    assert len(received) == 2


def test_what_is_asked_of_a_broker_that_is_down_is_not_injected(world: World) -> None:
    kill, start = Fault(kind="broker_kill"), Fault(kind="broker_start")
    dedup = Fault(kind="dedup", attributes={"enabled": True})
    send = op("send", "p0", tag="m")
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, send, kill, Fault(kind="unload"), dedup, start, CONSUME))
    clean(outcome)
    refused = of_kind(outcome, "not_injected")
    assert [event.extra["fault"] for event in refused] == ["unload", "dedup"]
    assert {event.extra["why"] for event in refused} == {"the broker is down or paused"}


def test_deduplication_is_on_for_this_sessions_topics_once_it_is_recorded(world: World) -> None:
    again = op("send", "p0", tag="again", sequence_id=1)
    switch = Fault(kind="dedup", attributes={"enabled": True})
    steps = (CONSUMER, PRODUCER, switch, op("send", "p0", tag="new", sequence_id=1), again, CONSUME)
    outcome = run_plan(world, plan_of(*steps))
    clean(outcome)
    assert [event.extra["enabled"] for event in of_kind(outcome, "dedup")] == [False, True]
    assert len(stored(outcome)) == 1


def test_observations_are_taken_on_demand_and_at_the_end(world: World) -> None:
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="m"), op("observe"), CONSUME))
    clean(outcome)
    sent = max(event.index for event in of_kind(outcome, "send"))
    received = min(event.index for event in of_kind(outcome, "receive"))
    asked = [event for event in of_kind(outcome, "LEDGERS") if sent < event.index < received]
    assert asked
    assert asked[0].extra["entries"] == 1
    quiet = next(event.index for event in outcome.history if event.kind == "quiescent")
    assert any(event.index > quiet for event in of_kind(outcome, "TOPIC_STATS"))
    assert {event.subscription for event in of_kind(outcome, "CURSOR")} == {"s"}


# --- the real world only ------------------------------------------------------------------------------------------


class Remembering(MachineAdmin):
    made: list[str]
    removed: list[str]

    async def create_namespace(self, namespace: str) -> None:
        self.made.append(namespace)

    async def remove_namespace(self, namespace: str) -> None:
        self.removed.append(namespace)
        await super().remove_namespace(namespace)


class Watched(ReferenceSystem):
    """A system that somebody else runs: what we leave there stays."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []
        self.removed: list[str] = []

    @property
    def process(self) -> None:
        return None

    @property
    def admin(self) -> Remembering:
        server = self._running()
        admin = Remembering(server.machine, server.now, server.perform)
        admin.made, admin.removed = self.made, self.removed
        return admin


def test_every_session_has_a_namespace_that_is_gone_when_the_world_is() -> None:
    system = Watched()
    world = RealWorld(system, ReferenceClient())
    world.start()
    try:
        outcomes = [run_plan(world, plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="m"))) for _ in range(2)]
        left_open = world.open(plan_of(CONSUMER))
        left_open.perform(CONSUMER)
    finally:
        world.stop()
    topics = {stored(outcome)[0].topic for outcome in outcomes}
    assert len(system.made) == 3
    assert {topic.rpartition("/")[0] for topic in topics if topic} == {f"persistent://{n}" for n in system.made[:2]}
    assert sorted(set(system.removed)) == sorted(system.made)


class Forbidding(Watched):
    @property
    def admin(self) -> Any:
        class Refuses(Remembering):
            async def create_namespace(self, namespace: str) -> None:
                raise AdminRefused("HTTP 403: no permission on tenant public")

        server = self._running()
        return Refuses(server.machine, server.now, server.perform)


def test_no_namespace_is_no_session_and_says_why() -> None:
    world = RealWorld(Forbidding(), ReferenceClient())
    world.start()
    try:
        for _ in range(2):
            with pytest.raises(SetupError, match="no permission on tenant public"):
                world.open(Plan())
    finally:
        world.stop()


class Busy(Watched):
    """Its admin service leaves the next ``unanswered`` requests for a namespace without an answer, and then says of
    the next ``taken`` names that they are.
    """

    unanswered = taken = 0
    removes = True

    @property
    def admin(self) -> Any:
        system = self

        class Silent(Remembering):
            async def create_namespace(self, namespace: str) -> None:
                if system.unanswered:
                    system.unanswered -= 1
                    raise AdminUnreachable("PUT namespaces: no answer within 5 s")
                if system.taken:
                    system.taken -= 1
                    raise AdminExists("Namespace already exists")
                await super().create_namespace(namespace)

            async def remove_namespace(self, namespace: str) -> None:
                if not system.removes:
                    raise AdminUnreachable("DELETE namespaces: no answer within 5 s")
                await super().remove_namespace(namespace)

        server = self._running()
        admin = Silent(server.machine, server.now, server.perform)
        admin.made, admin.removed = self.made, self.removed
        return admin


SENDS = plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="m"))


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Busy, RealWorld]]:
    monkeypatch.setattr(namespaces, "BUSY_S", 0.3)
    monkeypatch.setattr(namespaces, "BUSY_PAUSE_S", 0.05)
    system = Busy()
    world = RealWorld(system, ReferenceClient())
    world.start()
    yield system, world
    world.stop()


def test_a_busy_admin_service_is_asked_again(busy: tuple[Busy, RealWorld]) -> None:
    system, world = busy
    system.unanswered = 2
    clean(run_plan(world, SENDS))


def test_a_namespace_of_somebody_else_is_neither_used_nor_removed(busy: tuple[Busy, RealWorld]) -> None:
    system, world = busy
    system.taken = 2
    outcome = run_plan(world, SENDS)
    clean(outcome)
    world.stop()
    [made] = system.made
    assert (stored(outcome)[0].topic or "").startswith(f"persistent://{made}/")
    assert set(system.removed) == {made}


def test_a_namespace_whose_making_was_not_answered_in_time_is_ours(busy: tuple[Busy, RealWorld]) -> None:
    system, world = busy
    system.unanswered = system.taken = 1
    outcome = run_plan(world, SENDS)
    clean(outcome)
    world.stop()
    assert system.made == []
    assert {f"persistent://{name}" for name in system.removed} == {(stored(outcome)[0].topic or "").rpartition("/")[0]}


def test_a_service_that_says_of_each_name_that_it_is_taken_is_a_setup_error(busy: tuple[Busy, RealWorld]) -> None:
    system, world = busy
    system.taken = 10**9
    with pytest.raises(SetupError, match="said to exist already"):
        world.open(SENDS)


def test_without_an_answer_one_session_is_an_error_and_the_next_goes_on(busy: tuple[Busy, RealWorld]) -> None:
    system, world = busy
    system.unanswered = 10**9
    outcome = run_plan(world, SENDS)
    assert "could not be created: PUT namespaces: no answer" in (outcome.error or "")
    assert system.made == []
    system.unanswered = 0
    clean(run_plan(world, SENDS))
    world.stop()
    assert sorted(set(system.removed)) == system.made


def test_without_an_answer_of_a_system_that_is_gone_the_world_is_broken(
    busy: tuple[Busy, RealWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    system, world = busy
    system.unanswered = 10**9
    gone = iter(["", "", *["the system ended"] * 99])
    monkeypatch.setattr(world, "_over", lambda: next(gone))
    with pytest.raises(WorldBroken, match="the system ended"):
        world.open(SENDS)


@pytest.mark.parametrize("answers", [True, False])
def test_a_world_that_broke_leaves_no_namespace_behind_in_silence(busy: tuple[Busy, RealWorld], answers: bool) -> None:
    system, world = busy
    world.open(SENDS)
    world.lost("the client's process ended 3 times")
    system.removes = answers
    if answers:
        world.stop()
        assert sorted(set(system.removed)) == system.made
    else:
        with pytest.raises(RuntimeError, match=f"still has the namespaces {system.made[0]}.* by hand"):
            world.stop()


class SaysOff:
    """An admin service that accepts the switch; its topics do not follow."""

    async def set_deduplication(self, namespace: str, enabled: bool) -> None:
        return

    async def topic_stats(self, topic: str) -> TopicStats:
        return TopicStats(subscriptions={}, deduplication=False)


def test_a_switch_that_is_not_done_is_our_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "IN_FORCE_S", 0.2)
    switch = SwitchedByNamespace(SaysOff(), "public/x")  # type: ignore[arg-type]  # all of Admin that is asked
    with pytest.raises(NotInForce, match="switched on"):
        asyncio.run(switch.switch(True, ["persistent://public/x/t"]))
    asyncio.run(switch.switch(False, ["persistent://public/x/t"]))


# --- plans from files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "attributes", "complaint"),
    [
        ("broker_kill", {"ms": 1}, "unknown field `ms`"),
        ("broker_pause", {}, "missing required field `ms`"),
        ("broker_pause", {"ms": 0}, ">= 1"),
        ("broker_pause", {"ms": 10**9}, "<= 120000"),
        ("ledger_rollover", {}, "exactly one of the attributes entries, megabytes, minutes"),
        ("ledger_rollover", {"entries": 1, "minutes": 1}, "exactly one of the attributes"),
        ("max_message_size", {"bytes": 10}, ">= 1024"),
        ("dedup", {"enabled": 1}, "Expected `bool`"),
        ("unload", {"topic": -1}, ">= 0"),
        ("unload_namespace", {"topic": 0}, "unknown field `topic`"),
        ("terminate", {"topic": "x"}, "Expected `int`"),
        ("delete_subscription", {}, "missing required field `subscription`"),
        ("delete_subscription", {"subscription": SUBSCRIPTION}, "is the auditor's"),
        ("grow_partitions", {}, "missing required field `partitions`"),
        ("backlog_quota", {"policy": "none", "bytes": 1}, "Invalid enum value"),
        ("backlog_quota", {"policy": "producer_exception"}, "exactly one of the attributes bytes, seconds"),
    ],
)
def test_wrong_attributes_are_told_with_the_place(kind: Any, attributes: dict[str, Any], complaint: str) -> None:
    fault = Fault(kind=kind, attributes=attributes)
    plan = Plan(operations=[CONSUMER], schedule=[ScheduledFault(before=1, fault=fault)])
    with pytest.raises(BadPlan) as told:
        check_plan(plan)
    assert f"fault 1 ({kind})" in str(told.value)
    assert complaint in str(told.value)


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_no_consumer_may_take_the_auditors_subscription(kind: str) -> None:
    with pytest.raises(BadPlan, match=r"operation 1 \(consumer c0\): starquake-audit is the auditor's"):
        check_plan(plan_of(op("consumer", "c0", subscription=SUBSCRIPTION, type=kind)))
    check_plan(plan_of(op("consumer", "c0", subscription=f"{SUBSCRIPTION}s", type=kind)))


@pytest.mark.parametrize("kind", ["broker_kill", "unload", "dedup"])
def test_a_toxic_belongs_to_no_fault_of_the_broker(kind: Any) -> None:
    attributes = {"enabled": True} if kind == "dedup" else {}
    fault = Fault(kind=kind, toxic="latency", attributes=attributes)
    with pytest.raises(BadPlan, match="belong to the kinds toxic and untoxic only"):
        check_plan(Plan(operations=[CONSUMER], schedule=[ScheduledFault(before=1, fault=fault)]))


def test_a_plan_with_observations_partitions_and_faults_of_the_broker_is_taken() -> None:
    plan = plan_of(
        CONSUMER,
        Operation(verb="observe"),
        Fault(kind="broker_pause", attributes={"ms": 5}),
        Fault(kind="backlog_quota", attributes={"policy": "producer_exception", "seconds": 5}),
        partitions=3,
    )
    check_plan(plan)
    assert plan.needs_alone
    assert not plan_of(CONSUMER, Fault(kind="unload")).needs_alone
    with pytest.raises(BadPlan, match="partitions"):
        check_plan(plan_of(CONSUMER, partitions=0))
    with pytest.raises(BadPlan, match="unknown field"):
        check_plan(plan_of(op("observe", ms=1)))
