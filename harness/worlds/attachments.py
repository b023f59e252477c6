"""What the tap on the client's side says of consumers right now: who is subscribed, and what each still has in hand."""

from __future__ import annotations

from harness.history.event import Event
from harness.invariants.acknowledged import acked_ids

Entry = tuple[int, int]


class Attachments:
    """An observer of the recorder. A consumer that waits for its reconnect is silent, but it is not drained."""

    def __init__(self) -> None:
        self._connection_of: dict[str, str] = {}
        self._confirmed: dict[str, int] = {}
        self._counts: dict[str, dict[Entry, int]] = {}

    def observe(self, event: Event) -> None:
        if event.layer != "tap.client":
            return
        if event.kind == "CONNECTION_CLOSED":
            for consumer, connection in list(self._connection_of.items()):
                if connection == event.connection:
                    self._left(consumer)
        elif event.consumer is None or event.connection is None:
            return
        elif event.kind == "SUCCESS" and event.extra.get("request") == "SUBSCRIBE":
            self._connection_of[event.consumer] = event.connection
            self._confirmed[event.consumer] = self._confirmed.get(event.consumer, 0) + 1
        elif event.kind == "CLOSE_CONSUMER":
            self._left(event.consumer)
        elif event.kind == "MESSAGE" and event.ledger_id is not None and event.entry_id is not None:
            counts = self._counts.setdefault(event.consumer, {})
            counts[event.ledger_id, event.entry_id] = event.redelivery_count or 0
        elif event.kind == "ACK":
            for acked in acked_ids(event):
                self._counts.get(event.consumer, {}).pop(acked.position, None)

    def _left(self, consumer: str) -> None:
        self._connection_of.pop(consumer, None)
        self._counts.pop(consumer, None)

    def attached(self, consumer: str) -> bool:
        """Whether the consumer of that name has a confirmed subscription on a connection that lives."""
        return consumer in self._connection_of

    def attachment(self, consumer: str) -> int | None:
        """The number of its present subscription among those confirmed so far, from 1 on; None while it has none."""
        return self._confirmed[consumer] if consumer in self._connection_of else None

    def exhausted(self, consumer: str, most: int) -> bool:
        """Whether the consumer holds an entry that came ``most`` times again or more, and has not acknowledged it.

        With a dead-letter policy of so many redeliveries, such an entry is on its way to the dead-letter topic.
        """
        return any(count >= most for count in self._counts.get(consumer, {}).values())
