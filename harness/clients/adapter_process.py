"""Drives an adapter: a child process that speaks ``docs/adapter-contract.md`` on its stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.clients.client import (
    CAPABILITIES,
    CONTRACT_VERSION,
    FAIL_KINDS,
    MALFORMED,
    UNKNOWN_KINDS,
    AdapterDied,
    AdapterEnded,
    AdapterError,
    AdapterGarbage,
    AdapterRefused,
    ClientError,
)
from harness.mortal_directory import MortalDirectory
from harness.processes import ChildProcess

ALIVE_TIMEOUT_S = 5.0
"""How long an adapter that let a call run out of time may take to answer ``hello``."""

SHOWN = 300
"""How much of an offending line a message shows, in characters."""


class AdapterProcess:
    """A :class:`~harness.clients.client.Client` behind a process. Bound to the event loop that started it.

    ``command`` is run as it is, without a shell. Its stderr goes to ``log`` (a file of its own under the temporary
    directory when none is given), the last lines of which are in every ``AdapterDied``.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str = "adapter",
        log: Path | None = None,
        env: Mapping[str, str] | None = None,
        hello_timeout: float = 20.0,
        grace: float = 5.0,
    ) -> None:
        self.name = name
        self.version = ""
        self.capabilities: frozenset[str] = frozenset()
        self._command = list(command)
        self._log = log
        self._env = env
        self._hello_timeout = hello_timeout
        self._grace = grace
        self._child: ChildProcess | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._given_up: set[int] = set()
        self._next_id = 0
        self._trouble: AdapterError | None = None
        self._probe: asyncio.Task[None] | None = None
        self._stopping = False
        self._own_folder: MortalDirectory | None = None
        self._last_words = ""

    async def start(self) -> None:
        """Start the process and shake hands; once more after ``stop``, with a fresh process.

        Raises ``SetupError`` when the program cannot be executed and ``AdapterError`` when what runs is no adapter of
        this contract; nothing is left running then.
        """
        log = self._log
        if log is None:
            self._own_folder = MortalDirectory("client")
            log = Path(self._own_folder.name) / f"{self.name}.log"
        self._stopping, self._trouble = False, None
        self._child = await ChildProcess.spawn_piped(self._command, name=self.name, log=log, env=self._env)
        self._reader = asyncio.create_task(self._read(self._child))
        try:
            self._greet(await self.request({"op": "hello", "contract": CONTRACT_VERSION}, self._hello_timeout))
        except ClientError as error:
            await self.stop()
            raise AdapterDied(f"{self.name} did not say hello: {error}\n{self._last_words}".rstrip()) from error
        except AdapterError:
            await self.stop()
            raise

    def _greet(self, hello: dict[str, Any]) -> None:
        try:
            greeting = msgspec.convert(hello, _Greeting)
        except msgspec.ValidationError as error:
            raise AdapterGarbage(f"{self.name} answered hello with {hello}: {error}") from error
        if greeting.contract != CONTRACT_VERSION:
            raise AdapterGarbage(f"{self.name} speaks contract {greeting.contract}, not {CONTRACT_VERSION}")
        invented = sorted(set(greeting.capabilities) - CAPABILITIES)
        if invented:
            # A misspelt capability would silently turn clauses into n/a.
            raise AdapterGarbage(f"{self.name} declares capabilities the contract does not know: {', '.join(invented)}")
        self.name, self.version = greeting.name, greeting.version
        self.capabilities = frozenset(greeting.capabilities)

    async def request(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Carry out one operation; see :meth:`harness.clients.client.Client.request`.

        A call that runs out of time is the client's matter only while the adapter answers anything at all.
        """
        try:
            return await self._exchange(message, timeout)
        except ClientError as error:
            if error.kind == "timeout" and message.get("op") != "hello":
                await self._make_sure_it_answers(str(message.get("op")))
            raise

    async def _make_sure_it_answers(self, op: str) -> None:
        if self._probe is None:
            self._probe = asyncio.create_task(self._ask_for_hello(op))
            # Whoever waits for it may be cancelled; then nobody else looks at its error.
            self._probe.add_done_callback(lambda probe: None if probe.cancelled() else probe.exception())
        # Shared by all calls that run out of time at once, so the end of one must not end it for the others.
        await asyncio.shield(self._probe)

    async def _ask_for_hello(self, op: str) -> None:
        try:
            await self._exchange({"op": "hello", "contract": CONTRACT_VERSION}, ALIVE_TIMEOUT_S)
        except ClientError as error:
            if error.kind == "timeout":
                tail = self.logs_tail()
                trouble = AdapterDied(f"{self.name} answers nothing any more, neither {op} nor hello\n{tail}".rstrip())
                self._fail(trouble)
                raise trouble from error
        finally:
            self._probe = None

    async def _exchange(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        child = self._child
        if child is None or self._stopping:
            raise AdapterDied(f"{self.name} is not running")
        if self._trouble is not None:
            raise self._trouble
        self._next_id += 1
        identity = self._next_id
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[identity] = answer
        try:
            async with asyncio.timeout(timeout):
                # The reader finds out how the process ended and tells it through the answer. A pipe that is closed
                # already is a RuntimeError of uvloop's, not a ConnectionError.
                with contextlib.suppress(ConnectionError, RuntimeError):
                    child.stdin.write(msgspec.json.encode({**message, "id": identity}) + b"\n")
                    await child.stdin.drain()
                return await answer
        except TimeoutError as error:
            raise ClientError("timeout", f"no answer to {message.get('op')} within {timeout:g} s") from error
        finally:
            del self._waiting[identity]
            if answer.cancelled() or not answer.done():
                self._given_up.add(identity)
            else:
                # Seen, even where the wait ended first: asyncio complains about errors nobody looked at.
                answer.exception()

    async def _read(self, child: ChildProcess) -> None:
        while True:
            try:
                line = await child.stdout.readline()
            except ValueError as error:
                self._fail(AdapterGarbage(f"{self.name} wrote a line without an end: {error}"))
                return
            if not line:
                break
            try:
                self._take(line)
            except AdapterError as error:
                self._fail(error)
                return
        try:
            status = await asyncio.wait_for(child.wait(), self._grace)
        except TimeoutError:
            self._fail(AdapterDied(f"{self.name} closed its stdout and goes on\n{child.logs_tail(20)}".rstrip()))
            return
        # The process id tells one end from the next, which may look the same otherwise.
        how = f"{self.name} (process {child.pid}) ended {_end(status)}"
        self._fail(AdapterEnded(f"{how}\n{child.logs_tail(20)}".rstrip()))

    def _take(self, line: bytes) -> None:
        try:
            answer = msgspec.json.decode(line, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise AdapterGarbage(f"{self.name} wrote what is no answer ({error}): {_shown(line)}") from error
        if (answer.ok is None) == (answer.error is None):
            raise AdapterGarbage(f"{self.name} wrote an answer without exactly one of ok and error: {_shown(line)}")
        if answer.error is not None and answer.error.kind == MALFORMED:
            raise AdapterRefused(f"{self.name} was asked something outside the contract: {_shown(line)}")
        if answer.error is not None and answer.error.kind not in FAIL_KINDS | UNKNOWN_KINDS:
            raise AdapterGarbage(f"{self.name} used an error kind the contract does not know: {_shown(line)}")
        if answer.id in self._given_up:
            # It comes after the driver's patience: the call has been recorded as unknown and stays so.
            self._given_up.remove(answer.id)
            return
        waiting = self._waiting.get(answer.id) if answer.id is not None else None
        if waiting is not None and waiting.cancelled():
            # Given up this very moment; whoever waited has not run since.
            return
        if waiting is None or waiting.done():
            raise AdapterGarbage(f"{self.name} answered a request that is not waiting for an answer: {_shown(line)}")
        if answer.error is not None:
            waiting.set_exception(ClientError(answer.error.kind, answer.error.message))
        else:
            assert answer.ok is not None
            waiting.set_result(answer.ok)

    def _fail(self, trouble: AdapterError) -> None:
        self._trouble = trouble
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(trouble)

    async def stop(self) -> None:
        """Close stdin and wait ``grace`` seconds; then SIGTERM, SIGKILL. Calls in flight end with ``AdapterDied``."""
        child = self._child
        if child is None or self._stopping:
            return
        self._stopping = True
        with contextlib.suppress(ConnectionError):
            child.stdin.close()
        try:
            await asyncio.wait_for(child.wait(), self._grace)
        except TimeoutError:
            pass
        await child.stop()
        if self._reader is not None:
            # A stream that a grandchild keeps open must not keep us.
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(self._reader, self._grace)
        self._fail(self._trouble or AdapterDied(f"{self.name} was stopped"))
        self._last_words = child.logs_tail()
        if self._own_folder is not None:
            self._own_folder.cleanup()

    def alive(self) -> bool:
        """Whether requests can still be answered."""
        return self._child is not None and not self._stopping and self._trouble is None and self._child.alive()

    @property
    def returncode(self) -> int | None:
        """Exit status of the process, negative for a signal; None before it has ended."""
        return None if self._child is None else self._child.returncode

    def logs_tail(self) -> str:
        """The last lines the adapter wrote to stderr."""
        if self._child is None or self._stopping:
            return self._last_words
        return self._child.logs_tail()


class _Error(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    message: str


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    id: int | None
    ok: dict[str, Any] | None = None
    error: _Error | None = None


class _Greeting(msgspec.Struct):
    name: str
    version: str
    contract: int
    capabilities: list[str]


def _end(status: int) -> str:
    if status >= 0:
        return f"(exit status {status})"
    try:
        return f"by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"by signal {-status}"


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "replace").rstrip("\n")
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"
