"""Positions, bit sets, and what acknowledgement frames cover."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.history.event import Event

Position = tuple[int, int]
WORD = (1 << 64) - 1
LARGEST_ENTRY = 1 << 63


class Acked(NamedTuple):
    """One id of an ACK frame. ``remaining``: the bits still un-acked, None when the frame names the whole entry."""

    position: Position
    batch_index: int | None
    remaining: int | None
    first_chunk: Position | None


def bits(ack_set: list[int] | None) -> int | None:
    """The words of an ack_set (signed, low word first) as one integer; bit i set: member i is not acked."""
    if not ack_set:
        return None
    return sum((word & WORD) << (64 * place) for place, word in enumerate(ack_set))


def position_of(event: Event) -> Position | None:
    """(ledger, entry) of an event, or None when it names none."""
    if event.ledger_id is None or event.entry_id is None:
        return None
    return (event.ledger_id, event.entry_id)


def position_in(value: Any) -> Position | None:
    """A ``[ledger, entry]`` pair out of ``extra``."""
    if isinstance(value, (list, tuple)) and len(value) >= 2 and all(isinstance(part, int) for part in value[:2]):
        return (value[0], value[1])
    return None


def acked_ids(event: Event) -> list[Acked]:
    """The ids of an ACK or REDELIVER frame. The predecessor of a ledger's first entry is entry -1."""
    found: list[Acked] = []
    for entry in event.extra.get("ids") or ():
        ledger, number = entry.get("ledger"), entry.get("entry")
        if ledger is None:
            continue
        number = -1 if number is None or number >= LARGEST_ENTRY else number
        found.append(
            Acked(
                (ledger, number),
                entry.get("batch_index"),
                bits(entry.get("ack_set")),
                position_in(entry.get("first_chunk")),
            )
        )
    if not found:
        position = position_of(event)
        if position is not None:
            found.append(Acked(position, event.batch_index, bits(event.ack_set), None))
    return found


@dataclass
class Acknowledged:
    """The union of the ACK frames of one subscription, with the index of the frame that first covered an entry."""

    whole: dict[Position, int] = field(default_factory=dict)
    partial: dict[Position, int] = field(default_factory=dict)
    cleared: dict[Position, int] = field(default_factory=dict)
    cumulative: list[tuple[Position, int]] = field(default_factory=list)
    times: dict[Position, int] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Add an ACK frame. The bits of a partial acknowledgement are remembered apart."""
        for acked in acked_ids(event):
            if event.ack_type == "cumulative":
                if acked.remaining:
                    # Its set also names members acked one by one before: every zero bit is an acked member.
                    self._part(acked.position, ~acked.remaining, event.index)
                    before = (acked.position[0], acked.position[1] - 1)
                else:
                    before = acked.position
                if not self.cumulative or before > self.cumulative[-1][0]:
                    self.cumulative.append((before, event.index))
            elif acked.remaining:
                self._part(acked.position, ~acked.remaining, event.index)
            elif acked.batch_index is not None and acked.remaining is None:
                self._part(acked.position, 1 << acked.batch_index, event.index)
            else:
                self.whole.setdefault(acked.position, event.index)
                self.times[acked.position] = self.times.get(acked.position, 0) + 1

    def _part(self, position: Position, members: int, index: int) -> None:
        self.partial.setdefault(position, index)
        self.cleared[position] = self.cleared.get(position, 0) | members

    def left(self, position: Position, count: int) -> int:
        """The members, as bits, that no partial frame acked out of ``count``."""
        return ~self.cleared.get(position, 0) & ((1 << count) - 1)

    def since(self, position: Position) -> int | None:
        """Index of the first frame that covers the whole entry, or None."""
        found = self.whole.get(position)
        for covered, index in self.cumulative:
            if covered >= position:
                found = index if found is None else min(found, index)
                break
        return found

    def touched(self, position: Position) -> bool:
        """Whether any frame acked the entry or some member of it."""
        return position in self.partial or self.since(position) is not None
