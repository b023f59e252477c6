"""The simulated world: reference machines and a simulated network in one thread under virtual time.

Deterministic by construction: the same plan gives the same history, to the byte. Mutants live here.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

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
from harness.systems.machine_admin import MachineAdmin
from harness.worlds.admin_faults import AdminFaults
from harness.worlds.attachments import Attachments
from harness.worlds.audit_event import columns_of_entry
from harness.worlds.driver import DEFAULT_NAMESPACE, Answer, Ask, Driver, Look, Rest, Script
from harness.worlds.fault_attributes import Partitions, attributes_of
from harness.worlds.observation import observe
from harness.worlds.plan import ADMIN_FAULTS, PROCESS_FAULTS, Fault, Operation, Plan
from harness.worlds.record import HEALING, record_dedup, record_fault, record_not_injected
from harness.worlds.simulated_network import MILLISECOND, Ends, SimulatedNetwork, Timeline
from harness.worlds.simulated_process import SimulatedProcess
from harness.worlds.world import Outcome

T = TypeVar("T")

DRAIN_LIMIT_MS = 20_000
SETTLE_MS = 300
OBSERVE_MS = 1_000
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

    @property
    def configuration(self) -> Mapping[str, str]:
        return {}


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
        options = plan.topic_options if plan else {}
        self._partitions = int(options.get("partitions", 0))
        self._driver = Driver(self._recorder, "sim", urls, attachments, partitions=self._partitions)
        self._admin = MachineAdmin(self._broker, lambda: self._timeline.now, self._broker_outputs)
        self._process_faults = SimulatedProcess(self._broker, self._timeline, self._recorder, self._broker_outputs)
        downtime = self._process_faults.downtime
        self._admin_faults = AdminFaults(self._admin, self._recorder, self._driver, DEFAULT_NAMESPACE, downtime)
        self._sampled_at = self._timeline.now
        self._requests = 0
        self._waiting: dict[int, _Running] = {}
        self._running: list[_Running] = []
        # Kept for the outcome: a mutant may break the pair or drive it in circles; what happened before still tells.
        self._stuck = ""
        self._set_dedup(bool(options.get("dedup", False)))
        if self._partitions:
            self._broker.set_partitions(self._driver.topic(0), self._partitions)

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
        self._process_faults.heal()
        for link in self._network.links.values():
            link.reset()
        self._recorder.record(layer="fault", kind="healed")
        self._pump_until(lambda: not self._running)
        for handle, consumer in self._driver.consumers.items():
            if consumer.open:
                self._start(self._driver.drain(handle, self._driver.idle_ms(handle), DRAIN_LIMIT_MS))
        self._pump_until(lambda: not self._running)
        self._pump_for(SETTLE_MS * MILLISECOND)
        self._look()
        self._recorder.record(layer="fault", kind="quiescent", extra={"drained": self._driver.drained})
        self._start(self._driver.close_everything())
        self._pump_until(lambda: not self._running)
        self._look()
        for topic in self._driver.topics:
            for entry in self._broker.entries(topic):
                self._recorder.record(layer="log", kind="ENTRY", **columns_of_entry(topic, entry))
            self._recorder.record(layer="log", kind="LOG_END", topic=topic, extra={"complete": True})

    # --- faults --------------------------------------------------------------------------------------------------

    def _fault(self, fault: Fault) -> None:
        if fault.kind == "dedup" and self._process_faults.downtime.on_purpose:
            record_not_injected(self._recorder, fault, "the broker is down or paused")
        elif fault.kind == "dedup":
            self._set_dedup(bool(attributes_of(fault).enabled))
        elif fault.kind in PROCESS_FAULTS:
            self._pump_until(lambda: not self._process_faults.paused)
            self._process_faults.carry_out(fault)
        elif fault.kind in ADMIN_FAULTS:
            self._fault_by_admin(fault)
        else:
            self._fault_of_the_link(fault)
        self._pump_for(MILLISECOND // 10)

    def _fault_by_admin(self, fault: Fault) -> None:
        attributes = attributes_of(fault)
        if now(self._admin_faults.carry_out(fault)) and isinstance(attributes, Partitions) and attributes.topic == 0:
            self._driver.grown(attributes.partitions)
            self._driver.new_partitions()

    def _fault_of_the_link(self, fault: Fault) -> None:
        link = self._network.link(fault.client)
        if fault.kind not in HEALING:
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
        if fault.kind in HEALING:
            record_fault(self._recorder, fault)

    def _set_dedup(self, enabled: bool) -> None:
        self._broker.set_dedup(enabled)
        record_dedup(self._recorder, enabled)

    def _look(self) -> Answer:
        """Record the broker's own view of the session's topics."""
        self._sampled_at = self._timeline.now
        if self._process_faults.downtime.on_purpose:
            return Answer(None, "unavailable", "the broker is down or paused")
        now(observe(self._admin, self._recorder, self._driver.topics))
        return Answer({})

    # --- pumping -------------------------------------------------------------------------------------------------

    def _ends(self) -> Ends:
        return Ends(
            client_connected=lambda conn: self._client_outputs(self._client.connected(conn, self._timeline.now)),
            client_refused=lambda conn: self._client_outputs(self._client.connect_failed(conn, self._timeline.now)),
            client_received=lambda conn, data: self._client_outputs(
                self._client.received(conn, data, self._timeline.now)
            ),
            client_lost=lambda conn: self._client_outputs(self._client.disconnected(conn, self._timeline.now)),
            broker_connected=lambda conn: self._process_faults.served(
                lambda: self._broker.connected(conn, self._timeline.now)
            ),
            broker_received=lambda conn, data: self._process_faults.served(
                lambda: self._broker.received(conn, data, self._timeline.now)
            ),
            broker_lost=lambda conn: self._process_faults.served(
                lambda: self._broker.disconnected(conn, self._timeline.now)
            ),
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
        client = self._client.next_deadline()
        broker = None if self._process_faults.paused else self._broker.next_deadline()
        times = [time for time in (due, client, broker) if time is not None]
        if not times:
            return False
        first = max(min(times), now)
        if until is not None and first > until:
            return False
        # Only as time goes by: a timer of its own would keep a pair going that has nothing left to do.
        if first - self._sampled_at >= OBSERVE_MS * MILLISECOND:
            self._look()
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
        elif isinstance(need, Look):
            self._resume(running, self._look())
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


def now(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as those of a machine's admin service."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise SimulationStuck("something waits that nothing under virtual time can end")


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
        self.system = _Description("simulated", "1", BrokerMachine.CAPABILITIES | {"process_faults"})
        self.client = _Description(NAME, VERSION, CAPABILITIES)

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def open(self, plan: Plan | None = None, *, alone: bool = False) -> SimulatedSession:
        return SimulatedSession(self, plan)


__all__ = ["SimulatedSession", "SimulatedWorld", "SimulationStuck"]
