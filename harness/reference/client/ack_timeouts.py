"""Messages handed out and not acknowledged in time (clauses UNACK-02 to UNACK-14)."""

from __future__ import annotations

from harness.reference.client.delivery import Delivery
from harness.reference.client.due_deliveries import DueDeliveries


class AckTimeouts(DueDeliveries):
    """By entry, whatever its members. ``timeout``, ``tick`` and times are nanoseconds; a timeout of 0 is off.

    Time is cut into ticks from ``start``: an entry is due at the first tick not earlier than ``timeout``, rounded up
    to whole ticks, after its hand-out.
    """

    def __init__(self, timeout: int, tick: int, start: int) -> None:
        super().__init__()
        self.timeout = timeout
        self.tick = max(1, min(tick, timeout)) if timeout else tick
        self.start = start

    def add(self, delivery: Delivery, now: int) -> None:
        """Watch it from ``now``; the first hand-out of an entry counts (UNACK-05)."""
        if self.timeout:
            self._due.setdefault(delivery.position, (self.due_time(now), delivery))

    def due_time(self, now: int) -> int:
        """The tick at which what is handed out ``now`` times out."""
        ticks = -(-self.timeout // self.tick) + -(-(now - self.start) // self.tick)
        return self.start + ticks * self.tick
