"""Brokers that break a promise when they are killed, stopped, started again or made to give a topic up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from harness.reference.broker.cursor import CursorState
from harness.reference.broker.dedup import DedupMarks
from harness.reference.broker.dispatcher import Dispatcher
from harness.reference.broker.ledger import LedgerChain
from harness.reference.broker.producer import Producer
from harness.reference.broker.redelivery_counts import RedeliveryCounts
from harness.reference.broker.stored_entry import StoredEntry
from harness.reference.broker.subscription import Subscription
from harness.reference.broker.topic import Publication, Topic
from harness.reference.mutants.mutant import Mutant
from harness.wire.pulsar_pb2 import BaseCommand, CommandAck, CommandReachedEndOfTopic, CommandSubscribe


def _lose(ledgers: LedgerChain, offset: int) -> None:
    """One stored entry is gone."""
    del ledgers.entries[offset]
    ledgers._starts = [start - (start > offset) for start in ledgers._starts]
    kept = [place for place, start in enumerate(ledgers._starts) if start < len(ledgers)]
    ledgers._ledgers = [ledgers._ledgers[place] for place in kept]
    ledgers._starts = [ledgers._starts[place] for place in kept]


class LosesTheNewest(Topic):
    """What was stored last is gone after a start, unless a subscription is past it."""

    def recover(self) -> None:
        last = len(self.ledgers) - 1
        if last >= 0 and all(one.cursor.mark_delete < last for one in self.subscriptions.values()):
            _lose(self.ledgers, last)
        super().recover()


class LosesTheFirst(Topic):
    """What was stored first is gone after a start, unless somebody has acknowledged anything."""

    def recover(self) -> None:
        if len(self.ledgers) > 1 and all(one.cursor.mark_delete < 0 for one in self.subscriptions.values()):
            _lose(self.ledgers, 0)
        super().recover()


class _Mute:
    """A producer to which no receipt is sent."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def receipt(self, *_: object) -> None:
        pass

    def settle(self) -> None:
        self._producer.settle()


class ReceiptsBeforePersisting(Topic):
    def _write(self, producer: Producer, publication: Publication) -> None:
        super()._write(producer, publication)
        if self._writing:
            stored = self._writing[-1][0]
            producer.receipt(stored.sequence_id, stored.highest_sequence_id, (stored.ledger, stored.entry))

    def _persist(self, stored: StoredEntry, producer: Producer) -> None:
        super()._persist(stored, cast(Producer, _Mute(producer)))


class StoresWhatWasUnderWayTwice(Topic):
    """Writes that a crash interrupts are found stored, each in two entries."""

    def recover(self) -> None:
        under_way = [stored for stored, _ in self._writing]
        for stored in under_way:
            self.ledgers.store(stored)
        for stored in under_way:
            ledger, entry = self.ledgers.reserve()
            self.ledgers.store(replace(stored, ledger=ledger, entry=entry))
        super().recover()


class ForgetsMarks(DedupMarks):
    def restore(self, snapshot: dict[str, int], later: Iterable[StoredEntry]) -> None:
        pass


class RestoresAnOldSnapshot(DedupMarks):
    """What was stored since the last snapshot is not read again."""

    def restore(self, snapshot: dict[str, int], later: Iterable[StoredEntry]) -> None:
        super().restore(snapshot, ())


class RestoresWhatWasPushed(Topic):
    """The marks after a start name what was under way as stored."""

    def recover(self) -> None:
        pushed = dict(self.dedup.pushed)
        super().recover()
        if self.dedup_enabled:
            for producer, highest in pushed.items():
                self.dedup.persist(producer, highest)


class WritesBackwardsWhenItStops(Topic):
    """What is under way when a topic is given up is stored in the wrong order."""

    def finish_writes(self) -> None:
        under_way = list(self._writing)
        self._writing.clear()
        places = [(stored.ledger, stored.entry) for stored, _ in under_way]
        for (stored, producer), (ledger, entry) in zip(reversed(under_way), places, strict=True):
            self._persist(replace(stored, ledger=ledger, entry=entry), producer)


class TakesFailedWritesForStored(Topic):
    """What is under way when a topic is given up fails, but counts as stored."""

    def finish_writes(self) -> None:
        marks = {stored.producer: stored.last_sequence_id for stored, _ in self._writing}
        self.fail_writes()
        for producer, highest in marks.items():
            self.dedup.persist(producer, highest)


class RewindsToTheStart(Subscription):
    def recover(self) -> None:
        self._saved = CursorState(-1)
        super().recover()


class ForgetsSingleAcks(Subscription):
    """Only the mark-delete position is written, not what was acknowledged behind a hole."""

    def recover(self) -> None:
        self._saved = CursorState(self._saved.mark_delete)
        super().recover()


class SavesNothingWhenItStops(Subscription):
    """The cursor is written as always while the topic is in use, but not when it is given up."""

    _in_use = False

    def touch(self) -> None:
        self._in_use = True
        super().touch()
        self._in_use = False

    def save(self) -> None:
        if self._in_use:
            super().save()


class ForgetsSubscriptions(Topic):
    def recover(self) -> None:
        super().recover()
        self.subscriptions.clear()


class ReopensItsLedger(LedgerChain):
    def abandon(self) -> None:
        if self._open is not None:
            stored = len(self.entries) - self._starts[-1] if self._ledgers[-1:] == [self._open] else 0
            self._reserved = stored


class KeepsCounts(Subscription):
    _counts: RedeliveryCounts | None = None

    def recover(self) -> None:
        self._counts = getattr(self.dispatcher, "counts", None)
        super().recover()

    def _new_dispatcher(self, request: CommandSubscribe) -> Dispatcher:
        made = super()._new_dispatcher(request)
        if self._counts is not None and hasattr(made, "counts"):
            made.counts = self._counts
        return made


class NeverTerminates(Topic):
    @property
    def terminated(self) -> bool:
        return False

    @terminated.setter
    def terminated(self, value: bool) -> None:
        pass


class AnnouncesAnEnd(Subscription):
    """Whoever has read everything is told that there will be no more."""

    def acknowledge(self, ack: CommandAck) -> None:
        super().acknowledge(ack)
        if not self.cursor.unacked_before(len(self.topic.ledgers)):
            for consumer in self.dispatcher.consumers:
                end = CommandReachedEndOfTopic(consumer_id=consumer.id)
                consumer.connection.send(BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC, reachedEndOfTopic=end))


MUTANTS = (
    Mutant(
        name="broker-loses-the-newest-on-a-crash",
        family="receipts",
        side="broker",
        breaks="A message whose receipt was sent is gone after a crash.",
        expected=("RECEIPT-05",),
        shown_by="receipts-kill-after-receipt",
        parts={"topic": LosesTheNewest},
    ),
    Mutant(
        name="broker-receipts-before-persisting",
        family="receipts",
        side="broker",
        breaks="A receipt is sent while the message is still being stored.",
        expected=("RECEIPT-05",),
        shown_by="receipts-kill-under-load",
        parts={"topic": ReceiptsBeforePersisting},
    ),
    Mutant(
        name="broker-stores-twice-what-a-crash-interrupts",
        family="receipts",
        side="broker",
        breaks="A message that was being stored when the broker crashed is stored in two entries.",
        expected=("D1.5",),
        shown_by="receipts-kill-under-load",
        parts={"topic": StoresWhatWasUnderWayTwice},
    ),
    Mutant(
        name="broker-reopens-its-ledger-after-a-crash",
        family="receipts",
        side="broker",
        breaks="After a start the ledger of before is written on.",
        expected=("LEDGER-03",),
        shown_by="receipts-kill-after-receipt",
        parts={"ledgers": ReopensItsLedger},
    ),
    Mutant(
        name="broker-stores-in-terminated-topics",
        family="receipts",
        side="broker",
        breaks="A topic that was terminated takes messages as before.",
        expected=("ERR-05",),
        shown_by="receipts-topic-terminated",
        parts={"topic": NeverTerminates},
    ),
    Mutant(
        name="broker-announces-the-end-of-a-living-topic",
        family="receipts",
        side="broker",
        breaks="A consumer is told that its topic has ended although nobody terminated it.",
        expected=("CONS-11",),
        shown_by="receipts-kill-after-receipt",
        parts={"subscription": AnnouncesAnEnd},
    ),
    Mutant(
        name="broker-loses-the-newest-with-deduplication",
        family="dedup",
        side="broker",
        breaks="A message that was acknowledged is gone after a crash, deduplication or not.",
        expected=("D1.3",),
        shown_by="dedup-kill-survives",
        parts={"topic": LosesTheNewest},
    ),
    Mutant(
        name="broker-loses-the-first-on-a-crash",
        family="dedup",
        side="broker",
        breaks="An acknowledged message is gone after a crash while later ones of its producer are stored.",
        expected=("D1.9",),
        shown_by="dedup-kill-survives",
        parts={"topic": LosesTheFirst},
    ),
    Mutant(
        name="broker-forgets-marks-on-a-crash",
        family="dedup",
        side="broker",
        breaks="After a start nothing is known of the sequence ids stored before.",
        expected=("DEDUP-04",),
        shown_by="dedup-kill-survives",
        parts={"dedup": ForgetsMarks},
    ),
    Mutant(
        name="broker-restores-an-old-snapshot",
        family="dedup",
        side="broker",
        breaks="After a start what was stored since the last snapshot is not known.",
        expected=("DEDUP-07",),
        shown_by="dedup-kill-survives",
        parts={"dedup": RestoresAnOldSnapshot},
    ),
    Mutant(
        name="broker-restores-what-was-pushed",
        family="dedup",
        side="broker",
        breaks="After a start what was under way to storage counts as stored: sent again it is dropped and lost.",
        expected=("D1.4",),
        shown_by="dedup-kill-under-load",
        parts={"topic": RestoresWhatWasPushed},
    ),
    Mutant(
        name="broker-stores-backwards-when-it-stops",
        family="dedup",
        side="broker",
        breaks="What is under way when a topic is given up is stored in the wrong order.",
        expected=("D1.6",),
        shown_by="dedup-unload",
        parts={"topic": WritesBackwardsWhenItStops},
    ),
    Mutant(
        name="broker-takes-failed-writes-for-stored",
        family="dedup",
        side="broker",
        breaks="A write that failed keeps its sequence id: sent again it is a duplicate of nothing.",
        expected=("DEDUP-06",),
        shown_by="dedup-unload",
        parts={"topic": TakesFailedWritesForStored},
    ),
    Mutant(
        name="broker-rewinds-to-the-start-on-a-crash",
        family="acks",
        side="broker",
        breaks="A crash takes the mark-delete position back behind what had been written.",
        expected=("C3",),
        shown_by="acks-kill-after-second-write",
        parts={"subscription": RewindsToTheStart},
    ),
    Mutant(
        name="broker-forgets-single-acks-on-a-crash",
        family="acks",
        side="broker",
        breaks="What was acknowledged behind a hole comes back after a crash, although it was long written.",
        expected=("C6",),
        shown_by="acks-kill-after-second-write",
        parts={"subscription": ForgetsSingleAcks},
    ),
    Mutant(
        name="broker-forgets-acks-on-unload",
        family="acks",
        side="broker",
        breaks="An orderly unload does not write the cursors.",
        expected=("MARKDEL-04",),
        shown_by="acks-unload",
        parts={"subscription": SavesNothingWhenItStops},
    ),
    Mutant(
        name="broker-forgets-subscriptions-on-a-crash",
        family="acks",
        side="broker",
        breaks="Subscriptions are gone after a start.",
        expected=("COPT-03",),
        shown_by="acks-subscription-outlives-broker",
        parts={"topic": ForgetsSubscriptions},
    ),
    Mutant(
        name="broker-keeps-counts-over-a-restart",
        family="acks",
        side="broker",
        breaks="Redelivery counts go on where they were before the broker was started again.",
        expected=("Q1",),
        shown_by="acks-kill-redelivery-count",
        parts={"subscription": KeepsCounts},
    ),
)
