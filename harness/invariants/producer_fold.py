"""The state every fold over one (topic, producer) starts from, and the words it answers with."""

from __future__ import annotations

from harness.history.event import Event
from harness.invariants.core import Anomaly, FoldState, Key, Severity, Undecided
from harness.invariants.final_read import Surroundings

SETTLE_NS = 5_000_000_000
"""A wait shorter than this proves nothing about an answer that did not come."""


class ProducerState(FoldState):
    """Key, counts, and what the whole run's events say about this topic."""

    __slots__ = ("around", "first_use")

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.around = Surroundings(key[0])
        self.first_use: int | None = None

    def used(self, event: Event) -> None:
        """The producer did something: from here on the state of the broker matters to it."""
        if self.first_use is None:
            self.first_use = event.index

    def anomaly(self, clause: str, name: str, message: str, *witness: int, severity: Severity = "safety") -> Anomaly:
        """A proved breach; it counts as one judged case."""
        self.judged[clause] += 1
        indices = tuple(sorted({index for index in witness if index >= 0}))
        return Anomaly(name=name, clause=clause, key=self.key, message=message, witness=indices, severity=severity)

    def unsure(self, clause: str, reason: str, *witness: int) -> None:
        """A case this history cannot decide."""
        indices = tuple(sorted({index for index in witness if index >= 0}))
        self.undecided.append(Undecided(clause=clause, key=self.key, reason=reason, witness=indices))


def producer_key(event: Event) -> Key | None:
    """(topic, producer name), None for events that name no producer."""
    if event.topic is None or event.producer is None:
        return None
    return event.topic, event.producer


def volatile(key: Key) -> bool:
    """Non-persistent topics store nothing and answer 0:0 or -1:-1 at once."""
    return key[0].startswith("non-persistent://")
