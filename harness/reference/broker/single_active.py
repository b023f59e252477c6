"""Exclusive and Failover: one active consumer, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.reference.broker import answers
from harness.reference.broker.breach import Refusal
from harness.reference.broker.consumer import Consumer
from harness.reference.broker.dispatcher import Dispatcher
from harness.reference.broker.murmur3 import sticky_slot
from harness.reference.broker.stored_entry import StoredEntry
from harness.reference.broker.timers import Timer
from harness.wire.pulsar_pb2 import CommandSubscribe

if TYPE_CHECKING:
    from harness.reference.broker.subscription import Subscription


class SingleActiveDispatcher(Dispatcher):
    """Every change of the active consumer rewinds; with Failover after a delay, so that the old one's acks can land."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.active: Consumer | None = None
        self._takeover: Timer | None = None

    @property
    def failover(self) -> bool:
        return self.subscription.type == CommandSubscribe.Failover

    def admits(self, consumer: Consumer) -> Consumer | None:
        return None if self.failover or not self.consumers else self.consumers[0]

    def add(self, consumer: Consumer) -> None:
        if self.admits(consumer) is not None:
            raise Refusal("ConsumerBusy", "the subscription has an exclusive consumer")
        self.consumers.append(consumer)

    def joined(self, consumer: Consumer) -> None:
        if not self._choose():
            self._announce([consumer])

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._choose()

    def choice(self) -> Consumer | None:
        """Smallest priority number first; then by partition, so that partitions spread, or the one that came first."""
        if not self.consumers:
            return None
        best = min(consumer.priority for consumer in self.consumers)
        eligible = [consumer for consumer in self.consumers if consumer.priority == best]
        partition = self.subscription.topic.name.partition
        if partition < 0:
            return eligible[0]
        eligible.sort(key=lambda consumer: consumer.name)
        return eligible[partition % len(eligible)]

    def _choose(self) -> bool:
        """Takes the choice; False when it is the active consumer already."""
        chosen = self.choice()
        if chosen is self.active:
            return False
        self.active = chosen
        if self._takeover is not None:
            self._takeover.cancel()
            self._takeover = None
        delay = self.subscription.core.config.failover_delay
        if chosen is not None and self.failover and delay:
            core = self.subscription.core
            self._takeover = core.timers.set(core.now + delay, self._take_over)
        else:
            self._take_over()
        return True

    def _take_over(self) -> None:
        self._takeover = None
        self._announce(self.consumers)
        self.rewind()
        self.pump()

    def _announce(self, consumers: Sequence[Consumer]) -> None:
        """Tells who is active and who is not (CONS-18); Exclusive has nothing to tell."""
        if self.failover and self._takeover is None:
            for consumer in consumers:
                consumer.connection.send(answers.active_consumer_change(consumer.id, consumer is self.active))

    def pump(self) -> None:
        consumer = self.active
        if consumer is None or self._takeover is not None:
            return
        entries, cursor = self.entries, self.cursor
        while consumer.permits.allow():
            offset = cursor.next_unacked(self.read)
            if offset >= len(entries):
                break
            self.read = offset + 1
            if self.wants(consumer, entries[offset]):
                consumer.deliver(entries[offset], self.remaining(offset), 0)

    def wants(self, consumer: Consumer, stored: StoredEntry) -> bool:
        """A consumer with hash ranges gets only the entries whose slot is in one of them (KEYHASH-01)."""
        ranges = consumer.request.keySharedMeta.hashRanges
        if not ranges:
            return True
        slot = sticky_slot(stored.sticky_key)
        return any(part.start <= slot <= part.end for part in ranges)

    def redeliver(self, consumer: Consumer, offsets: Sequence[int] | None) -> None:
        """Single entries cannot come again without breaking the order, so everything does (REDEL-01)."""
        if consumer is self.active:
            self.rewind()
            self.pump()

    def acked(self, offset: int) -> None:
        """Nothing is kept per entry."""

    def acks_applied(self) -> None:
        """Acknowledging frees nothing here."""

    def may_unsubscribe(self, consumer: Consumer) -> bool:
        return self.consumers == [consumer]
