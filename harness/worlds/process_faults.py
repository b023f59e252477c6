"""What a schedule does to the broker's process in the real world, and how it is undone at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from harness.setup_error import SetupError
from harness.systems.broker_process import BrokerProcess
from harness.worlds.audit import Auditor
from harness.worlds.broken import SystemStaysDown
from harness.worlds.downtime import Downtime
from harness.worlds.fault_attributes import MaxMessageSize, Pause, Rollover, attributes_of
from harness.worlds.plan import FAULTS_OF_A_RUNNING_PROCESS, Fault
from harness.worlds.record import Records, record_broker, record_fault, record_not_injected

_PULSAR: dict[str, tuple[str, int]] = {
    "ledger_max_entries": ("managedLedgerMaxEntriesPerLedger", 50_000),
    "ledger_max_megabytes": ("managedLedgerMaxSizePerLedgerMbytes", 2_048),
    "ledger_max_minutes": ("managedLedgerMaxLedgerRolloverTimeMinutes", 240),
    "max_message_size": ("maxMessageSize", 5 * 1024 * 1024),
}
"""Pulsar's name of each setting that a plan may change, and its default there."""


def base_settings(configuration: Mapping[str, str]) -> dict[str, int]:
    """What a broker of this configuration runs with while no plan changes it, by the names of ``SETTINGS``."""
    return {name: int(configuration.get(theirs, default)) for name, (theirs, default) in _PULSAR.items()}


class ProcessFaults:
    """Those of one session, which has the broker for itself. Raises SystemStaysDown when the broker stays away.

    ``base``: see ``base_settings``. ``failed`` is told what nobody would see otherwise.

    A pause goes on beside the steps that follow it, for its time, and a further fault waits for its end; each other
    fault has happened when its step ends.
    """

    def __init__(
        self,
        process: BrokerProcess,
        recorder: Records,
        downtime: Downtime,
        auditor: Auditor,
        base: Mapping[str, int],
        failed: Callable[[Exception], None],
    ) -> None:
        self._process = process
        self._recorder = recorder
        self._downtime = downtime
        self._auditor = auditor
        self._base = base
        self._failed = failed
        self._down = False
        self._pause_over = asyncio.Event()
        self._pausing: asyncio.Task[None] | None = None
        self._changed: set[str] = set()
        self.used = False

    async def carry_out(self, fault: Fault) -> None:
        """Record and do it."""
        self.used = True
        attributes = attributes_of(fault)
        await self._end_of_pause()
        if self._down and fault.kind in FAULTS_OF_A_RUNNING_PROCESS:
            record_not_injected(self._recorder, fault, "the broker is down")
        elif isinstance(attributes, Pause):
            await self._pause(fault, attributes.ms / 1000)
        elif isinstance(attributes, Rollover | MaxMessageSize):
            await self._restart_with(fault, _settings(attributes))
        elif fault.kind == "broker_kill":
            await self._kill(fault)
        elif fault.kind == "broker_stop":
            record_fault(self._recorder, fault)
            await self._terminate()
        else:
            await self._stop_in_good_order()
            await self._start(None)

    async def heal(self) -> None:
        """The broker is up and runs when this returns; what had to be done for it is recorded."""
        self._pause_over.set()
        await self._end_of_pause()
        if self._down:
            await self._start(None)

    async def set_back(self) -> None:
        """Undo the settings that were changed: the next session is to find the broker as it was.

        Nothing of it is recorded: what the plan led to has been read by now.
        """
        if not self._changed:
            return
        self._leave()
        await self._ask(self._process.terminate(), "did not stop in good order")
        settings = {name: self._base[name] for name in sorted(self._changed)}
        await self._ask(self._process.start_again(settings), "did not come up again on its own data")
        self._changed.clear()
        self._downtime.end()

    # --- internals -----------------------------------------------------------------------------------------------

    async def _kill(self, fault: Fault) -> None:
        record_fault(self._recorder, fault)
        self._leave()
        await self._ask(self._process.kill(), "could not be killed")
        self._down = True

    async def _pause(self, fault: Fault, seconds: float) -> None:
        record_fault(self._recorder, fault)
        self._leave()
        await self._ask(self._process.pause(), "could not be paused")
        self._pause_over.clear()
        self._pausing = asyncio.get_running_loop().create_task(self._resume_later(seconds))

    async def _resume_later(self, seconds: float) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._pause_over.wait(), seconds)
            await self._ask(self._process.resume(), "could not be resumed")
            record_broker(self._recorder, "broker_resume")
            await self._return()
        except Exception as error:
            # Nobody need be waiting for this task.
            self._failed(error)

    async def _end_of_pause(self) -> None:
        if self._pausing is not None:
            await asyncio.wait({self._pausing})
            self._pausing = None

    async def _restart_with(self, fault: Fault, settings: dict[str, int]) -> None:
        if lacking := sorted(settings.keys() - self._process.changeable):
            record_not_injected(self._recorder, fault, f"this broker cannot change {', '.join(lacking)}")
            return
        record_fault(self._recorder, fault)
        self._changed.update(settings)
        await self._stop_in_good_order()
        await self._start(settings)

    async def _stop_in_good_order(self) -> None:
        if not self._down:
            record_broker(self._recorder, "broker_stop")
            await self._terminate()

    async def _terminate(self) -> None:
        self._leave()
        await self._ask(self._process.terminate(), "did not stop in good order")
        self._down = True

    async def _start(self, settings: dict[str, int] | None) -> None:
        await self._ask(self._process.start_again(settings), "did not come up again on its own data")
        self._down = False
        record_broker(self._recorder, "broker_ready")
        await self._return()

    def _leave(self) -> None:
        self._downtime.begin()
        self._auditor.away()

    async def _return(self) -> None:
        self._downtime.end()
        await self._auditor.back()

    async def _ask(self, work: Awaitable[None], otherwise: str) -> None:
        try:
            await work
        except SetupError as error:
            self._downtime.end()
            raise SystemStaysDown(f"the broker {otherwise}: {error}") from error


def _settings(attributes: Rollover | MaxMessageSize) -> dict[str, int]:
    """By the names of ``broker_process.SETTINGS``."""
    if isinstance(attributes, MaxMessageSize):
        return {"max_message_size": attributes.bytes}
    limits = {"entries": attributes.entries, "megabytes": attributes.megabytes, "minutes": attributes.minutes}
    return {f"ledger_max_{name}": value for name, value in limits.items() if value is not None}
