"""What all dispatchers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.reference.broker.consumer import Consumer
from harness.reference.broker.cursor import Cursor
from harness.reference.broker.stored_entry import StoredEntry

if TYPE_CHECKING:
    from harness.reference.broker.subscription import Subscription


class Dispatcher(ABC):
    """Decides which consumer gets which entry, and when. ``read`` is the offset of the next entry not read yet."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.consumers: list[Consumer] = []
        self.read = subscription.cursor.next_unacked(0)

    @property
    def cursor(self) -> Cursor:
        return self.subscription.cursor

    @property
    def entries(self) -> Sequence[StoredEntry]:
        return self.subscription.topic.ledgers.entries

    def remaining(self, offset: int) -> int:
        """Bits of the messages of the entry that are not acknowledged; a plain message has one bit."""
        return self.cursor.remaining(offset, self.entries[offset].num_messages)

    def rewind(self) -> None:
        """Starts over at the first entry that is not acknowledged (DISPATCH-03)."""
        self.read = self.cursor.next_unacked(0)

    @abstractmethod
    def admits(self, consumer: Consumer) -> Consumer | None:
        """None, or the consumer whose presence forbids this one (unless its connection turns out dead)."""

    @abstractmethod
    def add(self, consumer: Consumer) -> None:
        """Raises ``Refusal``; nothing is changed then. Sends nothing."""

    @abstractmethod
    def joined(self, consumer: Consumer) -> None:
        """The consumer that was added knows now that it is subscribed."""

    @abstractmethod
    def remove(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def pump(self) -> None:
        """Sends whatever can be sent now."""

    @abstractmethod
    def redeliver(self, consumer: Consumer, offsets: Sequence[int] | None) -> None:
        """``offsets`` None: everything this consumer has not acknowledged."""

    @abstractmethod
    def acked(self, offset: int) -> None:
        """The cursor has taken an acknowledgement of this entry, maybe of a part of it."""

    @abstractmethod
    def acks_applied(self) -> None:
        """All ids of one ACK have been taken."""

    @abstractmethod
    def may_unsubscribe(self, consumer: Consumer) -> bool: ...
