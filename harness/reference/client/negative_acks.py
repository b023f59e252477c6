"""Messages the application wants again, later (clauses REDEL-01, NACK-01 to NACK-03)."""

from __future__ import annotations

from harness.reference.client.delivery import Delivery
from harness.reference.client.due_deliveries import DueDeliveries


class NegativeAcks(DueDeliveries):
    """By entry. ``delay`` and times are nanoseconds."""

    def __init__(self, delay: int) -> None:
        super().__init__()
        self.delay = delay

    def add(self, delivery: Delivery, now: int) -> None:
        """Ask for it ``delay`` after ``now``; the first call for an entry counts."""
        self._due.setdefault(delivery.position, (now + self.delay, delivery))
