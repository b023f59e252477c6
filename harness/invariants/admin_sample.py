"""Answers of the admin service among frames: when what they say was true, and when the broker can be held to it."""

from __future__ import annotations

from bisect import bisect_right

from harness.history.event import Event

REST_NS = 1_000_000_000
"""A second: what was recorded at tap A that long ago has been carried out by a broker that answers its admin service,
and what that broker sent has been recorded that much later."""

_GONE = frozenset({"broker_kill", "broker_stop", "broker_pause", "ledger_rollover", "max_message_size"})


def asked_ns(sample: Event) -> int:
    """When the question of a sample left; it was true at some moment from then to ``time_ns``."""
    asked = sample.extra.get("asked_ns")
    return asked if isinstance(asked, int) and not isinstance(asked, bool) else sample.time_ns


class BrokerLife:
    """When the broker's process was disturbed: what it had got by then may have waited, or be lost."""

    def __init__(self) -> None:
        self.crashes: list[int] = []
        self.disturbed: list[int] = []
        self._away: list[tuple[int, bool]] = []

    def observe(self, event: Event) -> None:
        if event.layer != "fault" or not (event.kind.startswith("broker_") or event.kind in _GONE):
            return
        self._away.append((event.time_ns, event.kind in _GONE))
        self.disturbed.append(event.time_ns)
        if event.kind == "broker_kill":
            self.crashes.append(event.time_ns)

    def at_ease(self, sample: Event) -> bool:
        """The broker was up and undisturbed for a while before the question left, and until the answer came."""
        since = asked_ns(sample) - REST_NS
        if any(since <= moment <= sample.time_ns for moment in self.disturbed):
            return False
        place = bisect_right(self._away, (since, True))
        return place == 0 or not self._away[place - 1][1]
