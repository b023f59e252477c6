"""Which messages travel in one entry (clauses BATCH-01, BATCH-03, PACK-01, PACK-02)."""

from __future__ import annotations

from harness.reference.client.outgoing import Outgoing

#: Size prefix and fields of a member's header that do not depend on the application.
_MEMBER_OVERHEAD = 32


class BatchBuilder:
    """The open batch. ``max_delay`` is nanoseconds from the first member; 0 for a cap on bytes means none.

    ``max_bytes`` caps the application's bytes, a lone larger message apart; ``set_message_limit`` what the whole
    entry may hold.
    """

    def __init__(self, max_messages: int, max_bytes: int, max_delay: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.max_delay = max_delay
        self._message_limit = 0
        self._members: list[Outgoing] = []
        self._bytes = 0
        self._size = 0
        self._suspects = False

    def __len__(self) -> int:
        return len(self._members)

    def set_message_limit(self, limit: int) -> None:
        """Bytes the broker takes in one entry."""
        self._message_limit = limit

    @property
    def oldest(self) -> Outgoing | None:
        """The first member."""
        return self._members[0] if self._members else None

    def takes(self, message: Outgoing, last_pushed: int) -> bool:
        """Whether ``message`` may join the open batch; otherwise the batch leaves first and the message opens the next.

        ``last_pushed`` is the highest id this producer has put into its queue.
        """
        if not self._members:
            return True
        return self._fits(message) and self._is_of_same_kind(message, last_pushed)

    def _fits(self, message: Outgoing) -> bool:
        if len(self._members) >= self.max_messages:
            return False
        if self.max_bytes and self._bytes + len(message.payload) > self.max_bytes:
            return False
        return not self._message_limit or self._size + member_size(message) <= self._message_limit

    def _is_of_same_kind(self, message: Outgoing, last_pushed: int) -> bool:
        """BATCH-03: a broker judges a batch as a whole, so suspected duplicates and fresh messages do not mix.

        Ids inside a batch rise, so that its lowest and highest are its first and last.
        """
        if message.sequence_id <= self._members[-1].sequence_id:
            return False
        return self.is_suspect(message, last_pushed) == self._suspects

    @staticmethod
    def is_suspect(message: Outgoing, last_pushed: int) -> bool:
        """Whether the broker may have seen this id before."""
        return message.sequence_id <= last_pushed

    def add(self, message: Outgoing, last_pushed: int) -> None:
        """Append a message that ``takes`` admitted."""
        if not self._members:
            self._suspects = self.is_suspect(message, last_pushed)
        self._members.append(message)
        self._bytes += len(message.payload)
        self._size += member_size(message)

    @property
    def is_full(self) -> bool:
        """Whether a cap is reached, so that the batch leaves at once."""
        return len(self._members) >= self.max_messages or bool(self.max_bytes and self._bytes >= self.max_bytes)

    def take(self) -> list[Outgoing]:
        """The members in order; the next batch is empty."""
        members, self._members = self._members, []
        self._bytes = self._size = 0
        return members


def member_size(message: Outgoing) -> int:
    """Upper bound of what ``message`` takes inside a batch, in bytes."""
    texts = [message.key or "", *message.properties.keys(), *message.properties.values()]
    return len(message.payload) + _MEMBER_OVERHEAD + sum(8 + len(text.encode()) for text in texts)
