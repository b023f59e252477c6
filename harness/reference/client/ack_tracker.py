"""Acknowledgements between the application's call and the wire (clauses ACK-IND, ACK-CUM, ACK-BATCH, ACK-09 ff)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.reference.client.delivery import Delivery
from harness.wire.message_id import Position

_WHOLE = 1 << 62

Point = tuple[Position, int]
"""A place inside a topic: entry and member; ``_WHOLE`` as member stands for the end of the entry."""


@dataclass(frozen=True, slots=True)
class AckId:
    """One id of an ACK. ``unacked`` is None for the whole entry, else the members of a batch of ``size`` to keep."""

    position: Position
    unacked: frozenset[int] | None = None
    size: int = 1


@dataclass(frozen=True, slots=True)
class AckGroup:
    """One ACK frame to send."""

    kind: Literal["individual", "cumulative"]
    ids: tuple[AckId, ...]


class AckTracker:
    """Pending acknowledgements, and which messages they hide from the application.

    Member counters are kept by entry, over redeliveries, so that a batch acknowledged partly in one delivery and
    partly in the next is complete (ACK-21).
    """

    def __init__(self, batch_index_ack: bool) -> None:
        self.batch_index_ack = batch_index_ack
        self._entries: dict[Position, None] = {}
        self._partial: dict[Position, None] = {}
        self._unacked: dict[Position, set[int]] = {}
        self._sizes: dict[Position, int] = {}
        self._cumulative: Point | None = None
        self._cumulative_pending = False
        self._cumulative_epoch = -1

    def __len__(self) -> int:
        return len(self._entries) + len(self._partial) + self._cumulative_pending

    def opened(self, position: Position, size: int, unacked: set[int]) -> None:
        """A batch arrived; what the broker knows to be acknowledged is so here too."""
        known = self._unacked.setdefault(position, set(range(size)))
        known &= unacked
        self._sizes[position] = size

    def individual(self, delivery: Delivery) -> bool:
        """Record one acknowledgement; whether there is anything to send for it (else a batch is still incomplete)."""
        if delivery.batch_index is None:
            for position in delivery.entries:
                self._entries[position] = None
            return True
        position = delivery.position
        unacked = self._members(delivery)
        unacked.discard(delivery.batch_index)
        if not unacked:
            self.whole_entry(position)
            return True
        if self.batch_index_ack:
            self._partial[position] = None
        return self.batch_index_ack

    def whole_entry(self, position: Position) -> None:
        """Acknowledge an entry with everything in it."""
        self._forget(position)
        if self._cumulative is not None and self._cumulative[0] == position:
            # The rest of the batch the cumulative acknowledgement ended in: now it ends after that batch.
            if self._cumulative[1] != _WHOLE:
                self._cumulative = (position, _WHOLE)
                self._cumulative_pending = True
        else:
            self._entries[position] = None

    def cumulative(self, delivery: Delivery) -> bool:
        """Record an acknowledgement up to ``delivery``; whether it is above the former one (ACK-CUM-02, ACK-15)."""
        point = self._point(delivery)
        if not self.is_above(point):
            return False
        self._cumulative = point
        self._cumulative_pending = True
        for position in [position for position in self._entries if self._covered(position, _WHOLE)]:
            del self._entries[position]
        for position in [position for position in self._unacked if self._covered(position, _WHOLE)]:
            self._forget(position)
        self._partial.pop(point[0], None)
        return True

    def is_above(self, point: Point) -> bool:
        """Whether ``point`` moves the cumulative acknowledgement forward."""
        return self._cumulative is None or point > self._cumulative

    def _point(self, delivery: Delivery) -> Point:
        if delivery.batch_index is None:
            return delivery.position, _WHOLE
        position, index = delivery.position, delivery.batch_index
        unacked = self._members(delivery)
        unacked -= set(range(index + 1))
        if not unacked:
            return position, _WHOLE
        if self.batch_index_ack:
            return position, index
        # ACK-18, ACK-CUM-06: without index acknowledgements only what comes before this batch is covered.
        return Position(position.ledger, position.entry - 1), _WHOLE

    def hides(self, position: Position, index: int | None = None) -> bool:
        """Whether this message, or this member of a batch, must not reach the application again (ACK-09, ACK-11)."""
        if position in self._entries or self.covered(position, index):
            return True
        return index is not None and position in self._partial and index not in self._unacked[position]

    def covered(self, position: Position, index: int | None = None) -> bool:
        """Whether the last cumulative acknowledgement covers it."""
        return self._covered(position, _WHOLE if index is None else index)

    def _covered(self, position: Position, member: int) -> bool:
        return self._cumulative is not None and (position, member) <= self._cumulative

    def came_again(self, epoch: int) -> bool:
        """A covered message arrived in ``epoch``: when the acknowledgement was sent in an earlier one it was lost, and
        is pending again (ACK-CUM-05, ACK-13). Whether it now is.
        """
        if self._cumulative is not None and self._cumulative_epoch != epoch:
            self._cumulative_pending = True
        return self._cumulative_pending

    def take(self, epoch: int) -> list[AckGroup]:
        """What to send now, the cumulative one first (ACK-07); nothing is pending afterwards."""
        groups: list[AckGroup] = []
        if self._cumulative_pending and self._cumulative is not None:
            position, member = self._cumulative
            groups.append(AckGroup("cumulative", (self._cumulative_id(position, member),)))
            self._cumulative_pending = False
            self._cumulative_epoch = epoch
        ids = [AckId(position) for position in self._entries]
        ids += [AckId(p, frozenset(self._unacked[p]), self._sizes[p]) for p in self._partial]
        if ids:
            groups.append(AckGroup("individual", tuple(ids)))
        self._entries.clear()
        self._partial.clear()
        return groups

    def reset(self) -> None:
        """Forget everything: the subscription was moved (SEEK-04, SEEK-05)."""
        self._entries.clear()
        self._partial.clear()
        self._unacked.clear()
        self._sizes.clear()
        self._cumulative = None
        self._cumulative_pending = False
        self._cumulative_epoch = -1

    def acked_members(self, position: Position) -> set[int]:
        """Members of a batch that are acknowledged while the batch is not."""
        return set(range(self._sizes.get(position, 0))) - self._unacked.get(position, set())

    def _cumulative_id(self, position: Position, member: int) -> AckId:
        if member == _WHOLE:
            return AckId(position)
        return AckId(position, frozenset(self._unacked[position]), self._sizes[position])

    def _members(self, delivery: Delivery) -> set[int]:
        self._sizes.setdefault(delivery.position, delivery.batch_size)
        return self._unacked.setdefault(delivery.position, set(range(delivery.batch_size)))

    def _forget(self, position: Position) -> None:
        self._unacked.pop(position, None)
        self._sizes.pop(position, None)
        self._partial.pop(position, None)
