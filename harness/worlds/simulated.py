"""The simulated world: reference machines and a simulated network in one thread under virtual time.

Deterministic by construction: the same plan gives the same history, to the byte. Mutants live here.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.clients.client import CAPABILITIES, MALFORMED
from harness.history.event import Event
from harness.history.recorder import Recorder
from harness.invariants.core import Invariant
from harness.invariants.engine import InvariantFailed, Judge, Judgement
from harness.invariants.registry import all_invariants
from harness.reference.broker.config import BrokerConfig
from harness.reference.broker.machine import BrokerMachine
from harness.reference.broker.parts import BrokerParts
from harness.reference.client.config import ClientConfig
from harness.reference.client.machine import NAME, VERSION, ClientMachine
from harness.reference.client.parts import ClientParts
from harness.reference.outputs import Answer as ClientAnswer
from harness.reference.outputs import Close, Dial, Write
from harness.worlds.attachments import Attachments
from harness.worlds.audit_event import columns_of_entry
from harness.worlds.driver import Answer, Ask, Driver, Rest, Script
from harness.worlds.plan import Fault, Operation, Plan
from harness.worlds.record import HEALING, record_cursor, record_fault
from harness.worlds.simulated_network import MILLISECOND, Ends, SimulatedNetwork, Timeline
from harness.worlds.world import Outcome

DRAIN_LIMIT_MS = 20_000
SETTLE_MS = 300
MAX_TURNS = 50_000
EPOCH_NS = 1_700_000_000 * 1_000_000_000
"""Virtual time starts here, so that publish times look like publish times."""

BROKER = BrokerConfig(
    max_message_size=64 * 1024,
    storage_latency=1 * MILLISECOND,
    max_entries_per_ledger=16,
    failover_delay=100 * MILLISECOND,
)
"""Small limits, so that short plans cross ledgers and need several pieces for one message."""


@dataclass(frozen=True, slots=True)
class _Description:
    name: str
    version: str
    capabilities: frozenset[str]

    @property
    def product(self) -> str:
        return self.name


class SimulationStuck(RuntimeError):
    """The machines went on without end or had nothing left to do while a call was open: a defect of the harness."""


@dataclass(slots=True, eq=False)
class _Running:
    script: Script
    done: bool = False


class SimulatedSession:
    """One plan under virtual time, with machines of its own."""

    def __init__(self, world: SimulatedWorld, plan: Plan | None) -> None:
        self._timeline = Timeline(EPOCH_NS)
        self.history: list[Event] = []
        self._judge = Judge(world.invariants)
        attachments = Attachments()
        observers: list[Callable[[Event], None]] = [self._judge.observe, attachments.observe]
        if world.keep_history:
            observers.append(self.history.append)
        self._recorder = Recorder("sim", clock=lambda: self._timeline.now - EPOCH_NS, observers=observers)
        self._broker = BrokerMachine(world.broker_config, parts=world.broker_parts)
        self._client = ClientMachine(world.client_config, parts=world.client_parts)
        self._network = SimulatedNetwork(self._timeline, self._recorder, self._ends())
        urls = {handle: self._network.link(handle).url for handle in ("a", "b")}
        self._driver = Driver(self._recorder, "sim", urls, attachments)
        self._requests = 0
        self._waiting: dict[int, _Running] = {}
        self._running: list[_Running] = []
        # Kept for the outcome: a mutant may break the pair or drive it in circles; what happened before still tells.
        self._stuck = ""
        options = plan.topic_options if plan else {}
        self._set_dedup(bool(options.get("dedup", False)))

    # --- the session's calls -------------------------------------------------------------------------------------

    def perform(self, step: Operation | Fault) -> None:
        if self._stuck:
            return
        try:
            self._perform(step)
        except Exception as broken:
            self._stuck = _what_broke(broken)

    def _perform(self, step: Operation | Fault) -> None:
        if isinstance(step, Fault):
            self._fault(step)
            return
        self._driver.upcoming_topics(step)
        running = self._start(self._driver.script(step))
        if step.wait:
            self._pump_until(lambda: running.done)
        else:
            # A call that is not waited for still leaves before the next step, as it does through a child process.
            self._pump_for(MILLISECOND // 10)

    def finish(self) -> Outcome:
        if not self._stuck:
            try:
                self._wind_down()
            except Exception as broken:
                self._stuck = _what_broke(broken)
        try:
            judgement, error = self._judge.finish(), self._stuck or None
        except InvariantFailed as failure:
            judgement, error = Judgement(), str(failure)
        return Outcome(judgement=judgement, events=self._recorder.count, history=self.history, error=error)

    def _wind_down(self) -> None:
        for link in self._network.links.values():
            link.reset()
        self._recorder.record(layer="fault", kind="healed")
        self._pump_until(lambda: not self._running)
        for handle, consumer in self._driver.consumers.items():
            if consumer.open:
                self._start(self._driver.drain(handle, self._driver.idle_ms(handle), DRAIN_LIMIT_MS))
        self._pump_until(lambda: not self._running)
        self._pump_for(SETTLE_MS * MILLISECOND)
        self._sample_cursors()
        self._recorder.record(layer="fault", kind="quiescent", extra={"drained": self._driver.drained})
        self._start(self._driver.close_everything())
        self._pump_until(lambda: not self._running)
        self._sample_cursors()
        for topic in self._driver.topics:
            for entry in self._broker.entries(topic):
                self._recorder.record(layer="log", kind="ENTRY", **columns_of_entry(topic, entry))
            self._recorder.record(layer="log", kind="LOG_END", topic=topic, extra={"complete": True})

    # --- faults --------------------------------------------------------------------------------------------------

    def _fault(self, fault: Fault) -> None:
        link = self._network.link(fault.client)
        if fault.kind not in HEALING and fault.kind != "dedup":
            record_fault(self._recorder, fault)
        if fault.kind == "toxic":
            link.add_toxic(fault.toxic, fault.stream, fault.attributes)
        elif fault.kind == "untoxic":
            link.remove_toxics(fault.toxic, fault.stream)
        elif fault.kind == "cut":
            link.cut()
        elif fault.kind == "refuse":
            link.refuse()
        elif fault.kind == "restore":
            link.restore()
        elif fault.kind == "dedup":
            self._set_dedup(bool(fault.attributes.get("enabled")))
            return
        if fault.kind in HEALING:
            record_fault(self._recorder, fault)
        self._pump_for(MILLISECOND // 10)

    def _set_dedup(self, enabled: bool) -> None:
        self._broker.set_dedup(enabled)
        self._recorder.record(layer="fault", kind="dedup", extra={"enabled": enabled})

    def _sample_cursors(self) -> None:
        for topic in self._driver.topics:
            for subscription in sorted({c.subscription for c in self._driver.consumers.values() if c.topic == topic}):
                view = self._broker.cursor(topic, subscription)
                if view is not None:
                    record_cursor(self._recorder, topic, subscription, view)

    # --- pumping -------------------------------------------------------------------------------------------------

    def _ends(self) -> Ends:
        return Ends(
            client_connected=lambda conn: self._client_outputs(self._client.connected(conn, self._timeline.now)),
            client_refused=lambda conn: self._client_outputs(self._client.connect_failed(conn, self._timeline.now)),
            client_received=lambda conn, data: self._client_outputs(
                self._client.received(conn, data, self._timeline.now)
            ),
            client_lost=lambda conn: self._client_outputs(self._client.disconnected(conn, self._timeline.now)),
            broker_connected=lambda conn: self._broker_outputs(self._broker.connected(conn, self._timeline.now)),
            broker_received=lambda conn, data: self._broker_outputs(
                self._broker.received(conn, data, self._timeline.now)
            ),
            broker_lost=lambda conn: self._broker_outputs(self._broker.disconnected(conn, self._timeline.now)),
        )

    def _client_outputs(self, outputs: list[Any]) -> None:
        for output in outputs:
            if isinstance(output, Write):
                self._network.client_writes(output.conn, output.data)  # type: ignore[arg-type]  # ids are ours: ints
            elif isinstance(output, Dial):
                self._network.dial(output.conn, output.address)
            elif isinstance(output, Close):
                self._network.client_closes(output.conn)  # type: ignore[arg-type]
            elif isinstance(output, ClientAnswer):
                self._answered(output.message)

    def _broker_outputs(self, outputs: list[Any]) -> None:
        for output in outputs:
            if isinstance(output, Write):
                self._network.broker_writes(output.conn, output.data)  # type: ignore[arg-type]
            elif isinstance(output, Close):
                self._network.broker_closes(output.conn)  # type: ignore[arg-type]

    def _turn(self, until: int | None = None) -> bool:
        """One thing that is due no later than ``until``; False when there is none."""
        now = self._timeline.now
        due = self._timeline.next_due()
        client, broker = self._client.next_deadline(), self._broker.next_deadline()
        times = [time for time in (due, client, broker) if time is not None]
        if not times:
            return False
        first = max(min(times), now)
        if until is not None and first > until:
            return False
        if due is not None and due <= first:
            self._timeline.run_next()
            return True
        self._timeline.now = first
        if client is not None and client <= first:
            self._client_outputs(self._client.tick(first))
        elif broker is not None and broker <= first:
            self._broker_outputs(self._broker.tick(first))
        return True

    def _pump_until(self, done: Callable[[], bool]) -> None:
        for _ in range(MAX_TURNS):
            if done():
                return
            if not self._turn():
                raise SimulationStuck("a call is open but nothing will ever happen")
        raise SimulationStuck(f"no end after {MAX_TURNS} turns at {self._timeline.now} ns")

    def _pump_for(self, duration_ns: int) -> None:
        end = self._timeline.now + duration_ns
        for _ in range(MAX_TURNS):
            if not self._turn(end):
                self._timeline.now = end
                return
        raise SimulationStuck(f"no end after {MAX_TURNS} turns at {self._timeline.now} ns")

    # --- scripts -------------------------------------------------------------------------------------------------

    def _start(self, script: Script) -> _Running:
        running = _Running(script)
        self._running.append(running)
        self._resume(running, None)
        return running

    def _resume(self, running: _Running, answer: Answer | None) -> None:
        try:
            need = running.script.send(answer)  # type: ignore[arg-type]  # the first send of a generator takes None
        except StopIteration:
            running.done = True
            self._running.remove(running)
            return
        if isinstance(need, Rest):
            self._timeline.at(self._timeline.now + need.ms * MILLISECOND, lambda: self._resume(running, Answer({})))
        else:
            self._ask(running, need)

    def _ask(self, running: _Running, ask: Ask) -> None:
        self._requests += 1
        number = self._requests
        self._waiting[number] = running

        def impatient() -> None:
            if self._waiting.pop(number, None) is not None:
                self._resume(running, Answer(None, "timeout", "no answer in time"))

        self._timeline.at(self._timeline.now + ask.timeout_ms * MILLISECOND, impatient)
        self._client_outputs(self._client.request({"id": number, **ask.message}, self._timeline.now))

    def _answered(self, message: dict[str, Any]) -> None:
        running = self._waiting.pop(message["id"], None)
        if running is None:
            return
        if "ok" in message:
            answer = Answer(message["ok"])
        else:
            error = message["error"]
            if error["kind"] == MALFORMED:
                raise SimulationStuck(f"the reference client refused our request: {error['message']}")
            answer = Answer(None, error["kind"], error["message"])
        # Resumed from the timeline: a script may ask again at once, and the machine is still inside its own call.
        self._timeline.at(self._timeline.now, lambda: self._resume(running, answer))


def _what_broke(error: Exception) -> str:
    """The error and where it came from, in one line: machines are ours, so this is read by who mends them."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"the simulation broke: {type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"


class SimulatedWorld:
    """Reference client and reference broker, or mutants of them by other ``parts``."""

    def __init__(
        self,
        *,
        broker_parts: BrokerParts | None = None,
        client_parts: ClientParts | None = None,
        broker_config: BrokerConfig | None = None,
        client_config: ClientConfig | None = None,
        invariants: tuple[Invariant[Any], ...] | None = None,
        keep_history: bool = True,
    ) -> None:
        self.broker_parts = broker_parts or BrokerParts()
        self.client_parts = client_parts or ClientParts()
        self.broker_config = broker_config or BROKER
        self.client_config = client_config or ClientConfig(operation_timeout=5_000 * MILLISECOND)
        self.invariants = invariants if invariants is not None else tuple(all_invariants())
        self.keep_history = keep_history
        self.lanes = 1
        self.system = _Description("simulated", "1", BrokerMachine.CAPABILITIES)
        self.client = _Description(NAME, VERSION, CAPABILITIES)

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def open(self, plan: Plan | None = None) -> SimulatedSession:
        return SimulatedSession(self, plan)


__all__ = ["SimulatedSession", "SimulatedWorld", "SimulationStuck"]
