"""The broker's process, for systems whose process is ours: what a schedule may do to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Settings = Mapping[str, int | bool | str]
"""Settings of a broker by our names, see ``SETTINGS``."""

SETTINGS: dict[str, type] = {
    "ledger_max_entries": int,
    "ledger_max_megabytes": int,
    "ledger_max_minutes": int,
    "max_message_size": int,
    "dedup": bool,
}
"""What ``start_again`` may change (most brokers read these at their start only), with the type of each."""


class BrokerProcess(Protocol):
    """All calls return when the thing has happened; each may be called in any state (killing the dead does nothing)."""

    async def kill(self) -> None:
        """SIGKILL: what was not on disk is lost. Returns when the process has ended."""

    async def terminate(self) -> None:
        """SIGTERM: the broker stops in good order. Returns when it has ended; raises SetupError after a limit."""

    async def pause(self) -> None:
        """SIGSTOP: the process lives, its sockets stay open, it does nothing."""

    async def resume(self) -> None:
        """SIGCONT."""

    async def start_again(self, settings: Settings | None = None) -> None:
        """Start on the same data and the same ports; ready (a message went through) when this returns.

        ``settings`` change what they name, from now on. Raises ``SetupError`` with the broker's last log lines.
        """

    @property
    def changeable(self) -> frozenset[str]:
        """Names of ``SETTINGS`` that ``start_again`` can change; any other is a ``SetupError``."""

    @property
    def running(self) -> bool:
        """Whether the process lives, paused or not."""
