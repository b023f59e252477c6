"""What one subscription has acknowledged."""

from __future__ import annotations

from dataclasses import dataclass

from harness.reference.broker.ack_set import full
from harness.reference.broker.ranges import IntRanges


@dataclass(frozen=True, slots=True)
class CursorState:
    """A cursor as it is persisted. Offsets, see ``LedgerChain``; ``batches``: offset to bits still unacknowledged."""

    mark_delete: int
    ranges: tuple[tuple[int, int], ...] = ()
    batches: tuple[tuple[int, int], ...] = ()


class Cursor:
    """Works on offsets of one topic, so that ledger boundaries are no boundaries (MARKDEL-02).

    ``mark_delete``: every entry up to this offset is acknowledged, the next one is not (MARKDEL-01); -1 at the start.
    """

    def __init__(self, mark_delete: int = -1) -> None:
        self.mark_delete = mark_delete
        self.ranges = IntRanges()
        self.batches: dict[int, int] = {}

    def is_acked(self, offset: int) -> bool:
        return offset <= self.mark_delete or offset in self.ranges

    def remaining(self, offset: int, size: int) -> int:
        """Bits of the messages of a batch of ``size`` that are not acknowledged."""
        return 0 if self.is_acked(offset) else self.batches.get(offset, full(size))

    def next_unacked(self, offset: int) -> int:
        """The first offset >= ``offset`` that is not acknowledged; it may be past the end of the topic."""
        offset = max(offset, self.mark_delete + 1)
        end = self.ranges.end_of(offset)
        return offset if end is None else end + 1

    def unacked_before(self, end: int) -> int:
        """How many entries below offset ``end`` are not acknowledged (the backlog, in entries)."""
        return max(0, end - 1 - self.mark_delete - len(self.ranges))

    def ack(self, offset: int) -> None:
        """One whole entry. Doing it twice changes nothing (ACK-IND-06)."""
        if self.is_acked(offset):
            return
        self.batches.pop(offset, None)
        self.ranges.add(offset, offset)
        self._join()

    def ack_batch(self, offset: int, unacked: int, size: int) -> None:
        """Part of a batch: the new bits and the stored ones are intersected (ACK-BATCH-01)."""
        if self.is_acked(offset):
            return
        remaining = self._intersect(self.remaining(offset, size), unacked)
        if remaining:
            self.batches[offset] = remaining
        else:
            self.ack(offset)

    def _intersect(self, stored: int, incoming: int) -> int:
        return stored & incoming

    def ack_through(self, offset: int) -> None:
        """Every entry up to ``offset``; never moves back (ACK-CUM-01, ACK-CUM-03)."""
        if offset <= self.mark_delete:
            return
        self.mark_delete = offset
        self.ranges.remove_through(offset)
        self.batches = {place: bits for place, bits in self.batches.items() if place > offset}
        self._join()

    def _join(self) -> None:
        """Moves the mark over everything that is acknowledged right behind it."""
        end = self.ranges.end_of(self.mark_delete + 1)
        if end is not None:
            self.mark_delete = end
            self.ranges.remove_through(end)

    def reset(self, mark_delete: int) -> None:
        """Forgets everything; deliveries start after ``mark_delete`` (SEEK-03)."""
        self.restore(CursorState(mark_delete))

    def save(self) -> CursorState:
        return CursorState(self.mark_delete, tuple(self.ranges.all()), tuple(self.batches.items()))

    def restore(self, state: CursorState) -> None:
        self.mark_delete = state.mark_delete
        self.ranges = IntRanges()
        for first, last in state.ranges:
            self.ranges.add(first, last)
        self.batches = dict(state.batches)
