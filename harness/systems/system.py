"""A system: a broker under test, and how it is started, watched and stopped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

from harness.setup_error import SetupError
from harness.systems.access import OPEN, Access
from harness.systems.admin import Admin
from harness.systems.broker_process import BrokerProcess

__all__ = ["CAPABILITIES", "Address", "Capability", "Protocol", "SetupError", "System", "UnknownSystem"]

Protocol = Literal["pulsar", "rocketmq"]

Capability = Literal[
    "dedup",
    "dedup_switch",
    "batch_index_ack",
    "key_shared",
    "cursor_view",
    "ack_receipt",
    "delayed",
    "partitions",
    "producer_fencing",
    "process_faults",
    "admin",
]

CAPABILITIES: frozenset[str] = frozenset(get_args(Capability))


@dataclass(frozen=True, slots=True)
class Address:
    """Where a system answers: the binary protocol, and its admin REST service when it has one."""

    host: str
    port: int
    admin_url: str | None = None
    tls: bool = False

    @property
    def service_url(self) -> str:
        """``pulsar://host:port``, or ``pulsar+ssl://``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"pulsar{'+ssl' if self.tls else ''}://{host}:{self.port}"


class UnknownSystem(ValueError):
    """A system was named that this version cannot run; the message lists what it can."""


class System(ABC):
    """One broker. Made by ``harness.systems.resolve.resolve``; used by one run at a time.

    ``capabilities`` is what the system was measured or declared to support. A clause that needs one it lacks becomes
    *n/a*, so a capability too many blames the system wrongly and one too few hides defects.
    """

    name: str
    version: str
    protocol: Protocol
    capabilities: frozenset[str]

    @property
    def product(self) -> str:
        """What it is, however it was reached: the name that shipped lists of known failures and stored seeds go by."""
        return self.name

    @abstractmethod
    async def start(self) -> Address:
        """Start the system, or reach it, and return once it answers its own protocol.

        Raises ``SetupError`` when it does not; nothing is left running then.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Stop what ``start`` started. Safe to call twice and after a failed start."""

    @abstractmethod
    def alive(self) -> bool:
        """Whether the system still runs, as far as can be told without asking it anything."""

    @property
    def access(self) -> Access:
        """How it lets us in. Whoever connects to it needs that, the clients under test among them."""
        return OPEN

    @property
    def process(self) -> BrokerProcess | None:
        """The broker's process when it is ours to kill, pause and restart (capability ``process_faults``)."""
        return None

    @property
    def admin(self) -> Admin | None:
        """The admin service, when there is one (capability ``admin``). To be asked for after ``start``."""
        return None

    @property
    def configuration(self) -> dict[str, str]:
        """The settings the broker runs with, where they are known: kept in ``run.json``."""
        return {}

    def logs_tail(self) -> str:
        """The last lines of the system's own log, for a person to read; empty when there is none."""
        return ""
