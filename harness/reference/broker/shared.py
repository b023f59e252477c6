"""Shared: round robin, with a queue of entries to send again."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.reference.broker.config import MILLISECOND
from harness.reference.broker.consumer import Consumer
from harness.reference.broker.dispatcher import Dispatcher
from harness.reference.broker.stored_entry import StoredEntry

if TYPE_CHECKING:
    from harness.reference.broker.subscription import Subscription


class SharedDispatcher(Dispatcher):
    """``again`` holds offsets to be sent before anything new, lowest first. ``owners`` says who holds an entry."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.counts = subscription.core.parts.redelivery_counts()
        self.owners: dict[int, Consumer] = {}
        self._again: list[int] = []
        self._queued: set[int] = set()
        self._pins: dict[str, Consumer] = {}
        self._turn = 0

    # ------------------------------------------------------------------------------------------------ consumers

    def admits(self, consumer: Consumer) -> Consumer | None:
        return None

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda other: other.priority)

    def joined(self, consumer: Consumer) -> None:
        self.pump()

    def remove(self, consumer: Consumer) -> None:
        """What it held goes to the others, without counting; with the last one everything starts over."""
        self.consumers.remove(consumer)
        self._pins = {uuid: owner for uuid, owner in self._pins.items() if owner is not consumer}
        for offset in list(consumer.pending):
            self._release(consumer, offset)
            self._enqueue(offset)
        if not self.consumers:
            self.rewind()
        self.pump()

    def rewind(self) -> None:
        super().rewind()
        self.counts.clear()
        self._again.clear()
        self._queued.clear()
        self._pins.clear()

    def may_unsubscribe(self, consumer: Consumer) -> bool:
        return self.consumers == [consumer]

    # ------------------------------------------------------------------------------------------------ what to send

    def _enqueue(self, offset: int) -> None:
        if offset not in self._queued:
            self._queued.add(offset)
            heapq.heappush(self._again, offset)

    def _next(self) -> int | None:
        """Takes the next entry to send: first what must be sent again, then what is new."""
        while self._again:
            offset = heapq.heappop(self._again)
            self._queued.discard(offset)
            if not self.cursor.is_acked(offset):
                return offset
        offset = self.cursor.next_unacked(self.read)
        if offset >= len(self.entries):
            return None
        self.read = offset + 1
        return offset

    def pump(self) -> None:
        """Entries that nobody may take now are set aside, at most ``look_ahead`` of them, and queued again."""
        aside: list[int] = []
        limit = self.subscription.core.config.look_ahead
        while len(aside) < limit and any(map(self._ready, self.consumers)):
            offset = self._next()
            if offset is None:
                break
            stored = self.entries[offset]
            if self._delayed(offset, stored):
                continue
            consumer = self._assign(offset, stored)
            if consumer is None:
                aside.append(offset)
            else:
                self._send(consumer, offset, stored)
        for offset in aside:
            self._enqueue(offset)

    def _ready(self, consumer: Consumer) -> bool:
        """Permits, and room below the cap of unacknowledged messages (FLOW-05)."""
        return consumer.permits.allow() and consumer.unacked < self.subscription.core.config.max_unacked_per_consumer

    def _delayed(self, offset: int, stored: StoredEntry) -> bool:
        """Whether the entry must wait for its delivery time; it comes back by itself then (FILTER-02)."""
        core = self.subscription.core
        due = stored.metadata.deliver_at_time * MILLISECOND
        if due <= core.now:
            return False
        core.timers.set(due, lambda: self._due(offset))
        return True

    def _due(self, offset: int) -> None:
        # After a rewind the entry may have been read, and set aside, a second time.
        if offset < self.read and offset not in self.owners:
            self._enqueue(offset)
            self.pump()

    # ------------------------------------------------------------------------------------------------ to whom

    def _assign(self, offset: int, stored: StoredEntry) -> Consumer | None:
        """Who gets the entry; None: nobody now."""
        if stored.metadata.HasField("uuid") and stored.metadata.num_chunks_from_msg > 1:
            return self._pinned(stored)
        return self._next_consumer()

    def _pinned(self, stored: StoredEntry) -> Consumer | None:
        """All pieces of a chunked message go to one consumer (CHUNK-08)."""
        metadata = stored.metadata
        consumer = self._pins.get(metadata.uuid) or self._next_consumer()
        if consumer is None or not self._ready(consumer):
            return None
        if metadata.chunk_id == metadata.num_chunks_from_msg - 1:
            self._pins.pop(metadata.uuid, None)
        else:
            self._pins[metadata.uuid] = consumer
        return consumer

    def _next_consumer(self) -> Consumer | None:
        """Round robin among those that are ready and have the smallest priority number (DISP-01)."""
        best: Consumer | None = None
        count = len(self.consumers)
        for step in range(count):
            place = (self._turn + step) % count
            consumer = self.consumers[place]
            if self._ready(consumer) and (best is None or consumer.priority < best.priority):
                best, chosen = consumer, place
        if best is not None:
            self._turn = (chosen + 1) % count
        return best

    def _send(self, consumer: Consumer, offset: int, stored: StoredEntry) -> None:
        remaining = self.remaining(offset)
        self.owners[offset] = consumer
        consumer.hold(offset, remaining.bit_count())
        consumer.deliver(stored, remaining, self.counts.get(offset))

    # ------------------------------------------------------------------------------------------------ what comes back

    def _release(self, consumer: Consumer, offset: int) -> bool:
        """The consumer holds the entry no longer; False when it did not."""
        self.owners.pop(offset, None)
        return consumer.let_go(offset)

    def redeliver(self, consumer: Consumer, offsets: Sequence[int] | None) -> None:
        """Entries that this consumer does not hold are none of its business."""
        for offset in list(consumer.pending) if offsets is None else offsets:
            if offset in consumer.pending:
                self._release(consumer, offset)
                self.counts.named(offset)
                self._enqueue(offset)
        self.pump()

    def acked(self, offset: int) -> None:
        if self.cursor.is_acked(offset):
            self.counts.forget(offset)
        owner = self.owners.get(offset)
        if owner is None:
            return
        if self.cursor.is_acked(offset):
            self._release(owner, offset)
        else:
            owner.hold(offset, self.remaining(offset).bit_count())

    def acks_applied(self) -> None:
        self.pump()
