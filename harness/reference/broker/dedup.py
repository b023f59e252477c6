"""Deduplication marks of one topic, by producer name."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from harness.reference.broker.stored_entry import StoredEntry, is_chunk_before_last
from harness.wire.pulsar_pb2 import MessageMetadata


class Judgement(Enum):
    """What a sequence id means to the broker (DEDUP-01, DEDUP-02, DEDUP-03)."""

    FRESH = "fresh"
    DUPLICATE = "duplicate"
    UNDETERMINED = "undetermined"


class DedupMarks:
    """Highest sequence ids *pushed* to storage and *persisted* there; a name without a mark was never seen.

    Callers ask ``judged`` first: pieces of a chunked message other than the last leave no mark (DEDUP-08).
    """

    def __init__(self) -> None:
        self.pushed: dict[str, int] = {}
        self.persisted: dict[str, int] = {}

    def judged(self, metadata: MessageMetadata) -> bool:
        """Whether a message with these labels is subject to deduplication at all."""
        return not is_chunk_before_last(metadata)

    def judge(self, producer: str, lowest: int) -> Judgement:
        """A batch is judged as one unit, by its lowest sequence id (DEDUP-05)."""
        if lowest > self.pushed.get(producer, -1):
            return Judgement.FRESH
        if lowest <= self.persisted.get(producer, -1):
            return Judgement.DUPLICATE
        return Judgement.UNDETERMINED

    def push(self, producer: str, highest: int) -> None:
        """The write of ``highest`` has begun."""
        self.pushed[producer] = max(highest, self.pushed.get(producer, -1))

    def persist(self, producer: str, highest: int) -> None:
        """The write of ``highest`` has succeeded. It may have begun before marks were kept, so it counts as pushed."""
        self.persisted[producer] = max(highest, self.persisted.get(producer, -1))
        self.push(producer, highest)

    def release(self) -> None:
        """Writes have failed and none is under way: what was pushed only may be sent again (DEDUP-06)."""
        self.pushed = dict(self.persisted)

    def last_sequence_id(self, producer: str) -> int:
        """For PRODUCER_SUCCESS: the highest persisted id, -1 for an unknown name (RCPT-07, DEDUP-07)."""
        return self.persisted.get(producer, -1)

    def snapshot(self) -> dict[str, int]:
        """What is stored from time to time."""
        return dict(self.persisted)

    def restore(self, snapshot: dict[str, int], later: Iterable[StoredEntry]) -> None:
        """Marks after a crash: the snapshot, then the entries stored since it was taken (DEDUP-04)."""
        self.persisted = dict(snapshot)
        for entry in later:
            if self.judged(entry.metadata):
                self.persist(entry.producer, entry.last_sequence_id)
        self.release()
