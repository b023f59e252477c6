"""What the broker tells an administrator of a topic: its own accounts, nothing recounted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.reference.broker.consumer import Consumer
from harness.wire.message_id import Position
from harness.wire.pulsar_pb2 import CommandSubscribe

if TYPE_CHECKING:
    from harness.reference.broker.subscription import Subscription
    from harness.reference.broker.topic import Topic

SHARED_KINDS = (CommandSubscribe.Shared, CommandSubscribe.Key_Shared)


@dataclass(frozen=True, slots=True)
class ConsumerAccount:
    """``permits``: messages it may still be sent, below zero after a batch that was larger than what was left."""

    name: str
    permits: int
    unacked: int
    blocked: bool


@dataclass(frozen=True, slots=True)
class CursorAccount:
    """``mark_delete`` None: nothing acknowledged from the start. Ranges are inclusive and never cross a ledger.

    ``read`` is the position of the next entry to read; None while there is no such entry.
    """

    mark_delete: Position | None
    individually_deleted: tuple[tuple[int, int, int], ...]
    backlog: int
    read: Position | None


class Statistics:
    """Of one topic, now. Counts are messages, the backlog is entries, sizes are bytes of metadata and payload."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic

    def kind(self, subscription: Subscription) -> str:
        """``exclusive``, ``failover``, ``shared``, ``key_shared``."""
        return CommandSubscribe.SubType.Name(subscription.type).lower()

    def consumers(self, subscription: Subscription) -> list[ConsumerAccount]:
        """In the dispatcher's order. Only shared kinds are charged for what is unacknowledged (FLOW-05)."""
        return [self.consumer(subscription, consumer) for consumer in subscription.dispatcher.consumers]

    def consumer(self, subscription: Subscription, consumer: Consumer) -> ConsumerAccount:
        limit = subscription.core.config.max_unacked_per_consumer
        shared = subscription.type in SHARED_KINDS
        return ConsumerAccount(
            consumer.name,
            consumer.permits.available,
            consumer.unacked if shared else 0,
            shared and consumer.unacked >= limit,
        )

    def unacked(self, subscription: Subscription) -> int:
        return sum(account.unacked for account in self.consumers(subscription))

    def cursor(self, subscription: Subscription) -> CursorAccount:
        cursor, ledgers = subscription.cursor, self.topic.ledgers
        entries = ledgers.entries
        mark = None if cursor.mark_delete < 0 else entries[cursor.mark_delete]
        read = subscription.dispatcher.read
        return CursorAccount(
            None if mark is None else Position(mark.ledger, mark.entry),
            tuple(part for first, last in cursor.ranges.all() for part in ledgers.spans(first, last)),
            cursor.unacked_before(len(entries)),
            Position(entries[read].ledger, entries[read].entry) if 0 <= read < len(entries) else None,
        )

    def ledgers(self) -> list[tuple[int, int, int]]:
        """(ledger, entries, size) in order, of those that hold anything."""
        counts: Counter[int] = Counter()
        sizes: Counter[int] = Counter()
        for entry in self.topic.ledgers.entries:
            counts[entry.ledger] += 1
            sizes[entry.ledger] += len(entry.body)
        return [(ledger, counts[ledger], sizes[ledger]) for ledger in counts]

    def last_confirmed(self) -> Position | None:
        entries = self.topic.ledgers.entries
        return Position(entries[-1].ledger, entries[-1].entry) if entries else None

    def deduplication(self) -> bool:
        return self.topic.dedup_enabled
