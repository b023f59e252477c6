"""Messages that wait for a receive, and receives that wait for a message (clauses RECV-01, RECV-02, CONSUME-01)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from harness.reference.client.delivery import Delivery
from harness.wire.message_id import Position

Waiter = Callable[[Delivery], None]


class ReceiveQueue:
    """At most one of the two sides is non-empty. Both are first come, first served."""

    def __init__(self) -> None:
        self._messages: deque[Delivery] = deque()
        self._waiters: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, delivery: Delivery) -> None:
        """Hand it to the oldest waiter, or keep it."""
        if self._waiters:
            self._waiters.popleft()(delivery)
        else:
            self._messages.append(delivery)

    def take(self) -> Delivery | None:
        """The oldest message."""
        return self._messages.popleft() if self._messages else None

    def wait(self, waiter: Waiter) -> None:
        """Be called with a message that ``put`` brings."""
        self._waiters.append(waiter)

    def stop_waiting(self, waiter: Waiter) -> None:
        """It gave up; messages that come later stay (clause RECV-03)."""
        self._waiters.remove(waiter)

    def remove_entries(self, entries: Collection[Position]) -> int:
        """Drop the messages of these entries; how many there were."""
        before = len(self._messages)
        self._messages = deque(delivery for delivery in self._messages if delivery.position not in entries)
        return before - len(self._messages)

    def clear(self, up_to_epoch: int | None = None) -> int:
        """Drop every message, or those of an epoch up to ``up_to_epoch``; how many there were."""
        before = len(self._messages)
        kept = () if up_to_epoch is None else (d for d in self._messages if d.epoch > up_to_epoch)
        self._messages = deque(kept)
        return before - len(self._messages)
