"""The open connections of one client handle: one for each logical broker (clauses CONN-01 to CONN-03)."""

from __future__ import annotations

from harness.reference.client.connection import Connection
from harness.reference.client.failure import Failure
from harness.reference.client.runtime import Runtime


class ConnectionPool:
    """Connections by logical and physical address (clause CONN-02). A dead one leaves before anybody hears of it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._connections: dict[tuple[str, str], Connection] = {}

    def get(self, logical: str, physical: str) -> Connection:
        """The connection to ``logical`` through ``physical``; dialled when there is none."""
        key = (logical, physical)
        connection = self._connections.get(key)
        if connection is None:
            proxy_to = None if logical == physical else logical
            connection = Connection(self._runtime, physical, proxy_to, lambda closed: self._forget(key, closed))
            self._connections[key] = connection
        return connection

    def by_id(self, connection_id: int) -> Connection | None:
        """The live connection with that number."""
        for connection in self._connections.values():
            if connection.id == connection_id:
                return connection
        return None

    def close_all(self, failure: Failure) -> None:
        """Close every connection; everybody on them hears ``failure``."""
        for connection in list(self._connections.values()):
            connection.close(failure)

    def _forget(self, key: tuple[str, str], closed: Connection) -> None:
        # CONN-03: a late clean-up must not evict the connection that took the slot since.
        if self._connections.get(key) is closed:
            del self._connections[key]
