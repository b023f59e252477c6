"""Which consumers are subscribed right now, as the tap on the client's side saw it."""

from __future__ import annotations

from harness.history.event import Event


class Attachments:
    """An observer of the recorder. A consumer that waits for its reconnect is silent, but it is not drained."""

    def __init__(self) -> None:
        self._connection_of: dict[str, str] = {}

    def observe(self, event: Event) -> None:
        if event.layer != "tap.client":
            return
        if event.kind == "CONNECTION_CLOSED":
            for consumer, connection in list(self._connection_of.items()):
                if connection == event.connection:
                    del self._connection_of[consumer]
        elif event.consumer is None or event.connection is None:
            return
        elif event.kind == "SUCCESS" and event.extra.get("request") == "SUBSCRIBE":
            self._connection_of[event.consumer] = event.connection
        elif event.kind == "CLOSE_CONSUMER":
            self._connection_of.pop(event.consumer, None)

    def attached(self, consumer: str) -> bool:
        """Whether the consumer of that name has a confirmed subscription on a connection that lives."""
        return consumer in self._connection_of
