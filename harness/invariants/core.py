"""The shape of an invariant: a keyed fold over a history, and what it may conclude.

One object runs online inside a run, over a stored directory and on Spark. To keep the three in agreement a key's
stream is defined apart from any engine: the events ``e`` with ``key(e) == k`` together with every event for which
``broadcast(e)`` holds, in ``index`` order, for the whole history (also the broadcast events before the key's first).
After a ``WIRE_ERROR`` anywhere in the history what a fold finds is undecided, unless it found it in a ``WIRE_ERROR``.
From an event on that breaks the event contract (``harness.invariants.contract``) all that any fold finds is undecided.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar, Generic, Literal, TypeVar

import msgspec

from harness.history.event import Event

Key = tuple[str, ...]
Severity = Literal["safety", "liveness", "conformance"]


class Anomaly(msgspec.Struct, frozen=True, kw_only=True):
    """A named breach of one clause. ``witness`` holds the indices of the fewest events that prove it."""

    name: str
    clause: str
    key: Key
    message: str
    witness: tuple[int, ...]
    severity: Severity = "safety"


class Undecided(msgspec.Struct, frozen=True, kw_only=True):
    """A clause that was provoked but that this history cannot decide, and why."""

    clause: str
    key: Key
    reason: str
    witness: tuple[int, ...] = ()


class FoldState:
    """What a fold remembers of one key. ``judged`` counts, per clause id, how often the rule was really put to test."""

    __slots__ = ("judged", "key", "undecided")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.judged: Counter[str] = Counter()
        self.undecided: list[Undecided] = []


S = TypeVar("S", bound=FoldState)


class Invariant(ABC, Generic[S]):
    """A keyed fold. Pure: no I/O, no clock, no randomness; everything it knows comes from the events."""

    name: ClassVar[str]
    family: ClassVar[str]
    clauses: ClassVar[tuple[str, ...]]

    @abstractmethod
    def key(self, event: Event) -> Key | None:
        """The key whose stream this event belongs to, or None when the fold does not read it.

        Whether there is one depends on the layer, the kind and the names (topic, producer, connection, ...) alone,
        and an event of a persistent topic with all names has one if any of its layer and kind has
        (``harness.invariants.routes``).
        """

    def broadcast(self, event: Event) -> bool:
        """Whether every key of this fold must see the event (a broker crash, say). Keep these rare.

        Depends on the layer, the kind and which names are missing alone.
        """
        return False

    @abstractmethod
    def start(self, key: Key) -> S:
        """The state before the first event of a key."""

    @abstractmethod
    def step(self, state: S, event: Event) -> Iterable[Anomaly]:
        """Take one event of the key's stream; mutate ``state``; yield what is now proved."""

    @abstractmethod
    def finish(self, state: S) -> Iterable[Anomaly]:
        """The stream has ended: yield what only its end can prove."""
