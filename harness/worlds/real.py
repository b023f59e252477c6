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
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from harness.clients.client import CONTRACT_VERSION, AdapterDied, AdapterEnded, AdapterError, Client, ClientError
from harness.faults.toxiproxy import Toxiproxy, ToxiproxyError
from harness.history.errors import HistoryError
from harness.invariants.core import Invariant
from harness.invariants.registry import all_invariants
from harness.setup_error import SetupError
from harness.systems.admin import AdminExists, AdminUnreachable
from harness.systems.handshake import HandshakeFailed, handshake
from harness.systems.system import Address, System
from harness.worlds import loop_errors
from harness.worlds.alone import AloneGate
from harness.worlds.broken import SystemDied, WorldBroken, WorldStopped
from harness.worlds.downtime import Downtime
from harness.worlds.lane import Lane
from harness.worlds.namespaces import TENANT, Namespaces
from harness.worlds.plan import Plan
from harness.worlds.process_faults import base_settings
from harness.worlds.real_session import RealSession, told

LANES = 24
"""Sessions that may be open at once: a session mostly waits, so one after another would leave the machine idle."""

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

OBSERVERS = 2
"""Sessions that may ask the admin service for its view at the same time: it is there beside what is being tried."""

NAMES = 3
"""How many names a new namespace may be refused as taken."""

T = TypeVar("T")


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
        self._lanes: list[Lane] = []
        self._free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._prefix = _prefix()
        self._sessions: set[RealSession] = set()
        self._calls: set[Future[Any]] = set()
        self._silent = 0
        self._client_ends = 0
        self._starting_client = asyncio.Lock()
        self.broken = ""
        """Why no further session can be opened; empty as long as one can."""
        self._watching: list[asyncio.Task[None]] = []
        self._unwritable: HistoryError | None = None
        self.namespaces: Namespaces | None = None
        """Where the system has an admin service: every session gets one of its own."""
        self.downtime = Downtime()
        self.base_settings: dict[str, int] = {}
        self.observing = asyncio.Semaphore(OBSERVERS)
        self._entrance = AloneGate()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Nobody may hand work to a loop that is about to stop: it would never be done.
        self._gate = threading.Lock()

    def start(self) -> None:
        """Start system, Toxiproxy, taps and client. Raises SetupError, AdapterError; nothing is left running then."""
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(loop_errors.report)
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
        self._entrance.close()
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

    def open(self, plan: Plan | None = None, *, alone: bool = False) -> RealSession:
        """A session on a free lane; one that is, or will be, up to something on the broker's process waits until no
        other is open, and keeps others waiting.

        Raises WorldBroken when no session can succeed any more, and SetupError when its history cannot be stored, or
        the system does not let us have a namespace.
        """
        alone = self.system.process is not None and (alone or (plan is not None and plan.needs_alone))
        self._entrance.enter(alone=alone)
        try:
            return self._open(plan, alone)
        except HistoryError as error:
            self._entrance.leave()
            raise SetupError(str(error)) from error
        except BaseException:
            self._entrance.leave()
            raise

    def _open(self, plan: Plan | None, alone: bool) -> RealSession:
        lane = self._free.get()
        try:
            if self._unwritable is not None:
                raise self._unwritable
            if reason := self._over():
                raise WorldBroken(reason)
            self.call(self._client_at_hand())
            run, trouble = self.call(self._place(alone=alone))
            session = RealSession(self, lane, run, plan, alone=alone)
            self._sessions.add(session)
            self.call(session.begin(trouble))
        except BaseException:
            self._free.put(lane)
            raise
        return session

    async def _place(self, *, alone: bool) -> tuple[str, AdminUnreachable | None]:
        """The name of a new run, with the namespace that is called after it; and why that could not be made now.

        Raises SetupError when the system does not let us have one, and WorldBroken when it is gone.
        """
        run = self._new_run()
        if self.namespaces is None:
            return run, None
        if alone:
            await self.namespaces.at_rest()
        for _ in range(NAMES):
            try:
                await self.namespaces.make(f"{TENANT}/{run}", self._over)
            except AdminExists:
                self._prefix = _prefix()
                run = self._new_run()
            except AdminUnreachable as error:
                if reason := self._over():
                    raise WorldBroken(reason) from error
                return run, error
            else:
                return run, None
        raise SetupError(
            f"{NAMES} namespaces with names drawn at random are all said to exist already",
            "Is it Pulsar's admin service that answers there?",
        )

    def _new_run(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def _over(self) -> str:
        """Why no session can succeed any more; empty as long as one can."""
        return self.broken or self._gone()

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
        if self.system.admin is not None:
            self.namespaces = Namespaces(self.system.admin)
        self.base_settings = base_settings(self.system.configuration)
        # The client is the slowest to come up and needs nobody: side by side with the links.
        await _all_of(self._start_lanes(self.address), self.client.start())
        self._watching = [asyncio.create_task(watch) for watch in (self._watch_processes(), self._listen(self.address))]

    async def _client_at_hand(self) -> None:
        """Start the client anew when its process has ended; the sessions that were under way in it go no further.

        Raises WorldBroken when it ended ``CLIENT_ENDS`` times, does not come up again, or runs but does not answer.
        """
        async with self._starting_client:
            if self.broken:
                raise WorldBroken(self.broken)
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
                self.broken = f"the client's process ended {self._client_ends} times; the last time: {end}"
                raise WorldBroken(self.broken) from end
            try:
                await self.client.stop()
                await self.client.start()
            except (AdapterError, SetupError) as error:
                self.broken = f"the client's process ended and did not come up again: {error}\n{end}"
                raise WorldBroken(self.broken) from error

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
        while not self.broken:
            if reason := self._gone():
                self.lost(reason)
            await asyncio.sleep(WATCH_S)

    async def _listen(self, address: Address) -> None:
        """The same for a system that falls silent, as one that somebody else runs and stops."""
        missing = 0
        while not self.broken:
            await asyncio.sleep(HEARTBEAT_S)
            seen = self.downtime.count
            try:
                await handshake(address.host, address.port, ANSWER_TIMEOUT_S, self.system.access)
            except HandshakeFailed as error:
                if self.downtime.on_purpose or self.downtime.count != seen:
                    continue
                missing += 1
                if missing > 1:
                    self.lost(f"the system under test ({self.system.name}) no longer answers: {error}")
            else:
                missing = 0

    def lost(self, reason: str) -> None:
        """No session can succeed any more: end those that are open."""
        self.broken = self.broken or reason
        for session in list(self._sessions):
            session.give_up(WorldBroken(reason))

    async def _start_lanes(self, address: Address) -> None:
        await self.toxiproxy.start()
        for number in range(self.lanes):
            lane = Lane()
            self._lanes.append(lane)
            await lane.start(f"lane-{number}", address, self.toxiproxy, self.system.access)
            self._free.put(lane)

    async def _stop(self) -> None:
        for watch in self._watching:
            watch.cancel()
        # Calls still open (after Ctrl-C) would keep their threads, and so this process, waiting for ever.
        for call in list(self._calls):
            call.cancel()
        for session in list(self._sessions):
            session.abandon()
        troubles: list[str] = []
        if leftover := await self._remove_namespaces():
            troubles.append(
                f"{self.system.name} still has the namespaces {', '.join(leftover)}, which it did not remove;"
                " remove them by hand"
            )
        chains = [chain for lane in self._lanes for chain in lane.chains.values()]
        taps = [tap for chain in chains for tap in (chain.client_tap, chain.broker_tap)]
        for stop in (self.client.stop, *(tap.stop for tap in taps), self.toxiproxy.stop, self.system.stop):
            # One that cannot be stopped must not keep the others running.
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await stop()
            except Exception as error:
                troubles.append(told(error))
        self._lanes.clear()
        await _cancel_everything()
        if troubles:
            raise RuntimeError(f"the world could not be stopped in good order: {'; '.join(troubles)}")

    async def _remove_namespaces(self) -> list[str]:
        """Leave nothing behind on a system that goes on without us, whatever ended the run; the namespaces it kept.

        One that does not answer costs the time of a question: all of them are asked about at once.
        """
        if self.namespaces is None or self.system.process is not None:
            return []
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                return await self.namespaces.remove_all()
        except TimeoutError:
            return self.namespaces.present

    def release(self, session: RealSession, lane: Lane) -> None:
        """A session is finished; another may use its lane."""
        self._sessions.discard(session)
        self._free.put(lane)
        self._entrance.leave()

    def answered(self, problem: str) -> None:
        """Whether the system answered a session; ``problem`` is empty when it did."""
        self._silent = self._silent + 1 if problem else 0
        if self._silent >= SILENT_SESSIONS:
            self.lost(problem)

    def unwritable(self, error: HistoryError) -> None:
        """A history could not be stored: those of further sessions could not either."""
        self._unwritable = error

    def _gone(self) -> str:
        """Which process on the way of the frames has ended without being told to; empty when all run."""
        if not self.downtime.on_purpose and not self.system.alive():
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
            await handshake(self.address.host, self.address.port, ANSWER_TIMEOUT_S, self.system.access)
        except HandshakeFailed as error:
            problem = f"the system under test ({self.system.name}) no longer answers: {error}"
        self.answered(problem)
        if problem:
            raise SystemDied(f"{problem}\n{self.system.logs_tail()}".rstrip())


def _prefix() -> str:
    """What the names of runs, topics and namespaces begin with; long enough that nobody else draws the same."""
    return f"sq{secrets.token_hex(5)}"


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
