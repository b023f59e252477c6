"""pulsar-lite: a native broker in one binary, which its wheel brings along."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import socket
from pathlib import Path

import psutil

from harness.mortal_directory import MortalDirectory
from harness.processes import ChildProcess
from harness.setup_error import SetupError
from harness.systems.handshake import HandshakeFailed, handshake
from harness.systems.system import Address, Capability, Protocol, System

HOST = "127.0.0.1"
START_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 5.0
POLL_S = 0.01
PORT_ATTEMPTS = 3

SERVER_VERSION = "Pulsar-Lite"
"""How its ``CommandConnected.server_version`` begins, whatever it is reached by."""

CAPABILITIES: frozenset[Capability] = frozenset({"key_shared", "ack_receipt"})
"""As measured on 0.2.0: no deduplication, no delayed delivery, no producer access modes, and partitions only by one
global setting, which is left at none."""

MEND = "Install it with: pip install pulsar-lite"
AGAIN = "Try again; if it stays so, `starquake doctor` looks for the cause."

# Metrics would listen on all interfaces, on a fixed port. The size is the largest message a broker takes by default
# (5 MiB) and room for what is around it.
CONFIGURATION = """\
max_message_size_bytes = 5300000
default_partitions = 0

[metrics]
enabled = false
"""


def lite_binary() -> Path:
    """The broker's binary inside the installed package. Raises ``SetupError``."""
    # Importing the package would be simpler, but that also brings its process manager to life.
    spec = importlib.util.find_spec("pulsar_lite")
    if spec is None or spec.origin is None:
        raise SetupError("pulsar-lite is not installed", MEND)
    binary = Path(spec.origin).parent / "bin" / "pulsar-lite"
    if not binary.is_file():
        raise SetupError(f"pulsar-lite is installed, but has no binary for this platform ({binary})", MEND)
    return binary


def installed_version() -> str:
    """Version of the installed package."""
    try:
        return importlib.metadata.version("pulsar-lite")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class LiteSystem(System):
    """A fresh pulsar-lite on a free port of 127.0.0.1, with a data directory of its own that goes away on ``stop``."""

    name = "lite"
    protocol: Protocol = "pulsar"
    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self.version = installed_version()
        self._child: ChildProcess | None = None
        self._directory: MortalDirectory | None = None
        self._last_log = ""

    async def start(self) -> Address:
        binary = lite_binary()
        self._directory = MortalDirectory("lite")
        try:
            for _ in range(PORT_ATTEMPTS):
                port = _free_port()
                if await self._started(binary, Path(self._directory.name), port):
                    return Address(HOST, port)
            raise SetupError(f"pulsar-lite finds no free port of {HOST}:\n{self.logs_tail()}", AGAIN)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        # Ctrl-C during the start: whoever starts it and whoever ends the run both come here, one while the other waits.
        child = self._child
        if child is not None:
            await child.stop()
            if self._child is child:
                self._last_log, self._child = child.logs_tail(), None
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.cleanup()

    def alive(self) -> bool:
        return self._child is not None and self._child.alive()

    def logs_tail(self) -> str:
        return self._last_log if self._child is None else self._child.logs_tail()

    async def _started(self, binary: Path, directory: Path, port: int) -> bool:
        """Start it and wait for its CONNECTED; False when somebody took the port meanwhile.

        It cannot be told to take any free port: it would name port 0 in its lookup answers.
        """
        configuration = directory / "pulsar-lite.toml"
        configuration.write_text(CONFIGURATION)
        command: list[str | Path] = [
            binary,
            "--config",
            configuration,
            "--addr",
            f"{HOST}:{port}",
            "--db-path",
            directory / "db",
            "--log-level",
            "warn",
        ]
        self._child = child = await ChildProcess.spawn_logged(
            command, name=self.name, log=directory / "log", cwd=directory
        )
        problem = ""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while child.alive():
                    try:
                        await handshake(HOST, port, ANSWER_TIMEOUT_S)
                    except HandshakeFailed as error:
                        problem = str(error)
                        await asyncio.sleep(POLL_S)
                    else:
                        # Whoever took the port in between may be another pulsar-lite, and answer as well.
                        if _listens(child.pid, port):
                            return True
                        await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise SetupError(
                f"pulsar-lite does not answer after {START_TIMEOUT_S:.0f} s: {problem}\n{child.logs_tail()}".rstrip(),
                AGAIN,
            ) from error
        status = await child.stop()
        if "ddress already in use" in child.logs_tail():
            return False
        raise SetupError(f"pulsar-lite ended at once, status {status}\n{child.logs_tail()}".rstrip(), AGAIN)


def _listens(pid: int, port: int) -> bool:
    """Whether that process itself listens on the port, as the kernel sees it."""
    try:
        sockets = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(entry.status == psutil.CONN_LISTEN and entry.laddr.port == port for entry in sockets)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
