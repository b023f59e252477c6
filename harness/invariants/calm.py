"""When absence proves something: no fault is in force and the consumers were drained."""

from __future__ import annotations

from harness.history.event import Event
from harness.invariants.faults import HARMLESS, RESTORING


def calm_or_storm(event: Event) -> bool:
    """Broadcast rule of folds that wait for calm: fault events, the ends of connections, closes of whole clients."""
    return (
        event.layer == "fault"
        or event.kind == "CONNECTION_CLOSED"
        or (event.layer == "api" and event.kind == "close" and event.topic is None)
    )


class Calm:
    """Follows the fault layer. ``drained`` becomes true at a ``quiescent`` with no fault left un-healed.

    Broader than one topic: a fault on another topic takes the calm away, too.
    """

    def __init__(self) -> None:
        self.faulty = False
        self.drained = False
        self.last_fault = -1
        self.drained_at = -1
        self.healed_ns = 0

    def observe(self, event: Event) -> bool:
        """Take an event; true exactly at the event that makes the history drained."""
        if event.layer != "fault":
            return False
        if event.kind == "healed":
            self.healed_ns = event.time_ns if self.faulty else self.healed_ns
            self.faulty = False
        elif event.kind == "quiescent":
            if not self.faulty and event.extra.get("drained") is True and not self.drained:
                self.drained = True
                self.drained_at = event.index
                return True
        elif event.kind not in HARMLESS:
            # A broker may be started again, or resumed, as part of the healing itself: that leaves nothing to heal.
            self.faulty = self.faulty or event.kind not in RESTORING
            self.drained = False
            self.last_fault = event.index
        return False
