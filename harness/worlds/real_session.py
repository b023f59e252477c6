"""One plan in the real world: its steps, what the broker says of itself meanwhile, the end, the full read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING

import msgspec

from harness import __version__
from harness.clients.client import AdapterEnded, AdapterError, ClientError
from harness.faults.toxiproxy import ToxiproxyError
from harness.history.errors import HistoryError
from harness.history.event import Event
from harness.history.parquet import HistoryWriter, RunInfo
from harness.history.recorder import Recorder
from harness.invariants.engine import InvariantFailed, Judge, Judgement
from harness.setup_error import SetupError
from harness.systems.admin import AdminError
from harness.worlds.admin_faults import AdminFaults, subject
from harness.worlds.attachments import Attachments
from harness.worlds.audit import AuditError, Auditor
from harness.worlds.broken import SystemDied, SystemStaysDown
from harness.worlds.deduplication import NotInForce, SwitchedByNamespace
from harness.worlds.downtime import WhileUp
from harness.worlds.driver import (
    DEFAULT_NAMESPACE,
    OPERATION_TIMEOUT_MS,
    Answer,
    Ask,
    Driver,
    Look,
    Rest,
    Script,
)
from harness.worlds.fault_attributes import Partitions, Quota, attributes_of
from harness.worlds.lane import CLIENT_HANDLES, Lane
from harness.worlds.namespaces import TENANT
from harness.worlds.observation import observe
from harness.worlds.plan import ADMIN_FAULTS, PROCESS_FAULTS, Fault, Operation, Plan
from harness.worlds.process_faults import ProcessFaults
from harness.worlds.record import HEALING, record_dedup, record_fault, record_not_injected
from harness.worlds.world import Outcome

if TYPE_CHECKING:
    from harness.worlds.real import RealWorld

DRAIN_LIMIT_MS = 6_000
DRAIN_AFTER_DOWNTIME_MS = 45_000
"""A client that was refused again and again waits longer each time before it asks anew."""

SETTLE_MS = 250
"""Before the cursors are looked at: consumers that fell silent have nothing under way, but with all lanes busy clients
were seen to connect and look up again after that."""

AT_REST_MS = 800
"""The same where the broker has an admin service: what it says of itself counts as of rest when nothing happened for a
second, of which the drain was a quarter."""

UNREAD_PAUSE_S = 1.0
UNREAD_LIMIT_S = 25.0
"""How long the broker may take for what it has not read yet, once its consumers are silent."""

CLOSING_MS = 50
"""Before the final read: a client answers its close before its connections end. The taps saw most ends within 5 ms, so
that they stand before the read; with all lanes busy some came up to 0.2 s later, and stand in the middle of it."""

OBSERVE_S = 1.0
"""How long after one sample of the broker's own view the next one is taken."""

OUR_TROUBLE = (ToxiproxyError, AdapterError, SystemDied, AuditError, InvariantFailed, AdminError, NotInForce)
"""Errors whose words say enough; anything else is a defect, told with the place it comes from."""


def told(error: Exception) -> str:
    """One line for an error nobody expected, with the place it comes from."""
    frames = extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


class RealSession:
    """One plan on fresh topics. What goes wrong with the harness itself is kept for the outcome's ``error``.

    ``alone``: no other session is open, so that the plan may do to the broker's process what it likes.
    """

    def __init__(self, world: RealWorld, lane: Lane, run: str, plan: Plan | None, *, alone: bool) -> None:
        self._world = world
        self._lane = lane
        self._run = run
        self._plan = plan or Plan()
        self._alone = alone
        self._namespace = DEFAULT_NAMESPACE if world.namespaces is None else f"{TENANT}/{run}"
        self._started_ns = time.monotonic_ns()
        self.history: list[Event] = []
        self._judge = Judge(world.invariants)
        self._writer: HistoryWriter | None = None
        self._directory: Path | None = None
        attachments = Attachments()
        observers: list[Callable[[Event], None]] = [self._judge.observe, attachments.observe, self.history.append]
        if world.history_dir is not None:
            self._directory = world.history_dir / run
            self._writer = HistoryWriter(self._directory, self._run_info())
        self._recorder = Recorder(
            run, clock=lambda: time.monotonic_ns() - self._started_ns, observers=observers, writer=self._writer
        )
        urls = {handle: chain.url for handle, chain in lane.chains.items()}
        self._driver = Driver(
            self._recorder,
            run,
            urls,
            attachments,
            namespace=self._namespace,
            partitions=self._partitions(),
            auth=world.system.access.client_auth,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._sampling: asyncio.Task[None] | None = None
        # One sample at a time, so that they stand in the order in which they were true.
        self._looking = asyncio.Lock()
        assert world.address is not None
        self._auditor = Auditor(world.address, self._recorder, world.system.access)
        self._dedup = self._dedup_switch()
        self._process_faults = self._process_faults_at_hand()
        self._admin_faults: AdminFaults | None = None
        if world.system.admin is not None:
            self._admin_faults = AdminFaults(
                world.system.admin, self._recorder, self._driver, self._namespace, world.downtime
            )
        self._error: str | None = None
        self._client_ended = False

    def _run_info(self) -> RunInfo:
        system, client = self._world.system, self._world.client
        return RunInfo(
            run=self._run,
            system=system.name,
            client=client.name,
            versions={"starquake": __version__, system.name: system.version, f"client {client.name}": client.version},
            capabilities={"system": sorted(system.capabilities), "client": sorted(client.capabilities)},
            plan=msgspec.to_builtins(self._plan),
            configuration=dict(system.configuration),
        )

    def _partitions(self) -> int:
        """Those topic 0 begins with, where there is somebody to make them."""
        return int(self._plan.topic_options.get("partitions", 0)) if self._world.system.admin is not None else 0

    def _dedup_switch(self) -> SwitchedByNamespace | None:
        system = self._world.system
        if "dedup_switch" not in system.capabilities or system.admin is None:
            return None
        return SwitchedByNamespace(system.admin, self._namespace)

    def _process_faults_at_hand(self) -> ProcessFaults | None:
        process, world = self._world.system.process, self._world
        if process is None or not self._alone:
            return None
        return ProcessFaults(process, self._recorder, world.downtime, self._auditor, world.base_settings, self._keep)

    async def begin(self, trouble: AdminError | None = None) -> None:
        """Take over the taps, open the auditor's connection, say how deduplication is set.

        ``trouble``: why there is no namespace for it; then nothing is begun, and it is the session's error.
        """
        self._lane.switch.current = self._recorder
        if trouble is not None:
            self._keep(trouble)
            return
        try:
            await self._auditor.open()
        except AuditError as error:
            problem = f"the auditor could not reach the system: {error}"
            self._world.answered(problem)
            self._failed(problem)
        try:
            await self._set_dedup(bool(self._plan.topic_options.get("dedup", False)))
            if partitions := self._partitions():
                assert self._world.system.admin is not None
                await self._world.system.admin.create_partitions(self._driver.topic(0), partitions)
        except (AdminError, NotInForce) as error:
            self._keep(error)
        if self._world.system.admin is not None:
            self._sampling = asyncio.get_running_loop().create_task(self._sample_regularly())

    def perform(self, step: Operation | Fault) -> None:
        if self._error is None:
            self._world.call(self._perform(step))

    def finish(self) -> Outcome:
        """See ``harness.worlds.world.Session``. Raises SetupError when the history cannot be stored."""
        try:
            outcome = self._world.call(self._finish())
        finally:
            self._world.release(self, self._lane)
        if self._writer is not None and self._writer.failure is not None:
            raise SetupError(str(self._writer.failure))
        return outcome

    def abandon(self) -> None:
        """The world is being stopped: end what is under way and put the history so far on disk."""
        for task in self._tasks:
            task.cancel()
        if self._sampling is not None:
            self._sampling.cancel()
        self._lane.switch.current = None
        self._close_history()

    def give_up(self, reason: Exception) -> None:
        """A part of the world has gone: what is under way would only wait for it. ``finish`` tells the reason."""
        self._failed(str(reason), reason)
        for task in self._tasks:
            task.cancel()

    # --- steps ---------------------------------------------------------------------------------------------------

    async def _perform(self, step: Operation | Fault) -> None:
        try:
            if isinstance(step, Fault):
                await self._fault(step)
            else:
                await self._operation(step)
        except Exception as error:
            self._keep(error)

    async def _operation(self, operation: Operation) -> None:
        if operation.client not in self._lane.chains:
            raise AdapterError(f"a plan may use the clients {', '.join(CLIENT_HANDLES)}, not {operation.client!r}")
        for topic in self._driver.upcoming_topics(operation):
            await self._attach(topic)
        task = self._begin(self._driver.script(operation))
        if operation.wait:
            # Not awaited itself: a session that is given up cancels it, and goes on to its end.
            await asyncio.wait({task})
        else:
            # A call that is not waited for still leaves before the next step does.
            await asyncio.sleep(0)

    async def _attach(self, topic: str) -> None:
        await self._auditor.attach(topic)
        if self._dedup is not None and not self._world.downtime.on_purpose:
            await self._dedup.check(topic)

    def _begin(self, script: Script) -> asyncio.Task[None]:
        """Start a script beside others; ``give_up`` and ``abandon`` end it."""
        task = asyncio.get_running_loop().create_task(self._carry_out(script))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _carry_out(self, script: Script) -> None:
        """Feed a script its answers. Our own trouble ends it and is kept; the system's is what the script records."""
        answer: Answer | None = None
        try:
            while True:
                need = script.send(answer)  # type: ignore[arg-type]  # the first send of a generator takes None
                if isinstance(need, Rest):
                    await asyncio.sleep(need.ms / 1000)
                    answer = Answer({})
                elif isinstance(need, Look):
                    answer = await self._look()
                else:
                    answer = await self._ask(need)
        except StopIteration:
            return
        except Exception as error:
            # Nobody waits for the task of a call with ``wait=False``, so it is told here.
            self._keep(error)

    async def _ask(self, ask: Ask) -> Answer:
        try:
            return Answer(await self._world.client.request(ask.message, ask.timeout_ms / 1000))
        except ClientError as error:
            return Answer(None, error.kind, error.message)

    async def _fault(self, fault: Fault) -> None:
        if fault.kind == "dedup":
            await self._switch_dedup(fault)
        elif fault.kind in PROCESS_FAULTS:
            await self._fault_of_the_process(fault)
        elif fault.kind in ADMIN_FAULTS:
            await self._fault_by_admin(fault)
        else:
            await self._fault_of_the_link(fault)

    async def _fault_of_the_process(self, fault: Fault) -> None:
        if self._world.system.process is None:
            why = f"the process of {self._world.system.name} is not ours to stop, pause or start"
            record_not_injected(self._recorder, fault, why)
        elif self._process_faults is None:
            raise RuntimeError(f"{fault.kind} in a session that was not opened alone")
        else:
            await self._process_faults.carry_out(fault)

    async def _fault_by_admin(self, fault: Fault) -> None:
        if self._admin_faults is None:
            why = f"{self._world.system.name} has no admin service"
            record_not_injected(self._recorder, fault, why, **subject(fault, self._driver))
            return
        attributes = attributes_of(fault)
        if isinstance(attributes, Quota) and attributes.policy == "consumer_backlog_eviction":
            # The auditor acknowledges nothing, so its own backlog is the first to go.
            self._auditor.distrust("a backlog quota may have evicted entries that were stored")
        done = await self._admin_faults.carry_out(fault)
        if done and isinstance(attributes, Partitions) and attributes.topic == 0:
            self._driver.grown(attributes.partitions)
            for topic in self._driver.new_partitions():
                await self._attach(topic)

    async def _fault_of_the_link(self, fault: Fault) -> None:
        link = self._lane.chains[fault.client].link
        if fault.kind not in HEALING:
            record_fault(self._recorder, fault)
        if fault.kind == "toxic":
            work = link.add_toxic(fault.toxic, fault.stream, fault.attributes)
        elif fault.kind == "untoxic":
            work = link.remove_toxics(fault.toxic, fault.stream)
        elif fault.kind == "cut":
            work = link.cut()
        elif fault.kind == "refuse":
            work = link.refuse()
        else:
            work = link.restore()
        await self._lane.chains[fault.client].change(work)
        if fault.kind in HEALING:
            record_fault(self._recorder, fault)

    async def _switch_dedup(self, fault: Fault) -> None:
        if self._dedup is not None and self._world.downtime.on_purpose:
            record_not_injected(self._recorder, fault, "the broker is down or paused")
        else:
            await self._set_dedup(bool(attributes_of(fault).enabled))

    async def _set_dedup(self, enabled: bool) -> None:
        """Recorded once it is in force."""
        if self._dedup is None:
            enabled = False
        else:
            await self._dedup.switch(enabled, list(self._driver.topics))
        record_dedup(self._recorder, enabled)

    # --- what the broker says of itself --------------------------------------------------------------------------

    async def _sample_regularly(self) -> None:
        while True:
            await asyncio.sleep(OBSERVE_S)
            await self._look()

    async def _look(self) -> Answer:
        """Record the broker's own view of the session's topics, as far as it has one and is there."""
        admin = self._world.system.admin
        if admin is None:
            return Answer(None, "unsupported", f"{self._world.system.name} has no view of its own to show")
        if self._world.downtime.on_purpose:
            return Answer(None, "unavailable", "the broker is down or paused")
        async with self._looking, self._world.observing:
            await observe(admin, WhileUp(self._recorder, self._world.downtime), list(self._driver.topics))
        return Answer({})

    # --- the end -------------------------------------------------------------------------------------------------

    async def _finish(self) -> Outcome:
        judgement = Judgement()
        try:
            await self._wind_down()
        except Exception as error:
            self._keep(error)
        finally:
            await self._leave()
            # Off the loop: other lanes' traffic runs on it.
            await asyncio.to_thread(self._close_history)
        try:
            judgement = self._judge.finish()
        except InvariantFailed as error:
            self._failed(str(error))
        return Outcome(
            judgement=judgement,
            events=self._recorder.count,
            history=self.history,
            directory=self._directory,
            error=self._error,
            client_ended=self._client_ended,
        )

    async def _leave(self) -> None:
        """Give back what the session had; the broker is left as it was found."""
        if self._sampling is not None:
            self._sampling.cancel()
        self._lane.switch.current = None
        await self._auditor.close()
        if self._process_faults is not None and not self._world.broken:
            try:
                await self._process_faults.set_back()
            except Exception as error:
                self._keep(error)
        if self._world.namespaces is not None:
            self._world.namespaces.remove_later(self._namespace)

    async def _wind_down(self) -> None:
        if self._process_faults is not None:
            await self._process_faults.heal()
        for chain in self._lane.chains.values():
            await chain.change(chain.link.reset())
        self._recorder.record(layer="fault", kind="healed")
        await self._complete_everything()
        if self._error is None:
            downtime = self._process_faults is not None and self._process_faults.used
            limit = DRAIN_AFTER_DOWNTIME_MS if downtime else DRAIN_LIMIT_MS
            await self._drain(limit)
            if downtime:
                await self._until_read(limit)
            await asyncio.sleep((SETTLE_MS if self._world.system.admin is None else AT_REST_MS) / 1000)
            await self._look()
            drained = self._driver.drained and self._error is None
            self._recorder.record(layer="fault", kind="quiescent", extra={"drained": drained})
            if self._error is None:
                await asyncio.wait({self._begin(self._driver.close_everything())})
            await asyncio.sleep(CLOSING_MS / 1000)
            await self._look()
            if self._error is None:
                await self._auditor.read_everything(None if self._world.system.admin is None else self._last_stored)
        if failure := self._lane.failure():
            self._failed(f"a tap failed: {failure}")
        # Last of all: what a part that was gone at the end did not say proves nothing.
        await self._world.check()

    async def _drain(self, limit_ms: int) -> None:
        """All open consumers receive, side by side, until they are silent."""
        drains = {
            self._begin(self._driver.drain(handle, self._driver.idle_ms(handle), limit_ms))
            for handle, consumer in self._driver.consumers.items()
            if consumer.open
        }
        if drains:
            await asyncio.wait(drains)

    async def _until_read(self, limit_ms: int) -> None:
        """Drain again as long as the broker itself says that it has not read to the end for everybody.

        Right after a restart a read may fail, and be tried again only later: 3.0.7 says it waits for 15 s.
        """
        deadline = asyncio.get_running_loop().time() + UNREAD_LIMIT_S
        while self._error is None and asyncio.get_running_loop().time() < deadline and await self._unread():
            await asyncio.sleep(UNREAD_PAUSE_S)
            await self._drain(limit_ms)

    async def _unread(self) -> bool:
        """Whether a subscription of an open consumer has entries that the broker has not read for it."""
        admin = self._world.system.admin
        if admin is None:
            return False
        subscriptions = {consumer.subscription for consumer in self._driver.consumers.values() if consumer.open}
        for topic in self._driver.topics:
            try:
                storage = await admin.internal_stats(topic)
            except AdminError:
                continue
            for name in subscriptions & set(storage.cursors):
                cursor, last = storage.cursors[name], storage.last_confirmed
                # What was acknowledged on an earlier connection is not read again, wherever the cursor stands.
                if last is None or (cursor.mark_delete is not None and cursor.mark_delete >= last):
                    continue
                if cursor.read_position is not None and cursor.read_position <= last:
                    return True
        return False

    async def _last_stored(self, topic: str) -> tuple[int, int] | None:
        """What the admin service says of a topic's end."""
        assert self._world.system.admin is not None
        try:
            last = (await self._world.system.admin.internal_stats(topic)).last_confirmed
        except AdminError:
            return None
        return None if last is None else (last.ledger, last.entry)

    async def _complete_everything(self) -> None:
        """Wait for the open calls; every one has a timeout of its own, so this ends."""
        while self._tasks:
            await asyncio.wait(self._tasks, timeout=OPERATION_TIMEOUT_MS / 1000)

    def _close_history(self) -> None:
        if self._writer is None:
            return
        try:
            if self._error is not None:
                self._writer.cut_short(self._error)
            self._writer.close()
        except HistoryError as error:
            self._world.unwritable(error)
            self._failed(str(error))

    def _keep(self, error: Exception) -> None:
        """An error that was raised: ours, or the end of a part of the world. Nobody else's fault."""
        self._failed(str(error) if isinstance(error, OUR_TROUBLE) else told(error), error)
        if isinstance(error, SystemStaysDown):
            self._world.lost(str(error))

    def _failed(self, reason: str, cause: Exception | None = None) -> None:
        if self._error is None:
            self._error = reason
            self._client_ended = isinstance(cause, AdapterEnded)
