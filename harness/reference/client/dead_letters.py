"""Messages that were redelivered too often, on their way to another topic (clauses DLQ-01 to DLQ-03, CDLQ)."""

from __future__ import annotations

from typing import Literal

from harness.reference.client.delivery import Delivery
from harness.wire.message_id import Position

ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
REAL_TOPIC = "REAL_TOPIC"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"


class DeadLetters:
    """The application sees redelivery counts 0 to ``max_redeliver``; what would come once more is transferred.

    An entry is *candidate* from its arrival with the last count, *in transfer* from its publication until every copy
    is confirmed. Only then may it be acknowledged.
    """

    def __init__(self, max_redeliver: int) -> None:
        self.max_redeliver = max_redeliver
        self._candidates: dict[Position, list[Delivery]] = {}
        self._open_copies: dict[Position, int] = {}
        self._failed: set[Position] = set()

    def is_last_chance(self, redelivery_count: int) -> bool:
        """Whether the next redelivery would be one too many."""
        return redelivery_count >= self.max_redeliver

    def is_exhausted(self, redelivery_count: int) -> bool:
        """Whether the application must not see it any more."""
        return redelivery_count > self.max_redeliver

    def arrived(self, position: Position, deliveries: list[Delivery]) -> None:
        """Remember an entry that has its last chance, or none: its payload is needed for the copy."""
        self._candidates[position] = deliveries

    def is_candidate(self, position: Position) -> bool:
        """Whether a redelivery request for this entry becomes a transfer."""
        return position in self._candidates

    def in_transfer(self, position: Position) -> bool:
        """Whether copies of this entry are on their way."""
        return position in self._open_copies

    def acknowledged(self, position: Position) -> None:
        """The application took the whole entry after all (CDLQ-05)."""
        self._candidates.pop(position, None)

    def acknowledged_up_to(self, position: Position) -> None:
        """The application took everything up to ``position``."""
        for entry in [entry for entry in self._candidates if entry <= position]:
            del self._candidates[entry]

    def start_transfer(self, position: Position, acked: set[int]) -> list[Delivery]:
        """What to publish: of a batch not the members in ``acked`` (DLQ-03)."""
        copies = [
            delivery
            for delivery in self._candidates.pop(position)
            if delivery.batch_index is None or delivery.batch_index not in acked
        ]
        if copies:
            self._open_copies[position] = len(copies)
        return copies

    def copy_settled(self, position: Position, stored: bool) -> Literal["open", "stored", "failed"]:
        """One copy is confirmed, or not known to be stored. ``stored`` once all of them are (CDLQ-08): the source may
        be acknowledged; ``failed`` once the last one is settled and some were not: the source must come again.
        """
        self._open_copies[position] -= 1
        if not stored:
            self._failed.add(position)
        if self._open_copies[position]:
            return "open"
        del self._open_copies[position]
        if position in self._failed:
            self._failed.remove(position)
            return "failed"
        return "stored"

    def properties(self, delivery: Delivery, topic: str, subscription: str) -> dict[str, str]:
        """Properties of the copy: the original ones and where it comes from."""
        return {
            **delivery.properties,
            ORIGIN_MESSAGE_ID: origin_message_id(delivery),
            REAL_TOPIC: topic,
            REAL_SUBSCRIPTION: subscription,
        }

    def forget_candidates(self) -> None:
        """A new connection brings them again, with their counts (CDLQ-11)."""
        self._candidates.clear()


def origin_message_id(delivery: Delivery) -> str:
    """``ledger:entry:partition``, of a batch ``ledger:entry:partition:index``; partition is -1."""
    text = f"{delivery.position}:-1"
    return text if delivery.batch_index is None else f"{text}:{delivery.batch_index}"
