"""Brokers that break a promise between the stored entry and the consumer: dispatch, acknowledgement, redelivery."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reference.broker.consumer import Consumer
from harness.reference.broker.cursor import Cursor
from harness.reference.broker.permits import Permits
from harness.reference.broker.redelivery_counts import RedeliveryCounts
from harness.reference.broker.shared import SharedDispatcher
from harness.reference.broker.single_active import SingleActiveDispatcher
from harness.reference.broker.stored_entry import StoredEntry
from harness.reference.mutants.mutant import Mutant


class AcksOneTooMany(Cursor):
    def ack_through(self, offset: int) -> None:
        super().ack_through(offset + 1)


class AcksOneTooFew(Cursor):
    def ack_through(self, offset: int) -> None:
        super().ack_through(offset - 1)


class MovesMarkBack(Cursor):
    def ack_through(self, offset: int) -> None:
        if offset < self.mark_delete:
            self.mark_delete = offset
            return
        super().ack_through(offset)


class IgnoresHoles(Cursor):
    def ack(self, offset: int) -> None:
        super().ack(offset)
        self.ack_through(offset)


class LosesAcks(Cursor):
    def ack(self, offset: int) -> None:
        if offset % 3 != 1:
            super().ack(offset)


class ReplacesBits(Cursor):
    def _intersect(self, stored: int, incoming: int) -> int:
        return incoming


class AcksWholeBatch(Cursor):
    def ack_batch(self, offset: int, unacked: int, size: int) -> None:
        self.ack(offset)


class IgnoresPermits(Permits):
    def allow(self) -> bool:
        return True


class SwapsNeighbours(SingleActiveDispatcher):
    """Every second pair of entries leaves in the wrong order."""

    _kept: tuple[Consumer, int] | None = None

    def pump(self) -> None:
        consumer = self.active
        while consumer is not None and self._takeover is None and consumer.permits.allow():
            offset = self.cursor.next_unacked(self.read)
            if offset + 1 < len(self.entries) and offset % 4 == 0:
                self.read = offset + 2
                for place in (offset + 1, offset):
                    consumer.deliver(self.entries[place], self.remaining(place), 0)
            elif offset < len(self.entries):
                self.read = offset + 1
                consumer.deliver(self.entries[offset], self.remaining(offset), 0)
            else:
                return


class SkipsAfterRewind(SingleActiveDispatcher):
    def rewind(self) -> None:
        super().rewind()
        self.read += 1


class ReplaysAcknowledged(SingleActiveDispatcher):
    def rewind(self) -> None:
        super().rewind()
        for consumer in self.consumers[:1]:
            for offset in range(min(2, self.cursor.mark_delete + 1)):
                stored = self.entries[offset]
                consumer.deliver(stored, (1 << stored.num_messages) - 1, 0)


class AdmitsSecondExclusive(SingleActiveDispatcher):
    def admits(self, consumer: Consumer) -> Consumer | None:
        return None


class DeliversAnotherBody(Consumer):
    _last: bytes | None = None

    def deliver(self, stored: StoredEntry, remaining: int, redelivery_count: int) -> None:
        body = self._last if self._last is not None and stored.entry % 5 == 4 else stored.body
        self._last = stored.body
        changed = StoredEntry(
            stored.ledger,
            stored.entry,
            stored.producer,
            stored.sequence_id,
            stored.highest_sequence_id,
            stored.num_messages,
            stored.metadata,
            stored.payload,
            body,
        )
        super().deliver(changed, remaining, redelivery_count)


class SpreadsPieces(SharedDispatcher):
    def _pinned(self, stored: StoredEntry) -> Consumer | None:
        return self._next_consumer()


class CountsNothing(RedeliveryCounts):
    def named(self, offset: int) -> None:
        pass


class CountsDouble(RedeliveryCounts):
    def named(self, offset: int) -> None:
        super().named(offset)
        super().named(offset)


class StartsCountingAtOne(RedeliveryCounts):
    def get(self, offset: int) -> int:
        return super().get(offset) + 1


class IgnoresRedeliver(SharedDispatcher):
    def redeliver(self, consumer: Consumer, offsets: Sequence[int] | None) -> None:
        pass


class RedeliversEverything(SharedDispatcher):
    def redeliver(self, consumer: Consumer, offsets: Sequence[int] | None) -> None:
        super().redeliver(consumer, None)


class SendsAcknowledgedAgain(SharedDispatcher):
    def acks_applied(self) -> None:
        super().acks_applied()
        for consumer in self.consumers:
            if self.cursor.mark_delete >= 0 and self._ready(consumer):
                offset = self.cursor.mark_delete
                consumer.deliver(self.entries[offset], 1, self.counts.get(offset))
                return


MUTANTS = (
    Mutant(
        name="broker-acks-one-too-many",
        family="acks",
        side="broker",
        breaks="A cumulative acknowledgement takes the next entry with it.",
        parts={"cursor": AcksOneTooMany},
    ),
    Mutant(
        name="broker-acks-one-too-few",
        family="acks",
        side="broker",
        breaks="A cumulative acknowledgement leaves its own entry unacknowledged.",
        parts={"cursor": AcksOneTooFew},
    ),
    Mutant(
        name="broker-moves-mark-delete-back",
        family="acks",
        side="broker",
        breaks="An older cumulative acknowledgement moves mark-delete back.",
        parts={"cursor": MovesMarkBack},
    ),
    Mutant(
        name="broker-ignores-holes",
        family="acks",
        side="broker",
        breaks="An individual acknowledgement takes every entry before it along.",
        parts={"cursor": IgnoresHoles},
    ),
    Mutant(
        name="broker-loses-acks",
        family="acks",
        side="broker",
        breaks="Individual acknowledgements of some entries are not applied.",
        parts={"cursor": LosesAcks},
    ),
    Mutant(
        name="broker-replaces-batch-bits",
        family="acks",
        side="broker",
        breaks="A second partial acknowledgement of a batch undoes the first.",
        parts={"cursor": ReplacesBits},
    ),
    Mutant(
        name="broker-acks-whole-batch",
        family="acks",
        side="broker",
        breaks="Acknowledging one message of a batch acknowledges all of it.",
        parts={"cursor": AcksWholeBatch},
    ),
    Mutant(
        name="broker-skips-after-rewind",
        family="acks",
        side="broker",
        breaks="After a reconnect the first unacknowledged entry is not sent again.",
        parts={"single_active": SkipsAfterRewind},
    ),
    Mutant(
        name="broker-replays-acknowledged",
        family="acks",
        side="broker",
        breaks="Entries below mark-delete are sent again after a rewind.",
        parts={"single_active": ReplaysAcknowledged},
    ),
    Mutant(
        name="broker-swaps-neighbours",
        family="acks",
        side="broker",
        breaks="Two neighbouring entries are sent in the wrong order.",
        parts={"single_active": SwapsNeighbours},
    ),
    Mutant(
        name="broker-admits-second-exclusive",
        family="acks",
        side="broker",
        breaks="A second consumer is let into an Exclusive subscription.",
        parts={"single_active": AdmitsSecondExclusive},
    ),
    Mutant(
        name="broker-ignores-permits",
        family="acks",
        side="broker",
        breaks="Messages are sent beyond the permits granted.",
        parts={"permits": IgnoresPermits},
    ),
    Mutant(
        name="broker-delivers-another-body",
        family="acks",
        side="broker",
        breaks="A consumer is sent other bytes under a message id than were published.",
        parts={"consumer": DeliversAnotherBody},
    ),
    Mutant(
        name="broker-spreads-pieces",
        family="chunks",
        side="broker",
        breaks="Pieces of one chunked message go to different Shared consumers.",
        parts={"shared": SpreadsPieces},
    ),
    Mutant(
        name="broker-counts-no-redeliveries",
        family="dead_letter",
        side="broker",
        breaks="The redelivery count stays 0 however often an entry is asked for again.",
        parts={"redelivery_counts": CountsNothing},
    ),
    Mutant(
        name="broker-counts-redeliveries-double",
        family="dead_letter",
        side="broker",
        breaks="One REDELIVER raises the count by two.",
        parts={"redelivery_counts": CountsDouble},
    ),
    Mutant(
        name="broker-starts-counting-at-one",
        family="dead_letter",
        side="broker",
        breaks="The first delivery already carries a redelivery count.",
        parts={"redelivery_counts": StartsCountingAtOne},
    ),
    Mutant(
        name="broker-ignores-redeliver",
        family="dead_letter",
        side="broker",
        breaks="What was negatively acknowledged never comes again.",
        parts={"shared": IgnoresRedeliver},
    ),
    Mutant(
        name="broker-redelivers-everything",
        family="dead_letter",
        side="broker",
        breaks="REDELIVER of one entry redelivers, and counts, everything the consumer holds.",
        parts={"shared": RedeliversEverything},
    ),
    Mutant(
        name="broker-sends-acknowledged-again",
        family="dead_letter",
        side="broker",
        breaks="An acknowledged entry is sent once more to a Shared consumer.",
        parts={"shared": SendsAcknowledgedAgain},
    ),
)
