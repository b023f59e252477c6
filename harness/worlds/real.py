"""The real world: a client under test, tap B, Toxiproxy, tap A and a system, under wall time.

Everything asynchronous lives on one event loop in a background thread, so that traffic flows also between two steps
of a plan; the calls of this class come from one other thread and wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any, TypeVar

import msgspec
import uvloop

from harness import __version__
from harness.clients.client import CONTRACT_VERSION, AdapterDied, AdapterEnded, AdapterError, Client, ClientError
from harness.faults.tap import Tap
from harness.faults.toxiproxy import Link, Toxiproxy, ToxiproxyError
from harness.history.errors import HistoryError
from harness.history.event import Event
from harness.history.parquet import HistoryWriter, RunInfo
from harness.history.recorder import Recorder
from harness.invariants.core import Invariant
from harness.invariants.engine import InvariantFailed, Judge, Judgement
from harness.invariants.registry import all_invariants
from harness.setup_error import SetupError
from harness.systems.handshake import HandshakeFailed, handshake
from harness.systems.system import Address, System
from harness.worlds.attachments import Attachments
from harness.worlds.audit import AuditError, Auditor
from harness.worlds.broken import WorldBroken, WorldStopped
from harness.worlds.driver import OPERATION_TIMEOUT_MS, Answer, Ask, Driver, Rest, Script, topic_name
from harness.worlds.plan import Fault, Operation, Plan
from harness.worlds.record import HEALING, record_cursor, record_fault
from harness.worlds.world import Outcome

CLIENT_HANDLES = ("a", "b")
LANES = 24
"""Sessions that may be open at once: a session mostly waits, so one after another would leave the machine idle."""

DRAIN_LIMIT_MS = 6_000
SETTLE_MS = 250
"""Before the cursors are looked at: consumers that fell silent have nothing under way, but with all lanes busy clients
were seen to connect and look up again after that."""

CLOSING_MS = 50
"""Before the final read: a client answers its close before its connections end. The taps saw most ends within 5 ms, so
that they stand before the read; with all lanes busy some came up to 0.2 s later, and stand in the middle of it."""

ANSWER_TIMEOUT_S = 5.0
"""How long a system may take for CONNECTED at the end of a session, when no fault is left between it and us."""

SILENT_SESSIONS = 3
"""Sessions in a row at whose begin or end the system did not answer, after which no further one is opened."""

CLIENT_ENDS = 3
"""Ends of the client's process after which no further one is started: it would go on like this."""

WATCH_S = 0.2
"""How often the processes of a world are looked at."""

HEARTBEAT_S = 2.0
"""How often the system is asked for CONNECTED beside the sessions; two missing answers in a row end them."""

STOP_TIMEOUT_S = 20.0

T = TypeVar("T")


class SystemDied(RuntimeError):
    """The system under test ended or fell silent during a plan, through no fault of the schedule.

    Whoever ended it (a person, the kernel short of memory, itself): what a history says of a broker that is not there
    proves nothing about its promises.
    """


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
        self.lanes = LANES
        self._lanes: list[_Lane] = []
        self._free: queue.SimpleQueue[_Lane] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._prefix = f"sq{secrets.token_hex(3)}"
        self._sessions: set[RealSession] = set()
        self._calls: set[Future[Any]] = set()
        self._silent = 0
        self._client_ends = 0
        self._starting_client = asyncio.Lock()
        self._broken = ""
        self._watching: list[asyncio.Task[None]] = []
        self._unwritable: HistoryError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Nobody may hand work to a loop that is about to stop: it would never be done.
        self._gate = threading.Lock()

    def start(self) -> None:
        """Start system, Toxiproxy, taps and client. Raises SetupError, AdapterError; nothing is left running then."""
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="starquake-world", daemon=True)
        self._thread.start()
        try:
            self.call(self._start())
        except BaseException:
            # Why it did not start is what the person must read, not what else went wrong on the way out.
            with contextlib.suppress(RuntimeError):
                self.stop()
            raise

    def stop(self) -> None:
        """Stop all of it again. Idempotent; calls that are open in other threads end with WorldStopped.

        Ctrl-C in here is raised when everything is stopped.
        """
        with self._gate:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        stopping = asyncio.run_coroutine_threadsafe(self._stop(), loop)
        interrupted: KeyboardInterrupt | None = None
        try:
            while not stopping.done():
                try:
                    stopping.result()
                except KeyboardInterrupt as signal:
                    interrupted = signal
            stopping.result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=10)
            loop.close()
            self._thread = None
        if interrupted is not None:
            raise interrupted

    def open(self, plan: Plan | None = None) -> RealSession:
        """A session on a free lane.

        Raises WorldBroken when no session can succeed any more, and SetupError when its history cannot be stored.
        """
        lane = self._free.get()
        try:
            if self._unwritable is not None:
                raise self._unwritable
            if reason := self._broken or self._gone():
                raise WorldBroken(reason)
            self.call(self._client_at_hand())
            session = RealSession(self, lane, f"{self._prefix}-{next(self._numbers)}", plan)
            self._sessions.add(session)
            self.call(session.begin())
        except HistoryError as error:
            self._free.put(lane)
            raise SetupError(str(error)) from error
        except BaseException:
            self._free.put(lane)
            raise
        return session

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the world's loop and wait for it; Ctrl-C while waiting cancels it.

        Raises WorldStopped when the world is stopped meanwhile.
        """
        with self._gate:
            if self._loop is None:
                work.close()
                raise WorldStopped("the world is not running")
            future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._calls.add(future)
        try:
            return future.result()
        except CancelledError as error:
            raise WorldStopped("the world was stopped during the call") from error
        except KeyboardInterrupt:
            future.cancel()
            raise
        finally:
            self._calls.discard(future)

    async def _start(self) -> None:
        self.address = await self.system.start()
        # The client is the slowest to come up and needs nobody: side by side with the links.
        await _all_of(self._start_lanes(self.address), self.client.start())
        self._watching = [asyncio.create_task(watch) for watch in (self._watch_processes(), self._listen(self.address))]

    async def _client_at_hand(self) -> None:
        """Start the client anew when its process has ended; the sessions that were under way in it go no further.

        Raises WorldBroken when it ended ``CLIENT_ENDS`` times, does not come up again, or runs but does not answer.
        """
        async with self._starting_client:
            if self._broken:
                raise WorldBroken(self._broken)
            if self.client.alive():
                return
            end = await self._client_end()
            if not isinstance(end, AdapterEnded):
                raise WorldBroken(str(end)) from end
            # Their handles are unknown to the fresh process: what that would answer is not the client's doing.
            for session in list(self._sessions):
                session.give_up(end)
            self._client_ends += 1
            if self._client_ends >= CLIENT_ENDS:
                self._broken = f"the client's process ended {self._client_ends} times; the last time: {end}"
                raise WorldBroken(self._broken) from end
            try:
                await self.client.stop()
                await self.client.start()
            except (AdapterError, SetupError) as error:
                self._broken = f"the client's process ended and did not come up again: {error}\n{end}"
                raise WorldBroken(self._broken) from error

    async def _client_end(self) -> AdapterError:
        """What a client that is not alive says of its end; each call to it would end in the same."""
        try:
            await self.client.request({"op": "hello", "contract": CONTRACT_VERSION}, ANSWER_TIMEOUT_S)
        except AdapterError as error:
            return error
        except ClientError:
            pass
        return AdapterDied(f"the adapter of the client {self.client.name} no longer answers")

    async def _watch_processes(self) -> None:
        """End the open sessions when a process has gone: without it every call would only run into its timeout."""
        while not self._broken:
            if reason := self._gone():
                self._lost(reason)
            await asyncio.sleep(WATCH_S)

    async def _listen(self, address: Address) -> None:
        """The same for a system that falls silent, as one that somebody else runs and stops."""
        missing = 0
        while not self._broken:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await handshake(address.host, address.port, ANSWER_TIMEOUT_S)
            except HandshakeFailed as error:
                missing += 1
                if missing > 1:
                    self._lost(f"the system under test ({self.system.name}) no longer answers: {error}")
            else:
                missing = 0

    def _lost(self, reason: str) -> None:
        self._broken = self._broken or reason
        for session in list(self._sessions):
            session.give_up(WorldBroken(reason))

    async def _start_lanes(self, address: Address) -> None:
        await self.toxiproxy.start()
        for number in range(self.lanes):
            lane = _Lane()
            self._lanes.append(lane)
            await lane.start(f"lane-{number}", address, self.toxiproxy)
            self._free.put(lane)

    async def _stop(self) -> None:
        for watch in self._watching:
            watch.cancel()
        # Calls still open (after Ctrl-C) would keep their threads, and so this process, waiting for ever.
        for call in list(self._calls):
            call.cancel()
        for session in list(self._sessions):
            session.abandon()
        chains = [chain for lane in self._lanes for chain in lane.chains.values()]
        taps = [tap for chain in chains for tap in (chain.client_tap, chain.broker_tap)]
        troubles: list[str] = []
        for stop in (self.client.stop, *(tap.stop for tap in taps), self.toxiproxy.stop, self.system.stop):
            # One that cannot be stopped must not keep the others running.
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await stop()
            except Exception as error:
                troubles.append(_told(error))
        self._lanes.clear()
        await _cancel_everything()
        if troubles:
            raise RuntimeError(f"the world could not be stopped in good order: {'; '.join(troubles)}")

    def release(self, session: RealSession, lane: _Lane) -> None:
        """A session is finished; another may use its lane."""
        self._sessions.discard(session)
        self._free.put(lane)

    def answered(self, problem: str) -> None:
        """Whether the system answered a session; ``problem`` is empty when it did."""
        self._silent = self._silent + 1 if problem else 0
        if self._silent >= SILENT_SESSIONS:
            self._lost(problem)

    def unwritable(self, error: HistoryError) -> None:
        """A history could not be stored: those of further sessions could not either."""
        self._unwritable = error

    def _gone(self) -> str:
        """Which process on the way of the frames has ended; empty when all run."""
        if not self.system.alive():
            return f"the system under test ({self.system.name}) ended in the run.\n{self.system.logs_tail()}".rstrip()
        try:
            self.toxiproxy.check()
        except ToxiproxyError as error:
            return str(error)
        return ""

    async def check(self) -> None:
        """Raises SystemDied, ToxiproxyError or AdapterDied when a part of the world did not survive a session."""
        assert self.address is not None
        if not self.system.alive():
            raise SystemDied(self._gone())
        self.toxiproxy.check()
        if not self.client.alive():
            raise await self._client_end()
        problem = ""
        try:
            await handshake(self.address.host, self.address.port, ANSWER_TIMEOUT_S)
        except HandshakeFailed as error:
            problem = f"the system under test ({self.system.name}) no longer answers: {error}"
        self.answered(problem)
        if problem:
            raise SystemDied(f"{problem}\n{self.system.logs_tail()}".rstrip())


async def _all_of(*work: Coroutine[Any, Any, None]) -> None:
    """Run all side by side; the first error cancels the others, is waited for, and raised as it is."""
    tasks = [asyncio.ensure_future(piece) for piece in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _cancel_everything() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=2)


def _told(error: Exception) -> str:
    """One line for an error nobody expected, with the place it comes from."""
    frames = extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


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
        attachments = Attachments()
        observers: list[Callable[[Event], None]] = [self._judge.observe, attachments.observe, self.history.append]
        if world.history_dir is not None:
            self._directory = world.history_dir / run
            self._writer = HistoryWriter(self._directory, self._run_info())
        self._recorder = Recorder(
            run, clock=lambda: time.monotonic_ns() - self._started_ns, observers=observers, writer=self._writer
        )
        urls = {handle: chain.url for handle, chain in lane.chains.items()}
        self._driver = Driver(self._recorder, run, urls, attachments)
        self._tasks: set[asyncio.Task[None]] = set()
        self._auditor: Auditor | None = None
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
        )

    async def begin(self) -> None:
        """Take over the taps; open the auditor's connection; say how deduplication is set."""
        self._lane.switch.current = self._recorder
        assert self._world.address is not None
        self._auditor = Auditor(self._world.address, self._recorder)
        try:
            await self._auditor.open()
        except AuditError as error:
            problem = f"the auditor could not reach the system: {error}"
            self._world.answered(problem)
            self._failed(problem)
        await self._set_dedup(bool(self._plan.topic_options.get("dedup", False)))

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
        except (ToxiproxyError, AdapterError, SystemDied, AuditError, InvariantFailed) as error:
            self._failed(str(error), error)
        except Exception as error:
            # A defect of our own, or a plan that asks for what there is not: said, and nobody else's fault.
            self._failed(_told(error))

    async def _operation(self, operation: Operation) -> None:
        if operation.client not in self._lane.chains:
            raise AdapterError(f"a plan may use the clients {', '.join(CLIENT_HANDLES)}, not {operation.client!r}")
        for topic in self._driver.upcoming_topics(operation):
            assert self._auditor is not None
            await self._auditor.attach(topic)
        task = self._begin(self._driver.script(operation))
        if operation.wait:
            # Not awaited itself: a session that is given up cancels it, and goes on to its end.
            await asyncio.wait({task})
        else:
            # A call that is not waited for still leaves before the next step does.
            await asyncio.sleep(0)

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
                else:
                    answer = await self._ask(need)
        except StopIteration:
            return
        except AdapterError as error:
            self._failed(str(error), error)
        except Exception as error:
            # A defect of our own, or a plan that asks for what there is not. Nobody waits for the task of a call with
            # ``wait=False``, so it is told here.
            self._failed(_told(error))

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
            # For this run's topics only: other runs are going on beside it.
            switch(enabled, topic_name(self._run, ""))
            self._recorder.record(layer="fault", kind="dedup", extra={"enabled": enabled})
        else:
            self._recorder.record(layer="fault", kind="dedup", extra={"enabled": False})

    # --- the end -------------------------------------------------------------------------------------------------

    async def _finish(self) -> Outcome:
        judgement = Judgement()
        try:
            await self._wind_down()
        except (ToxiproxyError, AdapterError, SystemDied, AuditError, InvariantFailed) as error:
            self._failed(str(error), error)
        except Exception as error:
            self._failed(_told(error))
        finally:
            self._lane.switch.current = None
            if self._auditor is not None:
                await self._auditor.close()
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

    async def _wind_down(self) -> None:
        for chain in self._lane.chains.values():
            await chain.link.reset()
        self._recorder.record(layer="fault", kind="healed")
        await self._complete_everything()
        if self._error is None:
            drains = {
                self._begin(self._driver.drain(handle, self._driver.idle_ms(handle), DRAIN_LIMIT_MS))
                for handle, consumer in self._driver.consumers.items()
                if consumer.open
            }
            if drains:
                await asyncio.wait(drains)
            await asyncio.sleep(SETTLE_MS / 1000)
            self._sample_cursors()
            drained = self._driver.drained and self._error is None
            self._recorder.record(layer="fault", kind="quiescent", extra={"drained": drained})
            if self._error is None:
                await asyncio.wait({self._begin(self._driver.close_everything())})
            await asyncio.sleep(CLOSING_MS / 1000)
            self._sample_cursors()
            assert self._auditor is not None
            if self._error is None:
                await self._auditor.read_everything()
        if failure := self._lane.failure():
            self._failed(f"a tap failed: {failure}")
        # Last of all: what a part that was gone at the end did not say proves nothing.
        await self._world.check()

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

    def _failed(self, reason: str, cause: Exception | None = None) -> None:
        if self._error is None:
            self._error = reason
            self._client_ended = isinstance(cause, AdapterEnded)
