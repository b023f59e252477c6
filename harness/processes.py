"""Child processes that never outlive the harness, nor do the directories they work in.

Each child leads a session (and so a process group) of its own: a Ctrl-C at the terminal reaches the harness alone,
which then stops its children in order, and a child is stopped together with whatever it started. Children carry a mark
in their environment; ``harness/reaper.py`` waits for the end of this process, kills what still carries it and then
removes the directories it was told of.

PR_SET_PDEATHSIG would have been shorter, but it fires when the *thread* that started the child ends, it covers no
grandchildren, and setting it needs code between fork and exec of a process that has other threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from harness import reaper
from harness.setup_error import SetupError

LINE_LIMIT = 64 * 1024 * 1024
"""Longest line, in bytes, that can be read from a piped child: a base64 payload of the largest message fits."""


class _Reaper:
    """The one reaper of this process, started with the first child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._mark = ""
        self._directories: dict[str, None] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def mark(self) -> str:
        """The mark new children must carry; a reaper for it is running when this returns."""
        with self._lock:
            self._run()
            return self._mark

    def inherit(self, directory: str) -> None:
        """From now on ``directory`` is removed after the end of this process."""
        with self._lock:
            self._run()
            self._directories[directory] = None
            self._tell(reaper.INHERIT, directory)

    def not_inherited(self, directory: str) -> None:
        """No longer: the name may be somebody else's next."""
        with self._lock:
            if self._owner == os.getpid() and directory in self._directories:
                del self._directories[directory]
                self._tell(reaper.LEAVE, directory)

    def _run(self) -> None:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return
        if self._owner != os.getpid():
            # After a fork: what was there before is the parent's.
            self._owner, self._mark = os.getpid(), f"{os.getpid()}-{secrets.token_hex(8)}"
            self._directories.clear()
        environment = {name: value for name, value in os.environ.items() if name != reaper.VARIABLE}
        self._process = subprocess.Popen(
            [sys.executable, reaper.__file__, self._mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
            # A word is to be in the pipe, and not in a buffer that dies with this process.
            bufsize=0,
        )
        for directory in self._directories:
            self._tell(reaper.INHERIT, directory)

    def _tell(self, word: bytes, directory: str) -> None:
        assert self._process is not None, "told after it was started"
        assert self._process.stdin is not None, "it was started with a pipe"
        # One that was killed is replaced, and told everything again, with the next child or directory.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(word + os.fsencode(directory) + reaper.END)


_REAPER = _Reaper()


def mortal_environment(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` with the mark of the children of this process, for a child that is not a ``ChildProcess``."""
    return {**env, reaper.VARIABLE: _REAPER.mark()}


def inherit(directory: str) -> None:
    """Have a directory of ours (``reaper.OURS``) removed after the end of this process and its children, always."""
    _REAPER.inherit(os.path.abspath(directory))


def not_inherited(directory: str) -> None:
    """Take ``inherit`` back: the directory is gone, and its name may be somebody else's."""
    _REAPER.not_inherited(os.path.abspath(directory))


class _ChildProtocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Tells when the process itself ends: asyncio's ``wait`` waits until its last grandchild closes a pipe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=LINE_LIMIT, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class ChildProcess:
    """A running child. Made by ``spawn_logged`` or ``spawn_piped``; bound to the event loop that made it."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, exited: asyncio.Event, log: Path, mark: str
    ) -> None:
        self.name = name
        self.log = log
        self._exited = exited
        self._process = process
        self._mark = mark

    @classmethod
    async def spawn_logged(
        cls,
        command: Sequence[str | Path],
        *,
        name: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> ChildProcess:
        """Start a child without input whose stdout and stderr are appended to ``log``.

        ``env`` is added to this process's environment. Raises ``SetupError`` when the program cannot be executed.
        """
        return await cls._spawn(command, name, log, env, cwd, piped=False)

    @classmethod
    async def spawn_piped(
        cls,
        command: Sequence[str | Path],
        *,
        name: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> ChildProcess:
        """Start a child that is spoken to over ``stdin`` and ``stdout``; its stderr is appended to ``log``."""
        return await cls._spawn(command, name, log, env, cwd, piped=True)

    @classmethod
    async def _spawn(
        cls,
        command: Sequence[str | Path],
        name: str,
        log: Path,
        env: Mapping[str, str] | None,
        cwd: Path | None,
        *,
        piped: bool,
    ) -> ChildProcess:
        environment = mortal_environment({**os.environ, **(env or {})})
        loop = asyncio.get_running_loop()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            try:
                transport, protocol = await loop.subprocess_exec(
                    lambda: _ChildProtocol(loop),
                    *[os.fspath(part) for part in command],
                    stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE if piped else sink,
                    stderr=sink,
                    env=environment,
                    cwd=cwd,
                    start_new_session=True,
                )
            except OSError as error:
                raise SetupError(f"{name}: cannot run {os.fspath(command[0])}: {error.strerror or error}") from error
        process = asyncio.subprocess.Process(transport, protocol, loop)
        return cls(name, process, protocol.exited, log, environment[reaper.VARIABLE])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while the event loop has not seen the child end."""
        return self._process.returncode

    @property
    def stdin(self) -> asyncio.StreamWriter:
        """Input of a piped child."""
        assert self._process.stdin is not None, f"{self.name} was started without pipes"
        return self._process.stdin

    @property
    def stdout(self) -> asyncio.StreamReader:
        """Output of a piped child; a line may have ``LINE_LIMIT`` bytes."""
        assert self._process.stdout is not None, f"{self.name} was started without pipes"
        return self._process.stdout

    def alive(self) -> bool:
        """Whether the child runs now, asked of the kernel and not of the event loop, which may lag behind."""
        if self._process.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    async def wait(self) -> int:
        """Wait for the child to end by itself; its exit status."""
        await self._exited.wait()
        status = self._process.returncode
        assert status is not None, "asyncio sets the status before it reports the end"
        return status

    async def stop(self, grace: float = 3.0) -> int:
        """End the child and everything in its group: SIGTERM, ``grace`` seconds, SIGKILL. Its exit status."""
        self._signal_group(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), grace)
        self._signal_group(signal.SIGKILL)
        return await self.wait()

    def kill(self) -> None:
        """SIGKILL to the whole group, without waiting; usable when the event loop is gone."""
        self._signal_group(signal.SIGKILL)

    def logs_tail(self, lines: int = 40) -> str:
        """The last lines of the child's log."""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - 400 * lines))
            return "\n".join(source.read().decode("utf-8", "replace").splitlines()[-lines:])
        return ""

    def _signal_group(self, number: signal.Signals) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            return
        # The leader has been reaped, so its number may already be someone else's: only members with our mark are ours.
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.getpgid(process.pid) == self.pid and process.environ().get(reaper.VARIABLE) == self._mark:
                    process.send_signal(number)
