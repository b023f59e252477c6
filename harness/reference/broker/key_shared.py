"""Key_Shared: a key goes to one consumer at a time, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.reference.broker.breach import Refusal
from harness.reference.broker.consumer import Consumer
from harness.reference.broker.key_ranges import KeyRanges, SplitRanges, StickyRanges
from harness.reference.broker.murmur3 import sticky_slot
from harness.reference.broker.shared import SharedDispatcher
from harness.reference.broker.stored_entry import StoredEntry
from harness.wire.pulsar_pb2 import STICKY, KeySharedMeta

if TYPE_CHECKING:
    from harness.reference.broker.subscription import Subscription


class KeySharedDispatcher(SharedDispatcher):
    """A slot whose entries are still held by an earlier owner waits until that owner has acknowledged them or gone.

    An entry that is set aside keeps later ones of its slot from overtaking it.
    """

    def __init__(self, subscription: Subscription, meta: KeySharedMeta) -> None:
        super().__init__(subscription)
        self._mode = meta.keySharedMode
        self._any_order = meta.allowOutOfOrderDelivery
        self.ranges: KeyRanges = StickyRanges() if self._mode == STICKY else SplitRanges()
        self._holders: dict[int, tuple[Consumer, int]] = {}
        self._blocked: set[int] = set()

    def add(self, consumer: Consumer) -> None:
        meta = consumer.request.keySharedMeta
        if meta.keySharedMode != self._mode or meta.allowOutOfOrderDelivery != self._any_order:
            raise Refusal("ConsumerBusy", "the subscription has another Key_Shared policy")
        self.ranges.add(consumer)
        super().add(consumer)

    def remove(self, consumer: Consumer) -> None:
        self.ranges.remove(consumer)
        super().remove(consumer)

    def rewind(self) -> None:
        super().rewind()
        self._holders.clear()

    def pump(self) -> None:
        self._blocked.clear()
        super().pump()

    def slot(self, stored: StoredEntry) -> int:
        return sticky_slot(stored.sticky_key)

    def _assign(self, offset: int, stored: StoredEntry) -> Consumer | None:
        slot = self.slot(stored)
        consumer = self.ranges.owner(slot)
        if consumer is None or not self._ready(consumer) or not self._in_order(slot, consumer):
            self._blocked.add(slot)
            return None
        return consumer

    def _in_order(self, slot: int, consumer: Consumer) -> bool:
        """Nothing of the slot waits in front, and nobody else holds any of it."""
        if self._any_order:
            return True
        if slot in self._blocked:
            return False
        holder = self._holders.get(slot)
        return holder is None or holder[0] is consumer

    def _send(self, consumer: Consumer, offset: int, stored: StoredEntry) -> None:
        slot = self.slot(stored)
        self._holders[slot] = (consumer, self._holders.get(slot, (consumer, 0))[1] + 1)
        super()._send(consumer, offset, stored)

    def _release(self, consumer: Consumer, offset: int) -> bool:
        if not super()._release(consumer, offset):
            return False
        slot = self.slot(self.entries[offset])
        holder = self._holders.get(slot)
        if holder is not None and holder[0] is consumer:
            if holder[1] > 1:
                self._holders[slot] = (consumer, holder[1] - 1)
            else:
                del self._holders[slot]
        return True
