"""The real world: a client under test, tap B, Toxiproxy, tap A and a system, under wall time.

Everything asynchronous lives on one event loop in a background thread, so that traffic flows also between two steps
of a plan; the calls of this class come from one other thread and wait.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop

from harness import __version__
from harness.clients.client import AdapterError, Client, ClientError
from harness.faults.tap import Tap
from harness.faults.toxiproxy import Link, Toxiproxy, ToxiproxyError
from harness.history.errors import HistoryError
from harness.history.event import Event
from harness.history.parquet import HistoryWriter, RunInfo
from harness.history.recorder import Recorder
from harness.invariants.core import Invariant
from harness.invariants.engine import InvariantFailed, Judge, Judgement
from harness.invariants.registry import all_invariants
from harness.systems.system import Address, System
from harness.worlds.audit import AuditError, Auditor
from harness.worlds.driver import OPERATION_TIMEOUT_MS, Answer, Ask, Driver, Rest, Script
from harness.worlds.plan import Fault, Operation, Plan
from harness.worlds.record import HEALING, record_cursor, record_fault
from harness.worlds.world import Outcome

CLIENT_HANDLES = ("a", "b")
LANES = 10
"""Sessions that may be open at once: a session mostly waits, so one after another would leave the machine idle."""

DRAIN_LIMIT_MS = 6_000
SETTLE_MS = 250

T = TypeVar("T")


class SystemDied(RuntimeError):
    """The system under test ended while a plan was being carried out, through no fault of the schedule."""


@dataclass(slots=True)
class _Chain:
    """What one plan client dials: tap B, a Toxiproxy link, tap A."""

    client_tap: Tap
    link: Link
    broker_tap: Tap
    url: str


class _RecorderSwitch:
    """The taps outlive sessions: this hands what they record to the session that is open, and drops it between two."""

    def __init__(self) -> None:
        self.current: Recorder | None = None

    def record(self, **columns: Any) -> Event:
        if self.current is None:
            return Event()
        return self.current.record(**columns)


class _Lane:
    """What one open session has for itself: a chain for each plan client."""

    def __init__(self) -> None:
        self.switch = _RecorderSwitch()
        self.chains: dict[str, _Chain] = {}

    async def start(self, name: str, address: Address, toxiproxy: Toxiproxy) -> None:
        for handle in CLIENT_HANDLES:
            broker_tap = Tap("broker", (address.host, address.port), self.switch)
            broker_host, broker_port = await broker_tap.start()
            link = await toxiproxy.proxy(f"{name}-{handle}", f"{broker_host}:{broker_port}")
            client_tap = Tap("client", link.listen, self.switch, rewrite_to="self")
            host, port = await client_tap.start()
            self.chains[handle] = _Chain(client_tap, link, broker_tap, f"pulsar://{host}:{port}")

    def failure(self) -> str:
        """What went wrong inside a tap; empty when nothing did."""
        taps = [tap for chain in self.chains.values() for tap in (chain.client_tap, chain.broker_tap)]
        return "; ".join(str(tap.failure) for tap in taps if tap.failure)


class RealWorld:
    """A system and a client with real faults between them. ``history_dir`` keeps every run's history when given."""

    def __init__(
        self,
        system: System,
        client: Client,
        *,
        history_dir: Path | None = None,
        invariants: tuple[Invariant[Any], ...] | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.system = system
        self.client = client
        self.history_dir = history_dir
        self.invariants = invariants if invariants is not None else tuple(all_invariants())
        self.address: Address | None = None
        self.toxiproxy = Toxiproxy(progress=progress)
        # Deduplication is switched for all topics at once, so sessions on such a system cannot overlap.
        self.lanes = 1 if "dedup_switch" in system.capabilities else LANES
        self._lanes: list[_Lane] = []
        self._free: queue.SimpleQueue[_Lane] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._prefix = f"sq{secrets.token_hex(3)}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start system, Toxiproxy, taps and client. Raises SetupError, AdapterError; nothing is left running then."""
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="starquake-world", daemon=True)
        self._thread.start()
        try:
            self.call(self._start())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all of it again. Idempotent."""
        if self._loop is None or self._thread is None:
            return
        try:
            self.call(self._stop())
        finally:
            # Calls still open (after Ctrl-C) would keep their threads, and so this process, waiting for ever.
            self.call(_cancel_everything())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10)
            self._loop.close()
            self._loop = self._thread = None

    def open(self, plan: Plan | None = None) -> RealSession:
        session = RealSession(self, self._free.get(), f"{self._prefix}-{next(self._numbers)}", plan)
        self.call(session.begin())
        return session

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the world's loop and wait for it; Ctrl-C while waiting cancels it."""
        assert self._loop is not None, "the world is not started"
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    async def _start(self) -> None:
        self.address = await self.system.start()
        await self.toxiproxy.start()
        for number in range(self.lanes):
            lane = _Lane()
            self._lanes.append(lane)
            await lane.start(f"lane-{number}", self.address, self.toxiproxy)
            self._free.put(lane)
        await self.client.start()

    async def _stop(self) -> None:
        chains = [chain for lane in self._lanes for chain in lane.chains.values()]
        for stop in (
            self.client.stop,
            *(chain.client_tap.stop for chain in chains),
            self.toxiproxy.stop,
            *(chain.broker_tap.stop for chain in chains),
            self.system.stop,
        ):
            await stop()
        self._lanes.clear()

    def release(self, lane: _Lane) -> None:
        """A session is finished; another may use its lane."""
        self._free.put(lane)


async def _cancel_everything() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=2)


class RealSession:
    """One plan on fresh topics. What goes wrong with the harness itself is kept for the outcome's ``error``."""

    def __init__(self, world: RealWorld, lane: _Lane, run: str, plan: Plan | None) -> None:
        self._world = world
        self._lane = lane
        self._run = run
        self._plan = plan or Plan()
        self._started_ns = time.monotonic_ns()
        self.history: list[Event] = []
        self._judge = Judge(world.invariants)
        self._writer: HistoryWriter | None = None
        self._directory: Path | None = None
        observers: list[Callable[[Event], None]] = [self._judge.observe, self.history.append]
        if world.history_dir is not None:
            self._directory = world.history_dir / run
            self._writer = HistoryWriter(self._directory, self._run_info())
        self._recorder = Recorder(
            run, clock=lambda: time.monotonic_ns() - self._started_ns, observers=observers, writer=self._writer
        )
        urls = {handle: chain.url for handle, chain in lane.chains.items()}
        self._driver = Driver(self._recorder, run, urls)
        self._tasks: set[asyncio.Task[None]] = set()
        self._auditor: Auditor | None = None
        self._error: str | None = None

    def _run_info(self) -> RunInfo:
        system, client = self._world.system, self._world.client
        return RunInfo(
            run=self._run,
            system=system.name,
            client=client.name,
            versions={"starquake": __version__, system.name: system.version, f"client {client.name}": client.version},
            capabilities={"system": sorted(system.capabilities), "client": sorted(client.capabilities)},
            plan=msgspec.to_builtins(self._plan),
        )

    async def begin(self) -> None:
        """Take over the taps; open the auditor's connection; say how deduplication is set."""
        self._lane.switch.current = self._recorder
        assert self._world.address is not None
        self._auditor = Auditor(self._world.address, self._recorder)
        try:
            await self._auditor.open()
        except AuditError as error:
            self._failed(f"the auditor could not reach the system: {error}")
        await self._set_dedup(bool(self._plan.topic_options.get("dedup", False)))

    def perform(self, step: Operation | Fault) -> None:
        if self._error is None:
            self._world.call(self._perform(step))

    def finish(self) -> Outcome:
        try:
            return self._world.call(self._finish())
        finally:
            self._world.release(self._lane)

    # --- steps ---------------------------------------------------------------------------------------------------

    async def _perform(self, step: Operation | Fault) -> None:
        try:
            if isinstance(step, Fault):
                await self._fault(step)
            else:
                await self._operation(step)
        except (ToxiproxyError, AdapterError, SystemDied, AuditError, HistoryError) as error:
            self._failed(str(error))

    async def _operation(self, operation: Operation) -> None:
        if operation.client not in self._lane.chains:
            raise AdapterError(f"a plan may use the clients {', '.join(CLIENT_HANDLES)}, not {operation.client!r}")
        for topic in self._driver.upcoming_topics(operation):
            assert self._auditor is not None
            await self._auditor.attach(topic)
        task = asyncio.get_running_loop().create_task(self._carry_out(self._driver.script(operation)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if operation.wait:
            await task
        else:
            # A call that is not waited for still leaves before the next step does.
            await asyncio.sleep(0)

    async def _carry_out(self, script: Script) -> None:
        """Feed a script its answers. Our own trouble ends it and is kept; the system's is what the script records."""
        answer: Answer | None = None
        while True:
            try:
                need = script.send(answer)  # type: ignore[arg-type]  # the first send of a generator takes None
            except StopIteration:
                return
            if isinstance(need, Rest):
                await asyncio.sleep(need.ms / 1000)
                answer = Answer({})
            else:
                try:
                    answer = await self._ask(need)
                except AdapterError as error:
                    self._failed(str(error))
                    return

    async def _ask(self, ask: Ask) -> Answer:
        try:
            return Answer(await self._world.client.request(ask.message, ask.timeout_ms / 1000))
        except ClientError as error:
            return Answer(None, error.kind, error.message)

    async def _fault(self, fault: Fault) -> None:
        if fault.kind == "dedup":
            await self._set_dedup(bool(fault.attributes.get("enabled")))
            return
        link = self._lane.chains[fault.client].link
        if fault.kind not in HEALING:
            record_fault(self._recorder, fault)
        if fault.kind == "toxic":
            await link.add_toxic(fault.toxic, fault.stream, fault.attributes)
        elif fault.kind == "untoxic":
            await link.remove_toxics(fault.toxic, fault.stream)
        elif fault.kind == "cut":
            await link.cut()
        elif fault.kind == "refuse":
            await link.refuse()
        elif fault.kind == "restore":
            await link.restore()
        if fault.kind in HEALING:
            record_fault(self._recorder, fault)

    async def _set_dedup(self, enabled: bool) -> None:
        switch = getattr(self._world.system, "set_dedup", None)
        if "dedup_switch" in self._world.system.capabilities and switch is not None:
            switch(enabled)
            self._recorder.record(layer="fault", kind="dedup", extra={"enabled": enabled})
        else:
            self._recorder.record(layer="fault", kind="dedup", extra={"enabled": False})

    # --- the end -------------------------------------------------------------------------------------------------

    async def _finish(self) -> Outcome:
        judgement = Judgement()
        try:
            await self._wind_down()
        except (ToxiproxyError, AdapterError, SystemDied, AuditError, HistoryError) as error:
            self._failed(str(error))
        finally:
            self._lane.switch.current = None
            if self._auditor is not None:
                await self._auditor.close()
            if self._writer is not None:
                try:
                    self._writer.close()
                except HistoryError as error:
                    self._failed(str(error))
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
        )

    async def _wind_down(self) -> None:
        for chain in self._lane.chains.values():
            await chain.link.reset()
        self._recorder.record(layer="fault", kind="healed")
        await self._complete_everything()
        if self._error is None:
            drains = [
                self._carry_out(self._driver.drain(handle, self._driver.idle_ms(handle), DRAIN_LIMIT_MS))
                for handle, consumer in self._driver.consumers.items()
                if consumer.open
            ]
            await asyncio.gather(*drains)
            await asyncio.sleep(SETTLE_MS / 1000)
            self._sample_cursors()
            drained = self._driver.drained and self._error is None
            self._recorder.record(layer="fault", kind="quiescent", extra={"drained": drained})
            await self._carry_out(self._driver.close_everything())
            await asyncio.sleep(0.05)
            self._sample_cursors()
            assert self._auditor is not None
            if self._error is None:
                await self._auditor.read_everything()
        if failure := self._lane.failure():
            self._failed(f"a tap failed: {failure}")
        if not self._world.system.alive():
            raise SystemDied(
                f"the system under test ({self._world.system.name}) ended in the run.\n{self._world.system.logs_tail()}"
            )

    async def _complete_everything(self) -> None:
        """Wait for the open calls; every one has a timeout of its own, so this ends."""
        while self._tasks:
            await asyncio.wait(self._tasks, timeout=OPERATION_TIMEOUT_MS / 1000)

    def _sample_cursors(self) -> None:
        view_of = getattr(self._world.system, "cursor", None)
        if "cursor_view" not in self._world.system.capabilities or view_of is None:
            return
        for topic in self._driver.topics:
            for subscription in sorted({c.subscription for c in self._driver.consumers.values() if c.topic == topic}):
                view = view_of(topic, subscription)
                if view is not None:
                    record_cursor(self._recorder, topic, subscription, view)

    def _failed(self, reason: str) -> None:
        if self._error is None:
            self._error = reason
