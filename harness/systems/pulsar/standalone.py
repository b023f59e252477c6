"""One standalone Pulsar broker: a Java process of ours over a data directory that outlives it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import psutil

from harness.mortal_directory import MortalDirectory
from harness.processes import ChildProcess
from harness.setup_error import SetupError
from harness.systems.broker_process import SETTINGS, Settings
from harness.systems.first_message import READY_TOPIC, send_one
from harness.systems.handshake import HandshakeFailed
from harness.systems.pulsar.installation import Installation
from harness.systems.pulsar.jdk import Java
from harness.systems.pulsar.ports import HOST, Ports, free_block, listens, taken, who_has
from harness.systems.pulsar.settings import JAVA_LOGGING, LOG4J, java_command, merged, standalone_conf
from harness.systems.pulsar.start_failure import StartFailure, explain, telling_lines

START_TIMEOUT_S = 90.0
MESSAGE_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 60.0
TRAINING_END_S = 300.0
"""Writing the archive takes ten seconds of a whole core."""

PAUSE_TIMEOUT_S = 5.0
POLL_S = 0.02
PORT_ATTEMPTS = 3
FREE_DISK_BYTES = 200_000_000
"""About what a broker writes during a run. With less it starts, and goes read-only in the middle."""
FULL_DISK_BYTES = 5_000_000

_LOG_BYTES = 256 * 1024


class Standalone:
    """Satisfies ``harness.systems.broker_process.BrokerProcess``.

    ``directory`` is kept: data, configuration and log of all starts are in it. ``archive`` is what ``training_start``
    made for this installation and this Java, None to do without. ``ports`` None: any free ones, from the first start
    on always the same.
    """

    changeable = frozenset(SETTINGS)

    def __init__(
        self,
        installation: Installation,
        java: Java,
        archive: Path | None,
        directory: Path,
        ports: Ports | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._installation = installation
        self._java = java
        self._sharing: tuple[str, ...] = () if archive is None else (f"-XX:SharedArchiveFile={archive}",)
        self._directory = directory
        self._ports = ports
        self._settings = merged({}, settings)
        self._child: ChildProcess | None = None
        self._log = directory / "log"
        self._log_start = 0

    @classmethod
    def in_training(cls, installation: Installation, java: Java, archive: Path, directory: Path) -> Standalone:
        """A broker that writes the archive of the classes it has loaded when it ends in good order."""
        made = cls(installation, java, None, directory)
        # It would name some thousand classes that cannot be in an archive.
        made._sharing = (f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds*=error")
        return made

    @property
    def ports(self) -> Ports:
        """Known from the first start on."""
        if self._ports is None:
            raise SetupError("the broker was not started")
        return self._ports

    @property
    def admin_url(self) -> str:
        return f"http://{HOST}:{self.ports.web}"

    @property
    def settings(self) -> Mapping[str, int | bool | str]:
        """What was changed, by the names of ``SETTINGS``."""
        return self._settings

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.alive()

    @property
    def pid(self) -> int | None:
        """Of the Java process, also of one that has ended; None before the first start."""
        return None if self._child is None else self._child.pid

    def logs_tail(self, lines: int = 40) -> str:
        """The last lines the broker wrote."""
        return "\n".join(self._written(0).splitlines()[-lines:])

    # ------------------------------------------------------------------------------------------------ starting

    async def start(self) -> None:
        """The first start. Raises ``SetupError``; nothing runs then."""
        if self._ports is not None:
            await self._launch(self._ports)
            return
        for attempt in range(PORT_ATTEMPTS):
            ports = free_block()
            try:
                await self._launch(ports)
            except PortTaken:
                # Somebody else was faster; without data nothing is bound to these ports yet.
                if attempt == PORT_ATTEMPTS - 1:
                    raise
                self._forget_data()
            else:
                self._ports = ports
                return

    async def start_again(self, settings: Settings | None = None) -> None:
        if self.running:
            await self.terminate()
        self._settings = merged(self._settings, settings)
        await self._launch(self.ports)

    async def _launch(self, ports: Ports) -> None:
        busy = taken(ports)
        if busy:
            raise PortTaken(busy, self._name)
        self._write_files(ports)
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        command = java_command(
            self._java.path,
            self._installation.classpath,
            self._installation.version,
            ports,
            self._directory,
            self._sharing,
        )
        self._child = child = await ChildProcess.spawn_logged(
            command, name=self._name, log=self._log, cwd=self._directory
        )
        try:
            await self._ready(child, ports)
        except BaseException:
            child.kill()
            await child.wait()
            raise

    async def _ready(self, child: ChildProcess, ports: Ports) -> None:
        begun = time.monotonic()
        problem = "it says nothing"
        try:
            async with (
                asyncio.timeout(START_TIMEOUT_S),
                httpx.AsyncClient(base_url=f"http://{HOST}:{ports.web}", trust_env=False, timeout=5) as web,
            ):
                while child.alive():
                    problem = await _not_ready(web, child.pid, ports.broker)
                    if not problem:
                        return
                    self._give_up_on_clash(ports)
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            waited = time.monotonic() - begun
            raise SetupError(
                f"{self._name} is not ready after {waited:.0f} s: {problem}{self._last_words()}",
                "Try again; on a machine that is busy it may take longer.",
            ) from error
        self._give_up_on_clash(ports)
        status = await child.wait()
        # On a full disk it cannot write what it died of.
        full = shutil.disk_usage(self._directory).free < FULL_DISK_BYTES
        failure = explain(self._written(self._log_start), str(self._installation.version), full_disk=full)
        raise SetupError(
            f"{self._name} {_ended(status)} at its start: {failure.problem}{self._last_words()}", failure.mend
        )

    def _give_up_on_clash(self, ports: Ports) -> None:
        """A broker that finds one of its ports taken may go on waiting without it."""
        if StartFailure.PORT_TAKEN.is_in(self._written(self._log_start)):
            ours = self.pid
            foreign = [port for port in ports.all().values() if ours is None or not listens(ours, port)]
            raise PortTaken([port for port in foreign if port in taken(ports)] or foreign, self._name)

    def _write_files(self, ports: Ports) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._directory).free
            if free < FREE_DISK_BYTES:
                raise SetupError(
                    f"{self._directory} has {free // 1_000_000} MB left, and {self._name} needs "
                    f"{FREE_DISK_BYTES // 1_000_000} MB",
                    "Make room, or let TMPDIR name a directory on another disk.",
                )
            scratch = self._directory / "tmp"
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            (self._directory / "log4j2.xml").write_text(LOG4J)
            (self._directory / "logging.properties").write_text(JAVA_LOGGING)
            (self._directory / "standalone.conf").write_text(standalone_conf(ports, self._settings))
        except OSError as error:
            raise SetupError(
                f"{self._name} cannot use {self._directory}: {error.strerror or error}",
                "It needs a directory it may write to; TMPDIR names where temporary ones are made.",
            ) from error

    def _forget_data(self) -> None:
        for part in ("metadata", "zookeeper", "bookkeeper"):
            shutil.rmtree(self._directory / part, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------ faults

    async def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            await self._child.wait()

    async def terminate(self, timeout: float | None = None) -> None:
        """See ``BrokerProcess``; ``timeout`` in seconds, None for the usual one."""
        limit = STOP_TIMEOUT_S if timeout is None else timeout
        child = self._child
        if child is None or not child.alive():
            return
        _signal(child, signal.SIGTERM)
        # A process that is stopped hears nothing else.
        _signal(child, signal.SIGCONT)
        try:
            await asyncio.wait_for(child.wait(), limit)
        except TimeoutError as error:
            await self.kill()
            raise SetupError(
                f"{self._name} does not end within {limit:.0f} s of SIGTERM{self._last_words()}",
                "It was killed instead.",
            ) from error

    async def pause(self) -> None:
        child = self._child
        if child is None or not child.alive():
            return
        _signal(child, signal.SIGSTOP)
        async with asyncio.timeout(PAUSE_TIMEOUT_S):
            # The signal is sent, but a thread stops when it next runs.
            while child.alive() and psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
                await asyncio.sleep(0.001)

    async def resume(self) -> None:
        if self._child is not None and self._child.alive():
            _signal(self._child, signal.SIGCONT)

    # ------------------------------------------------------------------------------------------------ its log

    @property
    def _name(self) -> str:
        return f"pulsar {self._installation.version}"

    def _last_words(self) -> str:
        lines = telling_lines(self._written(self._log_start))
        return "".join(f"\n    {line}" for line in lines)

    def _written(self, start: int) -> str:
        """The end of the log, not from before byte ``start``."""
        try:
            with self._log.open("rb") as source:
                size = source.seek(0, os.SEEK_END)
                source.seek(max(start, size - _LOG_BYTES))
                return source.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""


class PortTaken(SetupError):
    """Somebody else listens on a port the broker needs."""

    def __init__(self, ports: list[int], name: str) -> None:
        some = ", ".join(map(who_has, ports))
        super().__init__(f"{name} cannot listen on {HOST}: {some} is taken", "End what listens there, and try again.")


async def training_start(installation: Installation, java: Java, archive: Path) -> None:
    """Start once and end in good order, to write ``archive``: with it, later starts take half the time.

    Raises ``SetupError``. ``archive`` holds for exactly this class path (its jars' times too) and this Java.
    """
    with MortalDirectory("pulsar") as place:
        directory = Path(place)
        unfinished = directory / "classes.jsa"
        broker = Standalone.in_training(installation, java, unfinished, directory)
        try:
            await broker.start()
            await broker.terminate(TRAINING_END_S)
        finally:
            await broker.kill()
        if not unfinished.is_file():
            raise SetupError(
                f"{java.path} wrote no archive of the classes of pulsar {installation.version}\n{broker.logs_tail()}"
            )
        archive.parent.mkdir(parents=True, exist_ok=True)
        # Complete, or not there: a start that finds half an archive only gets slower.
        moved = archive.with_name(f"{archive.name}.{os.getpid()}")
        shutil.move(unfinished, moved)
        moved.replace(archive)


async def _not_ready(web: httpx.AsyncClient, pid: int, broker: int) -> str:
    """What keeps the broker from being ready; empty when nothing does."""
    try:
        answer = await web.get("/admin/v2/namespaces/public/default")
    except httpx.HTTPError as error:
        return f"its admin service does not answer ({error})"
    if answer.status_code != httpx.codes.OK:
        return f"its admin service says {answer.status_code} of the namespace public/default"
    # Somebody who took the port in between may be a broker as well, and answer.
    if not listens(pid, broker):
        return "it does not listen on its port"
    try:
        await send_one(HOST, broker, READY_TOPIC, MESSAGE_TIMEOUT_S)
    except HandshakeFailed as error:
        return str(error)
    return ""


def _ended(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _signal(child: ChildProcess, number: signal.Signals) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return
