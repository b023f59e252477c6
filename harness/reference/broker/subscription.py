"""One subscription: a cursor, the consumers, and the dispatcher of its type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.reference.broker.ack_set import from_words
from harness.reference.broker.answers import signed
from harness.reference.broker.breach import Refusal
from harness.reference.broker.consumer import Consumer
from harness.reference.broker.core import Core
from harness.reference.broker.cursor import CursorState
from harness.reference.broker.dispatcher import Dispatcher
from harness.wire.pulsar_pb2 import CommandAck, CommandSubscribe, MessageIdData

if TYPE_CHECKING:
    from harness.reference.broker.topic import Topic


class Subscription:
    """The cursor is saved at most every ``cursor_save_interval``; a crash goes back to the last save (MARKDEL-04)."""

    def __init__(self, name: str, topic: Topic, core: Core, *, mark_delete: int, durable: bool) -> None:
        self.name = name
        self.topic = topic
        self.core = core
        self.durable = durable
        self.cursor = core.parts.cursor(mark_delete)
        self.type: int = CommandSubscribe.Exclusive
        self.dispatcher: Dispatcher = core.parts.single_active(self)
        self._saved: CursorState = self.cursor.save()
        self._saved_at = core.now
        self._dirty = False

    # ------------------------------------------------------------------------------------------------ consumers

    def prepare(self, request: CommandSubscribe) -> None:
        """Chooses the dispatcher for a first consumer; raises ``Refusal`` when others are there with another type."""
        if self.dispatcher.consumers:
            if request.subType != self.type:
                raise Refusal("ConsumerBusy", "the subscription is of another type")
        elif request.subType != self.type or request.HasField("keySharedMeta"):
            self.type = request.subType
            self.dispatcher = self._new_dispatcher(request)

    def _new_dispatcher(self, request: CommandSubscribe) -> Dispatcher:
        parts = self.core.parts
        if request.subType == CommandSubscribe.Shared:
            return parts.shared(self)
        if request.subType == CommandSubscribe.Key_Shared:
            return parts.key_shared(self, request.keySharedMeta)
        return parts.single_active(self)

    def detach(self, consumer: Consumer) -> None:
        """The consumer is gone; a subscription without memory goes with its last one."""
        self.dispatcher.remove(consumer)
        if not self.durable and not self.dispatcher.consumers:
            self.topic.drop_subscription(self)

    # ------------------------------------------------------------------------------------------------ acknowledgement

    def acknowledge(self, ack: CommandAck) -> None:
        """Ids that name no stored entry are left out (ACK-IND-06); a cumulative ack on Shared does nothing."""
        if ack.ack_type == CommandAck.Individual:
            for given in ack.message_id:
                self._ack_one(given)
        elif len(ack.message_id) == 1 and self.type in (CommandSubscribe.Exclusive, CommandSubscribe.Failover):
            self._ack_through(ack.message_id[0])
        self.touch()
        self.dispatcher.acks_applied()

    def _ack_one(self, given: MessageIdData) -> None:
        offset = self.topic.ledgers.offset(signed(given.ledgerId), signed(given.entryId))
        if offset is None:
            return
        if given.ack_set:
            if not self.core.config.batch_index_ack:
                return
            size = self.topic.ledgers.entries[offset].num_messages
            self.cursor.ack_batch(offset, from_words(given.ack_set), size)
        else:
            self.cursor.ack(offset)
        self.dispatcher.acked(offset)

    def _ack_through(self, given: MessageIdData) -> None:
        ledgers = self.topic.ledgers
        ledger, entry = signed(given.ledgerId), signed(given.entryId)
        if self._is_beyond(ledger, entry):
            return
        exact = ledgers.offset(ledger, entry)
        if exact is not None and given.ack_set:
            self.cursor.ack_through(exact - 1)
            if self.core.config.batch_index_ack:
                self.cursor.ack_batch(exact, from_words(given.ack_set), ledgers.entries[exact].num_messages)
        else:
            # The id need not exist: the one in front of a ledger's first entry is sent as entry -1 (ACK-CUM-06).
            self.cursor.ack_through(ledgers.through(ledger, entry) - 1)

    def _is_beyond(self, ledger: int, entry: int) -> bool:
        entries = self.topic.ledgers.entries
        return not entries or (ledger, entry) > (entries[-1].ledger, entries[-1].entry)

    # ------------------------------------------------------------------------------------------------ persistence

    def touch(self) -> None:
        """The cursor may have changed: save it now, or not later than the flush interval."""
        if not self.durable:
            return
        config = self.core.config
        if self.core.now - self._saved_at >= config.cursor_save_interval:
            self.save()
        elif not self._dirty:
            self._dirty = True
            self.core.timers.set(self._saved_at + config.cursor_flush_interval, self._flush)

    def _flush(self) -> None:
        if self._dirty:
            self.save()

    def save(self) -> None:
        self._saved = self.cursor.save()
        self._saved_at = self.core.now
        self._dirty = False

    def recover(self) -> None:
        """After a restart: the last saved cursor, no consumers, no redelivery counts (REDEL-02)."""
        self.cursor.restore(self._saved)
        self._dirty = False
        self.type = CommandSubscribe.Exclusive
        self.dispatcher = self.core.parts.single_active(self)

    # ------------------------------------------------------------------------------------------------ the rest

    def entries_added(self) -> None:
        self.dispatcher.pump()

    def seek(self, mark_delete: int, first: tuple[int, int] | None = None) -> None:
        """Deliveries start after offset ``mark_delete``; ``first`` is (offset, remaining bits) of a batch begun."""
        self.cursor.reset(mark_delete)
        if first is not None:
            self.cursor.batches[first[0]] = first[1]
        self.dispatcher.rewind()
        self.save()
