"""One topic: its write pipeline, producers and subscriptions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from harness.reference.broker.core import Core
from harness.reference.broker.dedup import Judgement
from harness.reference.broker.producer import Producer
from harness.reference.broker.stored_entry import StoredEntry
from harness.reference.broker.subscription import Subscription
from harness.reference.broker.topic_name import TopicName
from harness.wire.pulsar_pb2 import MessageMetadata


@dataclass(frozen=True, slots=True)
class Publication:
    """One SEND that passed the checks on its frame."""

    sequence_id: int
    highest_sequence_id: int | None
    num_messages: int
    metadata: MessageMetadata
    payload: bytes
    body: bytes

    @property
    def last_sequence_id(self) -> int:
        if self.highest_sequence_id is None:
            return self.sequence_id
        return max(self.sequence_id, self.highest_sequence_id)


class Topic:
    """Entries are persisted in the order in which they were accepted, ``storage_latency`` later."""

    def __init__(self, name: TopicName, core: Core) -> None:
        self.name = name
        self.core = core
        self.ledgers = core.parts.ledgers(core.new_ledger_id, core.config.max_entries_per_ledger)
        self.dedup = core.parts.dedup()
        self.dedup_enabled = core.dedup_enabled(name.complete)
        self.terminated = False
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self._writing: deque[tuple[StoredEntry, Producer]] = deque()
        self._snapshot: tuple[int, dict[str, int]] = (0, {})

    # ------------------------------------------------------------------------------------------------ producers

    def add_producer(self, producer: Producer) -> None:
        self.producers[producer.name] = producer

    def remove_producer(self, producer: Producer) -> None:
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]

    def last_sequence_id(self, producer: str) -> int:
        return self.dedup.last_sequence_id(producer) if self.dedup_enabled else -1

    # ------------------------------------------------------------------------------------------------ publishing

    def publish(self, producer: Producer, publication: Publication) -> None:
        """Stores, or answers a known duplicate at once, or refuses what cannot be decided (DEDUP-01..03)."""
        if self.terminated:
            producer.refuse(publication.last_sequence_id, "TopicTerminatedError", "the topic was terminated")
            return
        if self.dedup_enabled and self.dedup.judged(publication.metadata):
            judgement = self.dedup.judge(producer.name, publication.sequence_id)
            if judgement is Judgement.DUPLICATE:
                producer.receipt(publication.sequence_id, publication.highest_sequence_id, None)
                return
            if judgement is Judgement.UNDETERMINED:
                producer.refuse(
                    publication.last_sequence_id, "PersistenceError", "cannot determine whether this is a duplicate"
                )
                return
            self.dedup.push(producer.name, publication.last_sequence_id)
        self._write(producer, publication)

    def _write(self, producer: Producer, publication: Publication) -> None:
        ledger, entry = self.ledgers.reserve()
        producer.pending += 1
        stored = StoredEntry(
            ledger,
            entry,
            producer.name,
            publication.sequence_id,
            publication.highest_sequence_id,
            publication.num_messages,
            publication.metadata,
            publication.payload,
            publication.body,
        )
        self._writing.append((stored, producer))
        latency = self.core.config.storage_latency
        if latency:
            self.core.timers.set(self.core.now + latency, self._persist_next)
        else:
            self._persist_next()

    def _persist_next(self) -> None:
        # A failure or an unload may have emptied the queue before the timer of the write came.
        if self._writing:
            self._persist(*self._writing.popleft())

    def _persist(self, stored: StoredEntry, producer: Producer) -> None:
        """The oldest write has succeeded: only now may anybody learn of it (RECEIPT-05, RCPT-06)."""
        self.ledgers.store(stored)
        if self.dedup_enabled and self.dedup.judged(stored.metadata):
            self.dedup.persist(stored.producer, stored.last_sequence_id)
        if len(self.ledgers) - self._snapshot[0] >= self.core.config.dedup_snapshot_entries:
            self.take_snapshot()
        producer.receipt(stored.sequence_id, stored.highest_sequence_id, (stored.ledger, stored.entry))
        producer.settle()
        for subscription in self.subscriptions.values():
            subscription.entries_added()

    def finish_writes(self) -> None:
        """Persists everything under way, as an orderly closing does."""
        while self._writing:
            self._persist_next()

    def fail_writes(self) -> None:
        """Storage refuses everything under way; afterwards the topic accepts writes again (DEDUP-06)."""
        failed, self._writing = self._writing, deque()
        self.ledgers.abandon()
        self.dedup.release()
        for stored, producer in failed:
            producer.refuse(stored.last_sequence_id, "PersistenceError", "the write failed")
            producer.settle()

    # ------------------------------------------------------------------------------------------------ deduplication

    def set_dedup(self, enabled: bool) -> None:
        """Switching on starts without marks: what was stored before is not known (DEDUP-09)."""
        if enabled == self.dedup_enabled:
            return
        self.dedup_enabled = enabled
        self.dedup = self.core.parts.dedup()
        self.take_snapshot()

    def take_snapshot(self) -> None:
        """Persists the marks, so that a restart need not read what is older."""
        self._snapshot = (len(self.ledgers), self.dedup.snapshot())

    # ------------------------------------------------------------------------------------------------ subscriptions

    def drop_subscription(self, subscription: Subscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]

    # ------------------------------------------------------------------------------------------------ stop and start

    def recover(self) -> None:
        """State after a restart: what was persisted, and nothing else."""
        self._writing.clear()
        self.producers.clear()
        self.ledgers.abandon()
        since, marks = self._snapshot
        self.dedup = self.core.parts.dedup()
        if self.dedup_enabled:
            self.dedup.restore(marks, self.ledgers.entries[since:])
        for subscription in list(self.subscriptions.values()):
            if subscription.durable:
                subscription.recover()
            else:
                self.drop_subscription(subscription)
