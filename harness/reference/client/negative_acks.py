"""Messages the application wants again, later (clauses REDEL-01, NACK-01 to NACK-03)."""

from __future__ import annotations

from harness.reference.client.delivery import Delivery
from harness.wire.message_id import Position


class NegativeAcks:
    """By entry. ``delay`` and times are nanoseconds."""

    def __init__(self, delay: int) -> None:
        self.delay = delay
        self._due: dict[Position, tuple[int, Delivery]] = {}

    def add(self, delivery: Delivery, now: int) -> None:
        """Ask for it ``delay`` after ``now``; the first call for an entry counts."""
        self._due.setdefault(delivery.position, (now + self.delay, delivery))

    def remove(self, position: Position) -> None:
        """It was acknowledged after all."""
        self._due.pop(position, None)

    def remove_up_to(self, position: Position) -> None:
        """Everything up to ``position`` was acknowledged."""
        self._due = {entry: due for entry, due in self._due.items() if entry > position}

    def deadline(self) -> int | None:
        """When the next request is due."""
        return min((when for when, _ in self._due.values()), default=None)

    def take_due(self, now: int) -> list[Delivery]:
        """What is due, in the order of the calls; it is forgotten here."""
        due = [delivery for when, delivery in self._due.values() if when <= now]
        for delivery in due:
            del self._due[delivery.position]
        return due

    def clear(self) -> None:
        """A new connection or a rewind brings everything again anyway (NACK-03)."""
        self._due.clear()
