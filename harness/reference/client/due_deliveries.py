"""Deliveries that something is to be done about at a later time, by entry."""

from __future__ import annotations

from harness.reference.client.delivery import Delivery
from harness.wire.message_id import Position


class DueDeliveries:
    """What waits, each with the time (nanoseconds) at which it is due, in the order in which it was put here."""

    def __init__(self) -> None:
        self._due: dict[Position, tuple[int, Delivery]] = {}

    def remove(self, position: Position) -> None:
        """It was acknowledged."""
        self._due.pop(position, None)

    def remove_up_to(self, position: Position) -> None:
        """Everything up to ``position`` was acknowledged (UNACK-19)."""
        self._due = {entry: due for entry, due in self._due.items() if entry > position}

    def deadline(self) -> int | None:
        """When the next one is due."""
        return min((when for when, _ in self._due.values()), default=None)

    def take_due(self, now: int) -> list[Delivery]:
        """What is due, in order; it is forgotten here until it is handed out or asked for again (UNACK-14)."""
        due = [delivery for when, delivery in self._due.values() if when <= now]
        for delivery in due:
            del self._due[delivery.position]
        return due

    def clear(self) -> None:
        """A new connection or a rewind brings everything again (NACK-03)."""
        self._due.clear()
