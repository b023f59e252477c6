"""The reference broker as if it were a process: what a kill, a stop, a pause and a start do to sockets and state."""

from __future__ import annotations

from harness.setup_error import SetupError
from harness.systems.broker_process import Settings
from harness.systems.reference_server import ReferenceServer

CHANGEABLE = frozenset({"ledger_max_entries", "max_message_size"})
"""Ledgers of the machine are limited by entries only, and deduplication is switched by its admin service."""


class ReferenceProcess:
    """Satisfies ``harness.systems.broker_process.BrokerProcess``."""

    changeable = CHANGEABLE

    def __init__(self, server: ReferenceServer) -> None:
        self._server = server

    @property
    def running(self) -> bool:
        return not self._server.down

    async def kill(self) -> None:
        if self.running:
            await self._server.go_down(in_good_order=False)

    async def terminate(self) -> None:
        if self.running:
            self._server.resume()
            await self._server.go_down(in_good_order=True)

    async def pause(self) -> None:
        if self.running:
            self._server.pause()

    async def resume(self) -> None:
        if self.running:
            self._server.resume()

    async def start_again(self, settings: Settings | None = None) -> None:
        """Raises ``SetupError``, with nothing done, for a setting that is not ``changeable``."""
        wanted = dict(settings or {})
        if unknown := sorted(wanted.keys() - CHANGEABLE):
            raise SetupError(f"the reference broker has no setting {', '.join(unknown)}")
        await self.terminate()
        self._server.machine.reconfigure(
            max_entries_per_ledger=_number(wanted.get("ledger_max_entries")),
            max_message_size=_number(wanted.get("max_message_size")),
        )
        try:
            await self._server.come_up()
        except OSError as error:
            raise SetupError(f"the reference broker cannot listen on its port again: {error}") from error


def _number(value: int | bool | str | None) -> int | None:
    return None if value is None else int(value)
