"""Which members of a batch reach the application (clauses ACK-BATCH-02, RECV-07, CORR-05)."""

from __future__ import annotations

from collections.abc import Iterable

from harness.reference.client.ack_set import from_words
from harness.wire.batch import SingleMessage, unpack


class BatchSplitter:
    """Takes a decompressed batch apart."""

    def members(self, payload: bytes, count: int, ack_set: Iterable[int]) -> list[tuple[int, SingleMessage]]:
        """Index and content of each member to deliver, in order.

        ``ack_set`` is that of the MESSAGE. Raises ``WireError`` before anything is delivered when the payload is not
        ``count`` members.
        """
        wanted = self.wanted(count, ack_set)
        return [
            (index, member)
            for index, member in enumerate(unpack(payload, count))
            if index in wanted and not member.metadata.compacted_out
        ]

    def wanted(self, count: int, ack_set: Iterable[int]) -> set[int]:
        """Members the broker still counts as not acknowledged."""
        return from_words(ack_set, count)
