"""What a reference machine asks its surroundings to do. A machine itself never touches a socket."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Write:
    """Send ``data`` (whole encoded frames) on the open connection ``conn``."""

    conn: Hashable
    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection ``conn``, after everything written to it before; the machine has already forgotten it."""

    conn: Hashable


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a TCP connection to ``address`` (``host:port``) and answer with ``connected`` or ``connect_failed``."""

    conn: int
    address: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer line of the adapter contract (``docs/adapter-contract.md``): ``{"id", "ok" | "error"}``."""

    message: dict[str, Any]


BrokerOutput = Write | Close
ClientOutput = Dial | Write | Close | Answer
