"""The ports of one broker on 127.0.0.1."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from harness.setup_error import SetupError

HOST = "127.0.0.1"
ATTEMPTS = 200

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Where nobody says which ports are handed out to outgoing connections, these are the usual ones.
_USUAL_FIRST_EPHEMERAL = 32768
_LOWEST, _HIGHEST = 15000, 65000


@dataclass(frozen=True, slots=True)
class Ports:
    """``broker`` is the binary protocol, ``web`` the admin REST service; ``zookeeper`` is used up to Pulsar 2.10."""

    broker: int
    bookie: int
    zookeeper: int
    web: int

    def all(self) -> dict[str, int]:
        """The ports by what they are for."""
        return {
            "broker": self.broker,
            "storage": self.bookie,
            "metadata": self.zookeeper,
            "admin": self.web,
        }


def free_block() -> Ports:
    """Four ports that nobody listens on now, side by side. Raises ``SetupError``.

    They lie below those the kernel gives to outgoing connections: while a killed broker is down, its port must not
    become the near end of somebody's connection (even of a client that tries to reach it, which then meets itself).
    """
    lowest, highest = _span()
    for _ in range(ATTEMPTS):
        first = random.randrange(lowest, highest - 4)
        block = Ports(first, first + 1, first + 2, first + 3)
        if not taken(block):
            return block
    raise SetupError(
        f"no four free ports side by side on {HOST} between {lowest} and {highest}",
        "End some of the programs that listen there.",
    )


def taken(ports: Ports) -> list[int]:
    """Those that cannot be listened on now."""
    busy = []
    with ExitStack() as kept:
        for port in ports.all().values():
            probe = kept.enter_context(socket.socket())
            # As Java does: connections of an earlier broker that linger in TIME_WAIT take nothing away.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
                probe.listen(1)
            except OSError:
                busy.append(port)
    return busy


def listener(port: int) -> psutil.Process | None:
    """The process that listens on the port, where this user may see it."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    for entry in connections:
        if entry.status == psutil.CONN_LISTEN and _port(entry) == port and entry.pid is not None:
            try:
                return psutil.Process(entry.pid)
            except psutil.Error:
                return None
    return None


def who_has(port: int) -> str:
    """``port 6650 (java, process 4711)`` for a message; the port alone when it cannot be told."""
    process = listener(port)
    if process is None:
        return f"port {port}"
    try:
        return f"port {port} ({process.name()}, process {process.pid})"
    except psutil.Error:
        return f"port {port}"


def listens(pid: int, port: int) -> bool:
    """Whether that process itself listens on the port, as the kernel sees it."""
    try:
        sockets = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(entry.status == psutil.CONN_LISTEN and _port(entry) == port for entry in sockets)


def _port(entry: Any) -> int | None:
    # A socket that is bound to nothing has an empty tuple for its address.
    return entry.laddr.port if entry.laddr else None


def _span() -> tuple[int, int]:
    try:
        first = int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = _USUAL_FIRST_EPHEMERAL
    # A machine that hands out nearly all ports leaves no room below them.
    return (_LOWEST, first) if first - _LOWEST >= 1000 else (_LOWEST, _HIGHEST)
