"""Messages handed out and not acknowledged in time (clauses UNACK-02 to UNACK-14)."""

from __future__ import annotations

from harness.reference.client.delivery import Delivery
from harness.wire.message_id import Position


class AckTimeouts:
    """By entry, whatever its members. ``timeout``, ``tick`` and times are nanoseconds; a timeout of 0 is off.

    Time is cut into ticks from ``start``: an entry is due at the first tick not earlier than ``timeout``, rounded up
    to whole ticks, after its hand-out.
    """

    def __init__(self, timeout: int, tick: int, start: int) -> None:
        self.timeout = timeout
        self.tick = max(1, min(tick, timeout)) if timeout else tick
        self.start = start
        self._due: dict[Position, tuple[int, Delivery]] = {}

    def add(self, delivery: Delivery, now: int) -> None:
        """Watch it from ``now``; the first hand-out of an entry counts (UNACK-05)."""
        if self.timeout:
            self._due.setdefault(delivery.position, (self.due_time(now), delivery))

    def due_time(self, now: int) -> int:
        """The tick at which what is handed out ``now`` times out."""
        ticks = -(-self.timeout // self.tick) + -(-(now - self.start) // self.tick)
        return self.start + ticks * self.tick

    def remove(self, position: Position) -> None:
        """It was acknowledged."""
        self._due.pop(position, None)

    def remove_up_to(self, position: Position) -> None:
        """Everything up to ``position`` was acknowledged (UNACK-19)."""
        self._due = {entry: due for entry, due in self._due.items() if entry > position}

    def deadline(self) -> int | None:
        """The next tick at which something is due."""
        return min((when for when, _ in self._due.values()), default=None)

    def take_due(self, now: int) -> list[Delivery]:
        """What timed out, in the order of hand-out; it is forgotten until it is handed out again (UNACK-14)."""
        due = [delivery for when, delivery in self._due.values() if when <= now]
        for delivery in due:
            del self._due[delivery.position]
        return due

    def clear(self) -> None:
        """A new connection or a rewind brings everything again."""
        self._due.clear()
