"""Brokers that are killed, stopped, paused and started again while a plan goes on, in both worlds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from harness.clients.reference import ReferenceClient
from harness.history.event import Event
from harness.setup_error import SetupError
from harness.systems.broker_process import Settings
from harness.systems.reference import ReferenceSystem
from harness.systems.reference_process import ReferenceProcess
from harness.worlds.alone import AloneGate
from harness.worlds.broken import WorldBroken, WorldStopped
from harness.worlds.plan import Fault, Operation, Plan, ScheduledFault
from harness.worlds.process_faults import base_settings
from harness.worlds.real import RealWorld
from harness.worlds.simulated import SimulatedWorld
from harness.worlds.world import Outcome, World, run_plan


def plan_of(*steps: Operation | Fault, **options: Any) -> Plan:
    plan = Plan(topic_options=options)
    for step in steps:
        if isinstance(step, Fault):
            plan.schedule.append(ScheduledFault(before=len(plan.operations), fault=step))
        else:
            plan.operations.append(step)
    return plan


def op(verb: Any, handle: str = "", *, wait: bool = True, **params: Any) -> Operation:
    return Operation(verb=verb, handle=handle, params=params, wait=wait)


CONSUMER = op("consumer", "c0", topic=0, subscription="s", type="exclusive")
PRODUCER = op("producer", "p0", topic=0, send_timeout_ms=20_000)
KILL, STOP, START = Fault(kind="broker_kill"), Fault(kind="broker_stop"), Fault(kind="broker_start")
BURST = [op("send", "p0", wait=False, tag="burst", size=50) for _ in range(6)]
CONSUME = op("consume", "c0", count=13, then="ack", timeout_ms=600)


def faults(outcome: Outcome) -> list[str]:
    return [event.kind for event in outcome.history if event.layer == "fault" and event.kind != "dedup"]


def stored(outcome: Outcome) -> list[Event]:
    return [event for event in outcome.history if event.kind == "ENTRY"]


def clean(outcome: Outcome) -> None:
    assert outcome.error is None
    assert outcome.judgement.anomalies == []
    assert [event.extra["complete"] for event in outcome.history if event.kind == "LOG_END"] == [True]


@pytest.fixture(params=["simulated", "sockets"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world: World = SimulatedWorld() if request.param == "simulated" else RealWorld(ReferenceSystem(), ReferenceClient())
    world.start()
    yield world
    world.stop()


@pytest.mark.parametrize("down", [KILL, STOP])
def test_what_was_under_way_is_sent_again_once_the_broker_is_back(world: World, down: Fault) -> None:
    plan = plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="first"), *BURST, down, *BURST, START, CONSUME)
    outcome = run_plan(world, plan)
    clean(outcome)
    assert faults(outcome) == [down.kind, "broker_ready", "healed", "quiescent"]
    assert len({event.payload_digest for event in stored(outcome)}) == 13
    received = [event for event in outcome.history if event.kind == "receive" and event.payload_digest]
    assert len({event.payload_digest for event in received}) == 13


def test_a_broker_that_the_plan_left_down_is_healed(world: World) -> None:
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="kept"), KILL))
    clean(outcome)
    assert faults(outcome) == ["broker_kill", "broker_ready", "healed", "quiescent"]
    assert len(stored(outcome)) == 1


@pytest.mark.parametrize("down", [KILL, STOP])
def test_what_is_done_to_a_process_that_is_down_is_not_injected(world: World, down: Fault) -> None:
    again = (KILL, STOP, Fault(kind="broker_pause", attributes={"ms": 100}))
    send = op("send", "p0", tag="m")
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, send, down, *again, START, CONSUME))
    clean(outcome)
    assert faults(outcome) == [down.kind, *["not_injected"] * 3, "broker_ready", "healed", "quiescent"]
    told = [event.extra for event in outcome.history if event.kind == "not_injected"]
    assert [extra["fault"] for extra in told] == [fault.kind for fault in again]
    assert {extra["why"] for extra in told} == {"the broker is down"}


def test_a_start_of_a_broker_that_is_up_stops_it_first(world: World) -> None:
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="kept"), START, CONSUME))
    clean(outcome)
    assert faults(outcome) == ["broker_stop", "broker_ready", "healed", "quiescent"]


def test_steps_go_on_while_the_broker_is_paused(world: World) -> None:
    pause = Fault(kind="broker_pause", attributes={"ms": 400})
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="first"), pause, *BURST, CONSUME))
    clean(outcome)
    assert faults(outcome) == ["broker_pause", "broker_resume", "healed", "quiescent"]
    kinds = [(event.layer, event.kind, event.phase) for event in outcome.history]
    paused, resumed = kinds.index(("fault", "broker_pause", "event")), kinds.index(("fault", "broker_resume", "event"))
    between = kinds[paused:resumed]
    assert between.count(("api", "send", "invoke")) == 6
    assert ("api", "send", "ok") not in between
    assert resumed > paused


def test_a_further_fault_waits_for_the_end_of_a_pause(world: World) -> None:
    pause = Fault(kind="broker_pause", attributes={"ms": 300})
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="first"), pause, KILL, START, CONSUME))
    clean(outcome)
    assert faults(outcome)[:4] == ["broker_pause", "broker_resume", "broker_kill", "broker_ready"]


def test_a_pause_is_ended_where_the_plan_ends(world: World) -> None:
    pause = Fault(kind="broker_pause", attributes={"ms": 60_000})
    began = time.monotonic()
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="first"), pause))
    clean(outcome)
    assert faults(outcome) == ["broker_pause", "broker_resume", "healed", "quiescent"]
    assert time.monotonic() - began < 30


def test_the_broker_says_nothing_of_itself_while_it_is_away(world: World) -> None:
    steps = (CONSUMER, PRODUCER, op("send", "p0", tag="m"), op("observe"), KILL, op("observe"), op("settle", ms=1_300))
    outcome = run_plan(world, plan_of(*steps, START, op("observe")))
    clean(outcome)
    killed = next(event.index for event in outcome.history if event.kind == "broker_kill")
    ready = next(event.index for event in outcome.history if event.kind == "broker_ready")
    told = [event.index for event in outcome.history if event.layer == "admin"]
    assert [index for index in told if index < killed]
    assert [index for index in told if index > ready]
    assert not [index for index in told if killed < index < ready]
    skipped = [event for event in outcome.history if event.kind == "skipped"]
    assert [event.extra["why"] for event in skipped] == ["the broker is down or paused"]


def test_short_ledgers_hold_until_the_end_of_the_session(world: World) -> None:
    short = Fault(kind="ledger_rollover", attributes={"entries": 2})
    send = op("send", "p0", tag="m")
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, send, short, *[send] * 6, CONSUME))
    clean(outcome)
    assert faults(outcome) == ["ledger_rollover", "broker_stop", "broker_ready", "healed", "quiescent"]
    assert len({event.ledger_id for event in stored(outcome)}) == 4
    after = run_plan(world, plan_of(CONSUMER, PRODUCER, *[send] * 6, CONSUME))
    clean(after)
    assert len({event.ledger_id for event in stored(after)}) == 1


def test_a_smaller_message_size_is_told_to_clients_that_reconnect(world: World) -> None:
    small = Fault(kind="max_message_size", attributes={"bytes": 20_000})
    large = op("send", "p0", tag="large", size=30_000)
    outcome = run_plan(world, plan_of(PRODUCER, large, small, op("send", "p0", tag="ok", size=100), large))
    clean(outcome)
    ends = [event for event in outcome.history if event.kind == "send" and event.phase != "invoke"]
    assert [(event.phase, event.error) for event in ends] == [("ok", None), ("ok", None), ("fail", "too_big")]


def test_a_setting_that_a_broker_lacks_is_not_injected(world: World) -> None:
    fault = Fault(kind="ledger_rollover", attributes={"minutes": 1})
    outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="m"), fault, CONSUME))
    clean(outcome)
    [event] = [event for event in outcome.history if event.kind == "not_injected"]
    assert event.extra["fault"] == "ledger_rollover"
    assert "broker_stop" not in faults(outcome)


def test_the_same_plan_gives_the_same_simulated_history() -> None:
    plan = plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="first"), *BURST, KILL, *BURST, START, CONSUME)
    histories = [run_plan(SimulatedWorld(), plan).history for _ in range(2)]
    assert histories[0] == histories[1]


# --- the real world only ------------------------------------------------------------------------------------------


class WithoutProcess(ReferenceSystem):
    @property
    def process(self) -> None:
        return None


class NeverBack(ReferenceProcess):
    async def start_again(self, settings: Settings | None = None) -> None:
        raise SetupError("it ended with status 1; its last lines: no space left")


class DiesForGood(ReferenceSystem):
    @property
    def process(self) -> ReferenceProcess | None:
        return NeverBack(self._running()) if self._server is not None else None


def test_a_system_whose_process_is_not_ours_goes_on_without_the_fault() -> None:
    world = RealWorld(WithoutProcess(), ReferenceClient())
    world.start()
    try:
        outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="m"), KILL, START, CONSUME))
    finally:
        world.stop()
    clean(outcome)
    told = [event for event in outcome.history if event.kind == "not_injected"]
    assert [event.extra["fault"] for event in told] == ["broker_kill", "broker_start"]
    assert "not ours to stop" in told[0].extra["why"]


def test_a_broker_that_stays_away_is_an_error_with_its_last_words_and_ends_the_world() -> None:
    world = RealWorld(DiesForGood(), ReferenceClient())
    world.start()
    try:
        outcome = run_plan(world, plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="m"), KILL, START, CONSUME))
        assert outcome.error is not None
        assert "did not come up again on its own data" in outcome.error
        assert "no space left" in outcome.error
        with pytest.raises(WorldBroken, match="no space left"):
            world.open(Plan())
    finally:
        world.stop()


def test_a_session_that_restarts_the_broker_has_it_for_itself() -> None:
    world = RealWorld(ReferenceSystem(), ReferenceClient())
    world.start()
    outcomes: list[Outcome] = []
    try:
        beside = world.open(plan_of(CONSUMER))
        plan = plan_of(CONSUMER, PRODUCER, op("send", "p0", tag="m"), KILL, START, CONSUME)
        alone = threading.Thread(target=lambda: outcomes.append(run_plan(world, plan)))
        alone.start()
        alone.join(timeout=0.5)
        assert alone.is_alive()
        clean_beside = beside.finish()
        alone.join(timeout=60)
    finally:
        world.stop()
    assert clean_beside.error is None
    clean(outcomes[0])


# --- who may be in beside whom ------------------------------------------------------------------------------------


def entering(gate: AloneGate, *, alone: bool) -> tuple[threading.Thread, list[str]]:
    seen: list[str] = []

    def enter() -> None:
        try:
            gate.enter(alone=alone)
            seen.append("in")
        except WorldStopped:
            seen.append("stopped")

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(timeout=0.1)
    return thread, seen


def test_many_are_in_side_by_side_and_one_alone_after_them() -> None:
    gate = AloneGate()
    gate.enter(alone=False)
    gate.enter(alone=False)
    waiting, seen = entering(gate, alone=True)
    late, too_late = entering(gate, alone=False)
    gate.leave()
    assert not seen
    gate.leave()
    waiting.join(timeout=5)
    assert seen == ["in"]
    assert not too_late
    gate.leave()
    late.join(timeout=5)
    assert too_late == ["in"]


def test_two_that_want_to_be_alone_come_one_after_another() -> None:
    gate = AloneGate()
    gate.enter(alone=True)
    waiting, seen = entering(gate, alone=True)
    assert not seen
    gate.leave()
    waiting.join(timeout=5)
    assert seen == ["in"]


def test_whoever_waits_is_told_when_the_gate_closes() -> None:
    gate = AloneGate()
    gate.enter(alone=False)
    waiting, seen = entering(gate, alone=True)
    gate.close()
    waiting.join(timeout=5)
    assert seen == ["stopped"]
    with pytest.raises(WorldStopped):
        gate.enter(alone=False)


def test_what_a_broker_runs_with_is_told_by_its_configuration_or_is_the_default() -> None:
    told = base_settings({"managedLedgerMaxEntriesPerLedger": "32"})
    assert told["ledger_max_entries"] == 32
    assert told["max_message_size"] == 5 * 1024 * 1024
