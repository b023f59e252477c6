"""Brokers that break a promise between the stored entry and the consumer: dispatch, acknowledgement, redelivery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.reference.broker import answers
from harness.reference.broker.consumer import Consumer
from harness.reference.broker.cursor import Cursor
from harness.reference.broker.key_shared import KeySharedDispatcher
from harness.reference.broker.permits import Permits
from harness.reference.broker.redelivery_counts import RedeliveryCounts
from harness.reference.broker.shared import SharedDispatcher
from harness.reference.broker.single_active import SingleActiveDispatcher
from harness.reference.broker.stored_entry import StoredEntry
from harness.reference.broker.subscription import Subscription
from harness.reference.mutants.mutant import Mutant
from harness.wire.frame import Frame, encode
from harness.wire.pulsar_pb2 import MessageIdData, MessageMetadata


class AcksOneTooMany(Subscription):
    def _ack_through(self, given: MessageIdData) -> None:
        super()._ack_through(given)
        self.cursor.ack_through(min(self.cursor.mark_delete + 1, len(self.topic.ledgers) - 1))


class AcksOneTooFew(Cursor):
    def ack_through(self, offset: int) -> None:
        super().ack_through(offset - 1)


class ObeysStaleAcks(Cursor):
    def ack_through(self, offset: int) -> None:
        if offset < self.mark_delete:
            self.mark_delete = offset
            return
        super().ack_through(offset)


class IgnoresHoles(Cursor):
    def ack(self, offset: int) -> None:
        super().ack(offset)
        self.ack_through(offset)


class MovesMarkBack(Subscription):
    def detach(self, consumer: Consumer) -> None:
        super().detach(consumer)
        self.cursor.mark_delete = max(-1, self.cursor.mark_delete - 1)


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
    _replay = 0

    def rewind(self) -> None:
        super().rewind()
        self._replay = min(2, self.cursor.mark_delete + 1)

    def pump(self) -> None:
        consumer = self.active
        while consumer is not None and self._takeover is None and self._replay and consumer.permits.allow():
            stored = self.entries[self.cursor.mark_delete + 1 - self._replay]
            self._replay -= 1
            consumer.deliver(stored, (1 << stored.num_messages) - 1, 0)
        super().pump()


class AdmitsSecondExclusive(SingleActiveDispatcher):
    def admits(self, consumer: Consumer) -> Consumer | None:
        return None


class DeliversAnotherBody(Consumer):
    _last: bytes | None = None

    def deliver(self, stored: StoredEntry, remaining: int, redelivery_count: int) -> None:
        body = self._last if self._last is not None and stored.entry % 5 == 4 else stored.body
        self._last = stored.body
        super().deliver(replace(stored, body=body), remaining, redelivery_count)


class ChangesPublishTime(Consumer):
    def deliver(self, stored: StoredEntry, remaining: int, redelivery_count: int) -> None:
        metadata = MessageMetadata()
        metadata.CopyFrom(stored.metadata)
        metadata.publish_time += 1
        raw = encode(Frame(answers.ping(), metadata, stored.payload))
        body = raw[8 + int.from_bytes(raw[4:8], "big") :]
        super().deliver(replace(stored, body=body), remaining, redelivery_count)


class HidesFirstMember(SingleActiveDispatcher):
    def remaining(self, offset: int) -> int:
        remaining = super().remaining(offset)
        return remaining & ~1 if self.entries[offset].is_batch and offset % 2 == 0 else remaining


class SkipsEntries(SharedDispatcher):
    def _next(self) -> int | None:
        offset = super()._next()
        return super()._next() if offset is not None and offset % 5 == 3 else offset


class SkipsPieces(SingleActiveDispatcher):
    def wants(self, consumer: Consumer, stored: StoredEntry) -> bool:
        return super().wants(consumer, stored) and stored.metadata.chunk_id != 1


class ForgetsTheDeparted(SharedDispatcher):
    def remove(self, consumer: Consumer) -> None:
        for offset in list(consumer.pending):
            self._release(consumer, offset)
        super().remove(consumer)


class SendsToTwo(SharedDispatcher):
    def _send(self, consumer: Consumer, offset: int, stored: StoredEntry) -> None:
        super()._send(consumer, offset, stored)
        for other in self.consumers:
            if other is not consumer and self._ready(other):
                other.deliver(stored, self.remaining(offset), self.counts.get(offset))


class SpreadsKeys(KeySharedDispatcher):
    def _assign(self, offset: int, stored: StoredEntry) -> Consumer | None:
        return self._next_consumer()


class PushesBeforeFlow(Permits):
    def __init__(self) -> None:
        super().__init__()
        self.available = 1


class ChargesBatchesNothing(Permits):
    def charge(self, messages: int) -> None:
        super().charge(messages if messages == 1 else 0)


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
        expected=("ACK-CUM-01",),
        shown_by="acks-cumulative",
        parts={"subscription": AcksOneTooMany},
    ),
    Mutant(
        name="broker-acks-one-too-few",
        family="acks",
        side="broker",
        breaks="A cumulative acknowledgement leaves its own entry unacknowledged.",
        expected=("C5",),
        shown_by="acks-batch-cumulative-plain",
        parts={"cursor": AcksOneTooFew},
    ),
    Mutant(
        name="broker-obeys-stale-acks",
        family="acks",
        side="broker",
        breaks="An older cumulative acknowledgement moves mark-delete back.",
        expected=("ACK-CUM-03",),
        shown_by="acks-stale-cumulative",
        parts={"cursor": ObeysStaleAcks},
    ),
    Mutant(
        name="broker-moves-mark-delete-back",
        family="acks",
        side="broker",
        breaks="Mark-delete moves back by an entry when a consumer leaves.",
        expected=("C2",),
        shown_by="acks-batch-small-queue",
        parts={"subscription": MovesMarkBack},
    ),
    Mutant(
        name="broker-ignores-holes",
        family="acks",
        side="broker",
        breaks="An individual acknowledgement takes every entry before it along.",
        expected=("C4",),
        shown_by="acks-individual",
        parts={"cursor": IgnoresHoles},
    ),
    Mutant(
        name="broker-loses-acks",
        family="acks",
        side="broker",
        breaks="Individual acknowledgements of some entries are not applied.",
        expected=("ACK-25",),
        shown_by="acks-batch-cumulative-plain",
        parts={"cursor": LosesAcks},
    ),
    Mutant(
        name="broker-replaces-batch-bits",
        family="acks",
        side="broker",
        breaks="A second partial acknowledgement of a batch undoes the first.",
        expected=("C7",),
        shown_by="acks-batch-shared-stale-bits",
        parts={"cursor": ReplacesBits},
    ),
    Mutant(
        name="broker-acks-whole-batch",
        family="acks",
        side="broker",
        breaks="Acknowledging one message of a batch acknowledges all of it.",
        expected=("MARKDEL-03",),
        shown_by="acks-batch-cumulative",
        parts={"cursor": AcksWholeBatch},
    ),
    Mutant(
        name="broker-skips-after-rewind",
        family="acks",
        side="broker",
        breaks="After a reconnect the first unacknowledged entry is not sent again.",
        expected=("DISPATCH-03",),
        shown_by="acks-mixed",
        parts={"single_active": SkipsAfterRewind},
    ),
    Mutant(
        name="broker-replays-acknowledged",
        family="acks",
        side="broker",
        breaks="Entries below mark-delete are sent again after a rewind.",
        expected=("C5", "ACK-25"),
        shown_by="acks-batch-cumulative-plain",
        parts={"single_active": ReplaysAcknowledged},
    ),
    Mutant(
        name="broker-swaps-neighbours",
        family="acks",
        side="broker",
        breaks="Two neighbouring entries are sent in the wrong order.",
        expected=("DISPATCH-02",),
        shown_by="acks-batch-index",
        parts={"single_active": SwapsNeighbours},
    ),
    Mutant(
        name="broker-admits-second-exclusive",
        family="acks",
        side="broker",
        breaks="A second consumer is let into an Exclusive subscription.",
        expected=("DISPATCH-01",),
        shown_by="acks-second-exclusive-later",
        parts={"single_active": AdmitsSecondExclusive},
    ),
    Mutant(
        name="broker-ignores-permits",
        family="acks",
        side="broker",
        breaks="Messages are sent beyond the permits granted.",
        expected=("PERMIT-01",),
        shown_by="acks-after-redelivery-request",
        parts={"permits": IgnoresPermits},
    ),
    Mutant(
        name="broker-delivers-another-body",
        family="acks",
        side="broker",
        breaks="A consumer is sent other bytes under a message id than were published.",
        expected=("LEDGER-04",),
        shown_by="acks-batch-small-queue",
        parts={"consumer": DeliversAnotherBody},
    ),
    Mutant(
        name="broker-changes-publish-time",
        family="acks",
        side="broker",
        breaks="Messages are delivered with another publish time than they were published with.",
        expected=("DISPATCH-04",),
        shown_by="acks-after-redelivery-request",
        parts={"consumer": ChangesPublishTime},
    ),
    Mutant(
        name="broker-hides-first-member",
        family="acks",
        side="broker",
        breaks="A batch is sent with a member marked as acknowledged that nobody acknowledged.",
        expected=("ACK-BATCH-01",),
        shown_by="acks-batch-cumulative-plain",
        parts={"single_active": HidesFirstMember},
    ),
    Mutant(
        name="broker-skips-entries",
        family="acks",
        side="broker",
        breaks="Some entries are never sent to a Shared subscription.",
        expected=("CONS-12",),
        shown_by="acks-shared-departed",
        parts={"shared": SkipsEntries},
    ),
    Mutant(
        name="broker-forgets-the-departed",
        family="acks",
        side="broker",
        breaks="What a Shared consumer held when it left is not handed to the others.",
        expected=("UNACK-16",),
        shown_by="acks-shared-departed",
        parts={"shared": ForgetsTheDeparted},
    ),
    Mutant(
        name="broker-sends-to-two",
        family="acks",
        side="broker",
        breaks="Entries of a Shared subscription are sent to two consumers.",
        expected=("DISP-02",),
        shown_by="acks-same-consumer-id",
        parts={"shared": SendsToTwo},
    ),
    Mutant(
        name="broker-spreads-keys",
        family="acks",
        side="broker",
        breaks="Entries of one key go to several Key_Shared consumers at once.",
        expected=("KEYSHARED-01",),
        shown_by="acks-key-shared-join",
        parts={"key_shared": SpreadsKeys},
    ),
    Mutant(
        name="broker-pushes-before-flow",
        family="acks",
        side="broker",
        breaks="A consumer is sent a message before it granted any permit.",
        expected=("FLOW-01",),
        shown_by="acks-after-redelivery-request",
        parts={"permits": PushesBeforeFlow},
    ),
    Mutant(
        name="broker-charges-batches-nothing",
        family="acks",
        side="broker",
        breaks="Batches take no permits, so more entries are sent than were granted.",
        expected=("FLOW-02",),
        shown_by="acks-batch-small-queue",
        parts={"permits": ChargesBatchesNothing},
    ),
    Mutant(
        name="broker-skips-pieces",
        family="chunks",
        side="broker",
        breaks="A piece of a chunked message is never sent to the consumer.",
        expected=("K8",),
        shown_by="chunks-evicted",
        parts={"single_active": SkipsPieces},
    ),
    Mutant(
        name="broker-spreads-pieces",
        family="chunks",
        side="broker",
        breaks="Pieces of one chunked message go to different Shared consumers.",
        expected=("CHUNK-08",),
        shown_by="chunks-shared",
        parts={"shared": SpreadsPieces},
    ),
    Mutant(
        name="broker-counts-no-redeliveries",
        family="dead_letter",
        side="broker",
        breaks="The redelivery count stays 0 however often an entry is asked for again.",
        expected=("REDEL-02",),
        shown_by="dead_letter-batch-acked-members",
        parts={"redelivery_counts": CountsNothing},
    ),
    Mutant(
        name="broker-counts-redeliveries-double",
        family="dead_letter",
        side="broker",
        breaks="One REDELIVER raises the count by two.",
        expected=("Q1",),
        shown_by="dead_letter-batch-acked-members",
        parts={"redelivery_counts": CountsDouble},
    ),
    Mutant(
        name="broker-starts-counting-at-one",
        family="dead_letter",
        side="broker",
        breaks="The first delivery already carries a redelivery count.",
        expected=("Q1",),
        shown_by="dead_letter-batch-acked-members",
        parts={"redelivery_counts": StartsCountingAtOne},
    ),
    Mutant(
        name="broker-ignores-redeliver",
        family="dead_letter",
        side="broker",
        breaks="What was negatively acknowledged never comes again.",
        expected=("REDEL-01",),
        shown_by="dead_letter-nack-delay",
        parts={"shared": IgnoresRedeliver},
    ),
    Mutant(
        name="broker-redelivers-everything",
        family="dead_letter",
        side="broker",
        breaks="REDELIVER of one entry redelivers, and counts, everything the consumer holds.",
        expected=("UNACK-01",),
        shown_by="dead_letter-unsettled",
        parts={"shared": RedeliversEverything},
    ),
    Mutant(
        name="broker-sends-acknowledged-again",
        family="dead_letter",
        side="broker",
        breaks="An acknowledged entry is sent once more to a Shared consumer.",
        expected=("UNACK-01",),
        shown_by="dead_letter-batch-acked-members",
        parts={"shared": SendsAcknowledgedAgain},
    ),
)
