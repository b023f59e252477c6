"""Brokers that keep false accounts, or tell their administrator something else than they do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.reference.broker.consumer import Consumer
from harness.reference.broker.ledger import LedgerChain
from harness.reference.broker.statistics import ConsumerAccount, CursorAccount, Statistics
from harness.reference.broker.subscription import Subscription
from harness.reference.mutants.mutant import Mutant
from harness.wire.message_id import Position


class TellsOnePermitMore(Statistics):
    def consumer(self, subscription: Subscription, consumer: Consumer) -> ConsumerAccount:
        account = super().consumer(subscription, consumer)
        return replace(account, permits=account.permits + 1)


class NeverCountsDown(Consumer):
    """What is acknowledged leaves the list of what is pending, and stays in the count."""

    def let_go(self, offset: int) -> bool:
        return self.pending.pop(offset, None) is not None


class CountsDownTwice(Consumer):
    def let_go(self, offset: int) -> bool:
        messages = self.pending.get(offset, 0)
        known = super().let_go(offset)
        self.unacked -= messages
        return known


class CountsHolesAsBacklog(Statistics):
    """Everything above the mark counts, acknowledged or not."""

    def cursor(self, subscription: Subscription) -> CursorAccount:
        stored = len(self.topic.ledgers.entries)
        return replace(super().cursor(subscription), backlog=stored - 1 - subscription.cursor.mark_delete)


class KeepsWhoLeft(Subscription):
    """Remembers its consumers for ``ListsWhoLeft``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.left: list[Consumer] = []

    def detach(self, consumer: Consumer) -> None:
        super().detach(consumer)
        self.left.append(consumer)


class ListsWhoLeft(Statistics):
    def consumers(self, subscription: Subscription) -> list[ConsumerAccount]:
        left = subscription.left if isinstance(subscription, KeepsWhoLeft) else []
        return super().consumers(subscription) + [self.consumer(subscription, consumer) for consumer in left]


class HidesTheFirstConsumer(Statistics):
    def consumers(self, subscription: Subscription) -> list[ConsumerAccount]:
        return super().consumers(subscription)[1:]


class WidensRanges(Statistics):
    """Each range of acknowledged entries begins one entry too early."""

    def cursor(self, subscription: Subscription) -> CursorAccount:
        account = super().cursor(subscription)
        wide = tuple((ledger, max(0, first - 1), last) for ledger, first, last in account.individually_deleted)
        return replace(account, individually_deleted=wide)


class TellsNoRanges(Statistics):
    def cursor(self, subscription: Subscription) -> CursorAccount:
        return replace(super().cursor(subscription), individually_deleted=())


class OvercountsLedgers(Statistics):
    def ledgers(self) -> list[tuple[int, int, int]]:
        return [(ledger, entries + 1, size) for ledger, entries, size in super().ledgers()]


class ForgetsTheLastEntry(Statistics):
    def last_confirmed(self) -> Position | None:
        entries = self.topic.ledgers.entries
        return Position(entries[-2].ledger, entries[-2].entry) if len(entries) > 1 else None


class FillsLedgersTooFull(LedgerChain):
    def _is_full(self) -> bool:
        return self._reserved > self._max_entries


MUTANTS = (
    Mutant(
        name="broker-tells-one-permit-more",
        family="acks",
        side="broker",
        breaks="The permits it tells of a consumer are not those that are left.",
        expected=("STAT-01",),
        shown_by="acks-individual",
        parts={"statistics": TellsOnePermitMore},
    ),
    Mutant(
        name="broker-never-counts-acks",
        family="acks",
        side="broker",
        breaks="An acknowledged message stays in the count of unacknowledged ones.",
        expected=("STAT-02",),
        shown_by="acks-at-rest",
        parts={"consumer": NeverCountsDown},
    ),
    Mutant(
        name="broker-counts-acks-twice",
        family="acks",
        side="broker",
        breaks="Acknowledged messages are taken from the count of unacknowledged ones twice, until it is negative.",
        expected=("ACK-26",),
        shown_by="acks-unload",
        parts={"consumer": CountsDownTwice},
    ),
    Mutant(
        name="broker-counts-holes-as-backlog",
        family="acks",
        side="broker",
        breaks="Entries acknowledged above the mark-delete position count as backlog.",
        expected=("STAT-03",),
        shown_by="acks-at-rest",
        parts={"statistics": CountsHolesAsBacklog},
    ),
    Mutant(
        name="broker-lists-who-left",
        family="acks",
        side="broker",
        breaks="Consumers that were closed are still listed as connected.",
        expected=("STAT-04",),
        shown_by="acks-at-rest",
        parts={"subscription": KeepsWhoLeft, "statistics": ListsWhoLeft},
    ),
    Mutant(
        name="broker-hides-a-consumer",
        family="acks",
        side="broker",
        breaks="A connected consumer is not listed.",
        expected=("STAT-04",),
        shown_by="acks-at-rest",
        parts={"statistics": HidesTheFirstConsumer},
    ),
    Mutant(
        name="broker-widens-deleted-ranges",
        family="acks",
        side="broker",
        breaks="An entry that nobody acknowledged is told as individually deleted.",
        expected=("MARKDEL-05",),
        shown_by="acks-at-rest",
        parts={"statistics": WidensRanges},
    ),
    Mutant(
        name="broker-tells-no-ranges",
        family="acks",
        side="broker",
        breaks="Entries acknowledged above a hole are not told as deleted.",
        expected=("MARKDEL-05",),
        shown_by="acks-at-rest",
        parts={"statistics": TellsNoRanges},
    ),
    Mutant(
        name="broker-overcounts-ledgers",
        family="receipts",
        side="broker",
        breaks="A ledger is told to hold more entries than it does.",
        expected=("LEDGER-05",),
        shown_by="receipts-full-ledgers",
        parts={"statistics": OvercountsLedgers},
    ),
    Mutant(
        name="broker-forgets-the-last-entry",
        family="receipts",
        side="broker",
        breaks="The last confirmed entry it tells is not the last one stored.",
        expected=("LEDGER-05",),
        shown_by="receipts-full-ledgers",
        parts={"statistics": ForgetsTheLastEntry},
    ),
    Mutant(
        name="broker-fills-ledgers-too-full",
        family="receipts",
        side="broker",
        breaks="A ledger takes one entry more than its limit.",
        expected=("LEDGER-02",),
        shown_by="receipts-full-ledgers",
        parts={"ledgers": FillsLedgersTooFull},
    ),
)
