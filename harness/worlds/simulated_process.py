"""What a schedule does to the broker's process in the simulated world: the machine crashes, restarts, or waits."""

from __future__ import annotations

from collections.abc import Callable

from harness.reference.broker.machine import BrokerMachine
from harness.reference.outputs import BrokerOutput
from harness.worlds.downtime import Downtime
from harness.worlds.fault_attributes import MaxMessageSize, Pause, Rollover, attributes_of
from harness.worlds.plan import FAULTS_OF_A_RUNNING_PROCESS, Fault
from harness.worlds.record import Records, record_broker, record_fault, record_not_injected
from harness.worlds.simulated_network import MILLISECOND, Timeline

Event = Callable[[], list[BrokerOutput]]


class SimulatedProcess:
    """A start takes no time. While it is paused, what reaches the broker waits in the order in which it came."""

    def __init__(
        self,
        machine: BrokerMachine,
        timeline: Timeline,
        recorder: Records,
        perform: Callable[[list[BrokerOutput]], None],
    ) -> None:
        self._machine = machine
        self._timeline = timeline
        self._recorder = recorder
        self._perform = perform
        self._waiting: list[Event] = []
        self._pauses = 0
        self.paused = False
        self.downtime = Downtime()

    def served(self, event: Event) -> None:
        """Something happens to the broker: now, or when it is resumed."""
        if self.paused:
            self._waiting.append(event)
        else:
            self._perform(event())

    def carry_out(self, fault: Fault) -> None:
        """Record and do it; the broker must not be paused."""
        attributes = attributes_of(fault)
        if isinstance(attributes, Rollover) and attributes.entries is None:
            record_not_injected(self._recorder, fault, "ledgers of the reference broker are limited by entries only")
            return
        if self._machine.down and fault.kind in FAULTS_OF_A_RUNNING_PROCESS:
            record_not_injected(self._recorder, fault, "the broker is down")
            return
        if fault.kind != "broker_start":
            record_fault(self._recorder, fault)
        if isinstance(attributes, Pause):
            self._pause(attributes.ms)
        elif isinstance(attributes, Rollover):
            self._stop_in_good_order()
            self._machine.reconfigure(max_entries_per_ledger=attributes.entries)
            self._start()
        elif isinstance(attributes, MaxMessageSize):
            self._stop_in_good_order()
            self._machine.reconfigure(max_message_size=attributes.bytes)
            self._start()
        elif fault.kind == "broker_kill":
            self._kill()
        elif fault.kind == "broker_stop":
            self._stop()
        else:
            self._stop_in_good_order()
            self._start()

    def heal(self) -> None:
        """The broker is up and runs when this returns; what had to be done for it is recorded."""
        if self.paused:
            self._resume(self._pauses)
        if self._machine.down:
            self._start()

    # --- internals -----------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        self.downtime.begin()
        self._perform(self._machine.crash(self._timeline.now))

    def _stop(self) -> None:
        self.downtime.begin()
        if not self._machine.down:
            # A restart of a broker that is up settles everything first; what follows it has nothing left to lose.
            self._perform(self._machine.restart(self._timeline.now))
            self._perform(self._machine.crash(self._timeline.now))

    def _stop_in_good_order(self) -> None:
        if not self._machine.down:
            record_broker(self._recorder, "broker_stop")
            self._stop()

    def _start(self) -> None:
        self._perform(self._machine.restart(self._timeline.now))
        record_broker(self._recorder, "broker_ready")
        self.downtime.end()

    def _pause(self, ms: int) -> None:
        self.downtime.begin()
        self.paused = True
        self._pauses += 1
        number = self._pauses
        self._timeline.at(self._timeline.now + ms * MILLISECOND, lambda: self._resume(number))

    def _resume(self, number: int) -> None:
        """Ends a pause, unless it has been ended already."""
        if not self.paused or number != self._pauses:
            return
        self.paused = False
        record_broker(self._recorder, "broker_resume")
        self.downtime.end()
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._perform(event())
