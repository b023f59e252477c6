"""What a judge of stored messages must know of a run: was the final read whole, was deduplication on throughout."""

from __future__ import annotations

from harness.history.event import Event
from harness.invariants.faults import DISTURBANCES, NETWORK, RELOADS, RESTORING, concerns


def ends_or_disturbs(event: Event) -> bool:
    """Events every key must see: faults, the end of faults, the end of the final read."""
    return event.layer == "fault" or event.kind == "LOG_END"


class Surroundings:
    """Broadcast facts as one topic sees them. ``crashes``: where connections ended, or the topic was loaded again.

    ``broker_disturbed``: something was done to the broker or the topic itself, which may explain an error of it.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.log_complete = False
        self.drained = False
        self.ended_ns = 0
        self.last_disturbance: int | None = None
        self.restored_ns = 0
        self.healed: int | None = None
        self.crashes: list[int] = []
        self.broker_disturbed = False
        self._switches: list[tuple[int, bool]] = []

    def take(self, event: Event) -> None:
        """Read a fault event or a LOG_END."""
        if event.kind == "LOG_END":
            if event.topic == self.topic:
                self.log_complete = bool(event.extra.get("complete"))
        elif event.kind == "healed":
            self.healed = event.index
        elif event.kind == "quiescent":
            self.drained = bool(event.extra.get("drained"))
            self.ended_ns = event.time_ns
        elif event.kind in DISTURBANCES and concerns(event, self.topic):
            if event.kind == "dedup":
                self._switches.append((event.index, bool(event.extra.get("enabled"))))
                if len(self._switches) == 1:
                    return
            if event.kind in RESTORING:
                self.restored_ns = event.time_ns
            self.last_disturbance = event.index
            self.broker_disturbed |= event.kind not in NETWORK
            if event.kind in RELOADS or event.kind in ("cut", "refuse"):
                self.crashes.append(event.index)

    def waited_ns(self, since_ns: int) -> int:
        """How long something has been missing at the end of the run: a broker that was away begins anew."""
        return self.ended_ns - max(since_ns, self.restored_ns)

    def deduplication(self, first_use: int | None) -> bool | None:
        """On (True) or off (False) over the whole time from the first use on; None when unknown or switched."""
        if not self._switches or first_use is None or self._switches[0][0] > first_use:
            return None
        states = {enabled for _, enabled in self._switches}
        return states.pop() if len(states) == 1 else None

    def calm_since(self, index: int) -> bool:
        """No fault was in force at ``index`` or came after it."""
        if self.last_disturbance is None:
            return True
        return self.last_disturbance < index and self.healed is not None and self.last_disturbance < self.healed < index
