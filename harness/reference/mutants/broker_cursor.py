"""Brokers that keep what was acknowledged, but not as the mark-delete position and the backlog say it."""

from __future__ import annotations

from harness.reference.broker.cursor import Cursor
from harness.reference.broker.subscription import Subscription
from harness.reference.mutants.mutant import Mutant
from harness.wire.pulsar_pb2 import CommandAck


class NeverJoins(Cursor):
    """The mark-delete position moves by cumulative acks only."""

    def _join(self) -> None:
        pass


class StopsAtTheEndOfALedger(Subscription):
    """The mark-delete position does not go on into the next ledger."""

    def acknowledge(self, ack: CommandAck) -> None:
        before = self.cursor.mark_delete
        super().acknowledge(ack)
        cursor, entries = self.cursor, self.topic.ledgers.entries
        reached = cursor.mark_delete
        ledger = entries[max(before, 0)].ledger if entries else 0
        inside = [offset for offset in range(max(before, 0), reached + 1) if entries[offset].ledger == ledger]
        if inside and inside[-1] < reached:
            cursor.mark_delete = inside[-1]
            cursor.ranges.add(inside[-1] + 1, reached)


class CountsOneTooMany(Cursor):
    def unacked_before(self, end: int) -> int:
        return super().unacked_before(end) + 1


class TakesBackWhatIsAckedTwice(Cursor):
    """A second ack of an entry behind a hole undoes the first."""

    def ack(self, offset: int) -> None:
        if offset <= self.mark_delete or offset not in self.ranges:
            super().ack(offset)
            return
        others = [(first, last) for first, last in self.ranges.all()]
        self.ranges = type(self.ranges)()
        for first, last in others:
            for kept in range(first, last + 1):
                if kept != offset:
                    self.ranges.add(kept, kept)


MUTANTS = (
    Mutant(
        name="broker-never-joins-acks",
        family="acks",
        side="broker",
        breaks="Entries acknowledged one by one never move the mark-delete position.",
        expected=("MARKDEL-01",),
        shown_by="acks-twice-behind-a-hole",
        parts={"cursor": NeverJoins},
    ),
    Mutant(
        name="broker-stops-at-the-end-of-a-ledger",
        family="acks",
        side="broker",
        breaks="The mark-delete position stays at the end of a ledger although the next one is acknowledged.",
        expected=("MARKDEL-02",),
        shown_by="acks-cursor-at-rest",
        parts={"subscription": StopsAtTheEndOfALedger},
    ),
    Mutant(
        name="broker-counts-a-backlog-that-is-none",
        family="acks",
        side="broker",
        breaks="The backlog of a subscription that has acknowledged everything is not empty.",
        expected=("C8",),
        shown_by="acks-cursor-at-rest",
        parts={"cursor": CountsOneTooMany},
    ),
    Mutant(
        name="broker-takes-back-what-is-acked-twice",
        family="acks",
        side="broker",
        breaks="Acknowledging an entry a second time undoes the first.",
        expected=("ACK-IND-06",),
        shown_by="acks-twice-behind-a-hole",
        parts={"cursor": TakesBackWhatIsAckedTwice},
    ),
)
