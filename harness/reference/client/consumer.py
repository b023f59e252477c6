"""A consumer: from a pushed entry to the application, and back with what it decides (CONS, RECV, PERMIT, ACK)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from harness.reference.client.ack_sender import AckSender
from harness.reference.client.ack_set import from_words, to_words
from harness.reference.client.chunk_assembler import Assembled
from harness.reference.client.config import SECOND
from harness.reference.client.connection import Connection
from harness.reference.client.consumer_options import ConsumerOptions, SubscriptionType
from harness.reference.client.counters import Counters
from harness.reference.client.dead_letter_producer import DeadLetterProducer
from harness.reference.client.dead_letters import DeadLetters
from harness.reference.client.delivery import Delivery
from harness.reference.client.failure import CLOSED, INTERRUPTED, TIMED_OUT, Failure
from harness.reference.client.link import Link
from harness.reference.client.lookup import Lookup
from harness.reference.client.message_reader import member_delivery, permits_taken, plain_delivery
from harness.reference.client.pool import ConnectionPool
from harness.reference.client.runtime import Runtime
from harness.reference.client.timers import Timer
from harness.wire import codec
from harness.wire.chunk import ChunkLabel
from harness.wire.frame import Frame, WireError
from harness.wire.message import compression_of, is_batch
from harness.wire.message_id import LATEST, SENTINEL, Position
from harness.wire.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandCloseConsumer,
    CommandFlow,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
    KeySharedMeta,
    KeySharedMode,
    MessageIdData,
    MessageMetadata,
)

State = Literal["creating", "open", "failed", "unsubscribing", "closing", "closed"]
OnDone = Callable[[], None]
OnFailed = Callable[[Failure], None]

_SUB_TYPES: dict[SubscriptionType, CommandSubscribe.SubType] = {
    "exclusive": CommandSubscribe.Exclusive,
    "failover": CommandSubscribe.Failover,
    "shared": CommandSubscribe.Shared,
    "key_shared": CommandSubscribe.Key_Shared,
}


class Consumer:
    """Attached by a ``Link``; owns the parts that decide permits, batches, pieces and acknowledgements."""

    def __init__(
        self,
        runtime: Runtime,
        pool: ConnectionPool,
        lookup: Lookup,
        counters: Counters,
        options: ConsumerOptions,
        on_created: OnDone,
        on_creation_failed: OnFailed,
    ) -> None:
        parts, config = runtime.parts, runtime.config
        self._runtime = runtime
        self._counters = counters
        self.options = options
        self.id = counters.consumer_id()
        self.state: State = "creating"
        self._on_created = on_created
        self._on_creation_failed = on_creation_failed
        self._permits = parts.permits(options.queue)
        self._queue = parts.receive_queue()
        self._splitter = parts.batch_splitter()
        self._assembler = parts.chunk_assembler(options.max_pending_chunked, options.expire_chunks)
        self._acks = parts.ack_tracker(options.batch_index_ack)
        self._ack_sender = AckSender(runtime, counters, self.id, self._acks, options.ack_group, options.ack_receipt)
        self._nacks = parts.negative_acks(options.nack_delay)
        self._timeouts = parts.ack_timeouts(options.ack_timeout, SECOND, runtime.now)
        self._dead: DeadLetters | None = None
        if options.max_redeliver is not None and options.shared:
            self._dead = parts.dead_letters(options.max_redeliver)
        self._dead_producer = DeadLetterProducer(
            runtime, pool, lookup, counters, self._dead_letter_topic(), f"{options.subscription}-{options.name}-DLQ"
        )
        backoff = parts.backoff(config.backoff_initial, config.backoff_maximum, None)
        self._link = Link(runtime, pool, lookup, options.topic, self, backoff)
        self._connection: Connection | None = None
        self._epoch = 0
        self._rewinds = 0
        self._handed: list[Delivery] = []
        self._waiting_receives: list[Callable[[Failure], None]] = []
        self._closes: list[tuple[OnDone, OnFailed]] = []
        self._seek: _Seek | None = None
        self._clock: Timer | None = None
        self._link.start()

    def _dead_letter_topic(self) -> str:
        return self.options.dead_letter_topic or f"{self.options.topic}-{self.options.subscription}-DLQ"

    # ------------------------------------------------------------------ receiving

    def receive(
        self, timeout: int, on_message: Callable[[int, Delivery], None], on_nothing: OnDone, on_failed: OnFailed
    ) -> None:
        """The next message with its reference, or nothing after ``timeout`` nanoseconds (RECV-02, RECV-03, CONS-10)."""
        refusal = self._refusal()
        if refusal is not None:
            on_failed(refusal)
            return
        delivery = self._queue.take()
        if delivery is not None:
            on_message(self._hand_out(delivery), delivery)
            return
        if timeout <= 0:
            on_nothing()
            return

        def arrived(delivery: Delivery) -> None:
            timer.cancel()
            self._waiting_receives.remove(closed)
            on_message(self._hand_out(delivery), delivery)

        def expired() -> None:
            self._queue.stop_waiting(arrived)
            self._waiting_receives.remove(closed)
            on_nothing()

        def closed(failure: Failure) -> None:
            timer.cancel()
            self._queue.stop_waiting(arrived)
            on_failed(failure)

        timer = self._runtime.after(timeout, expired)
        self._queue.wait(arrived)
        self._waiting_receives.append(closed)

    def _hand_out(self, delivery: Delivery) -> int:
        """The application has it now: its permit is free, its timer runs (PERMIT-04, PERMIT-06, UNACK-03)."""
        self._handed.append(delivery)
        if delivery.epoch == self._epoch:
            self._credit(1)
        self._timeouts.add(delivery, self._runtime.now)
        self._wind_clock()
        return len(self._handed) - 1

    def delivery(self, ref: int) -> Delivery | None:
        """What was handed out as ``ref``."""
        return self._handed[ref] if 0 <= ref < len(self._handed) else None

    def _refusal(self) -> Failure | None:
        if self.state in ("closing", "closed"):
            return CLOSED
        if self.state in ("creating", "failed"):
            return Failure("not_connected", "the consumer was never subscribed")
        return None

    # ------------------------------------------------------------------ acknowledging

    def acknowledge(self, delivery: Delivery, on_done: Callable[[bool], None], on_failed: OnFailed) -> None:
        """One message. ``on_done`` says whether the broker confirmed it (ACK-03, ACK-IND-01, ACK-IND-04)."""
        if (refusal := self._ack_refusal()) is not None:
            on_failed(refusal)
            return
        complete = self._acks.individual(delivery)
        if complete:
            self._settled(delivery)
        self._ack_sender.recorded(complete, on_done, on_failed)

    def acknowledge_cumulative(self, delivery: Delivery, on_done: Callable[[bool], None], on_failed: OnFailed) -> None:
        """This message and all before it; refused on shared types (ACK-14, ACK-CUM-01)."""
        refusal = self._ack_refusal()
        if refusal is None and self.options.shared:
            refusal = Failure("invalid", f"no cumulative acknowledgement on a {self.options.type} subscription")
        if refusal is not None:
            on_failed(refusal)
            return
        moved = self._acks.cumulative(delivery)
        whole = self._acks.covered(delivery.position)
        last = delivery.position if whole else Position(delivery.position.ledger, delivery.position.entry - 1)
        self._nacks.remove_up_to(last)
        self._timeouts.remove_up_to(last)
        if self._dead is not None:
            self._dead.acknowledged_up_to(last)
        self._ack_sender.recorded(moved, on_done, on_failed)

    def negative_acknowledge(self, delivery: Delivery, on_done: OnDone, on_failed: OnFailed) -> None:
        """Again, later (REDEL-01). An entry whose acknowledgement is complete is past that (NACK-02)."""
        if (refusal := self._refusal()) is not None:
            on_failed(refusal)
            return
        if not self._acks.hides(delivery.position, delivery.batch_index):
            self._timeouts.remove(delivery.position)
            self._nacks.add(delivery, self._runtime.now)
            self._wind_clock()
        on_done()

    def _ack_refusal(self) -> Failure | None:
        if self.state == "unsubscribing":
            return Failure("not_connected", "the consumer is being unsubscribed")
        refusal = self._refusal()
        if refusal is None and self.options.ack_group == 0 and self._connection is None:
            return Failure("not_connected", "no connection to send the acknowledgement on")  # ACK-10
        return refusal

    def _settled(self, delivery: Delivery) -> None:
        """ACK-22: an entry that is acknowledged as a whole has no timer and is no dead letter."""
        if not self._acks.hides(delivery.position):
            return
        self._timeouts.remove(delivery.position)
        self._nacks.remove(delivery.position)
        if self._dead is not None:
            self._dead.acknowledged(delivery.position)

    # ------------------------------------------------------------------ redelivery

    def _wind_clock(self) -> None:
        """One timer for negative acks, ack timeouts and expiring pieces."""
        if self._clock is not None:
            self._clock.cancel()
        deadlines = [self._nacks.deadline(), self._timeouts.deadline(), self._assembler.deadline()]
        known = [deadline for deadline in deadlines if deadline is not None]
        if known and self.state not in ("closed", "failed"):
            self._clock = self._runtime.timers.at(max(min(known), self._runtime.now), self._clock_due)

    def _clock_due(self) -> None:
        now = self._runtime.now
        expired = self._assembler.take_expired(now)
        for position in expired:
            self._acks.whole_entry(position)
        if expired:
            self._ack_sender.plan()
        due = {delivery.position: delivery for delivery in [*self._nacks.take_due(now), *self._timeouts.take_due(now)]}
        if due:
            self._redeliver(list(due.values()))
        self._wind_clock()

    def _redeliver(self, due: list[Delivery]) -> None:
        """Ask the broker for messages again, or move them to the dead letter topic instead (CDLQ-03, UNACK-06)."""
        if self._connection is None:
            return  # UNACK-11: the broker redelivers after the subscribe anyway
        wanted = [delivery for delivery in due if not self._acks.hides(delivery.position)]
        if self._dead is not None:
            dying = [delivery.position for delivery in wanted if self._dead.is_candidate(delivery.position)]
            wanted = [delivery for delivery in wanted if delivery.position not in dying]
            for position in dying:
                self._transfer(position)
            wanted = [delivery for delivery in wanted if not self._dead.in_transfer(delivery.position)]
        self._ask_again([entry for delivery in wanted for entry in delivery.entries])

    def _ask_again(self, entries: list[Position]) -> None:
        connection = self._connection
        if connection is None or not entries:
            return  # UNACK-08: an empty list would mean all
        self._ack_sender.flush()
        if not self.options.shared:
            self._rewind(connection)
            return
        names = list(dict.fromkeys(entries))
        for position in names:
            self._nacks.remove(position)
            self._timeouts.remove(position)
        self._credit(self._queue.remove_entries(set(names)))
        size = self._runtime.config.redeliver_group_size
        for at in range(0, len(names), size):
            self._send_redeliver(connection, names[at : at + size])

    def _rewind(self, connection: Connection) -> None:
        """UNACK-07: without sharing everything unacknowledged comes again, in order; what is here is dropped."""
        self._rewinds += 1
        self._nacks.clear()
        self._timeouts.clear()
        self._assembler.clear()
        self._credit(self._queue.clear())
        self._send_redeliver(connection, [])

    def _send_redeliver(self, connection: Connection, entries: list[Position]) -> None:
        redeliver = CommandRedeliverUnacknowledgedMessages(
            consumer_id=self.id, message_ids=[position.write() for position in entries]
        )
        if not self.options.shared:
            redeliver.consumer_epoch = self._rewinds
        kind = BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES
        connection.send(BaseCommand(type=kind, redeliverUnacknowledgedMessages=redeliver))

    # ------------------------------------------------------------------ dead letters

    def _transfer(self, position: Position) -> None:
        """Publish first, acknowledge the source after every copy is stored (DLQ-02, CDLQ-04)."""
        assert self._dead is not None
        candidates = self._dead.start_transfer(position, self._acks.acked_members(position))
        self._credit(self._queue.remove_entries({position}))
        self._nacks.remove(position)
        self._timeouts.remove(position)
        if not candidates:  # every member was acknowledged one by one, so nothing is left to copy
            self._acks.whole_entry(position)
            self._ack_sender.plan()
        for delivery in candidates:
            self._publish_copy(delivery)

    def _publish_copy(self, delivery: Delivery) -> None:
        assert self._dead is not None
        properties = self._dead.properties(delivery, self.options.topic, self.options.subscription)
        self._dead_producer.publish(
            delivery.payload,
            delivery.key,
            properties,
            lambda _: self._copy_settled(delivery, True),
            lambda _: self._copy_settled(delivery, False),
        )

    def _copy_settled(self, delivery: Delivery, stored: bool) -> None:
        assert self._dead is not None
        outcome = self._dead.copy_settled(delivery.position, stored)
        if self.state in ("closing", "closed"):
            return
        if outcome == "stored":
            for position in delivery.entries:
                self._acks.whole_entry(position)
            self._ack_sender.plan()
        elif outcome == "failed":
            # Later, not at once: a topic that refuses every copy would make the two of us spin.
            self._nacks.add(delivery, self._runtime.now)
            self._wind_clock()

    # ------------------------------------------------------------------ what the link asks

    def register(self, connection: Connection, timeout: int) -> None:
        """Drop what the broker will send again, then SUBSCRIBE (CONS-01, CONS-12, NACK-03, CDLQ-11)."""
        self._queue.clear()
        self._nacks.clear()
        self._timeouts.clear()
        self._assembler.clear()
        if self._dead is not None:
            self._dead.forget_candidates()
        if self._seek is not None:
            self._acks.reset()
        self._epoch += 1
        epoch = self._epoch
        self._wind_clock()
        connection.attach_consumer(self.id, self)
        request_id = self._counters.request_id()
        initial = CommandSubscribe.Earliest if self.options.earliest else CommandSubscribe.Latest
        subscribe = CommandSubscribe(
            topic=self.options.topic,
            subscription=self.options.subscription,
            subType=_SUB_TYPES[self.options.type],
            consumer_id=self.id,
            request_id=request_id,
            consumer_name=self.options.name,
            priority_level=0,
            durable=True,
            # Optional in the protocol; without it Pulsar 2.8.0 closes the connection.
            read_compacted=False,
            initialPosition=initial,
        )
        if not self.options.shared:
            subscribe.consumer_epoch = self._rewinds
        if self.options.type == "key_shared":
            subscribe.keySharedMeta.CopyFrom(KeySharedMeta(keySharedMode=KeySharedMode.AUTO_SPLIT))
        connection.request(
            request_id,
            BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=subscribe),
            lambda _: self._subscribed(connection, epoch),
            lambda failure: self._not_subscribed(connection, epoch, failure),
            timeout,
        )

    def unregistered(self, failure: Failure) -> None:
        """Keep acknowledgements; what was pushed is dropped when the link subscribes again."""
        self._disconnect()

    def creation_failed(self, failure: Failure) -> None:
        """CONS-06: one error, then silence."""
        self.state = "failed"
        self._on_creation_failed(failure)

    def _subscribed(self, connection: Connection, epoch: int) -> None:
        if epoch != self._epoch or self._link.state != "registering":
            return
        first = not self._link.created
        self._link.registered()
        self._connection = connection
        # ACK-27: acknowledgements only now, and before the first permit lets the broker send them again.
        self._ack_sender.subscribed(connection, self._epoch)
        self._grant(self._permits.subscribed())
        if first:
            self.state = "open"
            self._on_created()

    def _not_subscribed(self, connection: Connection, epoch: int, failure: Failure) -> None:
        if epoch != self._epoch or self._link.state != "registering":
            return
        connection.detach(self)
        if failure is TIMED_OUT:
            connection.send(self._close_command(self._counters.request_id()))  # a late success must leave no ghost
        self._link.failed(failure)

    # ------------------------------------------------------------------ what the connection says

    def frame_received(self, frame: Frame) -> None:
        """MESSAGE, or the broker's CLOSE_CONSUMER."""
        if frame.command.type == BaseCommand.MESSAGE:
            # A message can only follow a grant, so one before the subscription is complete is of no session.
            if self._connection is not None:
                self._message(frame, self._connection)
        elif frame.command.type == BaseCommand.CLOSE_CONSUMER:
            self._reattach(Failure("disconnected", "the broker closed the consumer"))

    def connection_lost(self, failure: Failure) -> None:
        """Wait for the link."""
        self._disconnect()
        self._link.lost(failure)

    def _disconnect(self) -> None:
        self._connection = None
        self._ack_sender.unsubscribed()

    def _reattach(self, failure: Failure) -> None:
        """CONS-16: this consumer only; the connection stays."""
        if self._link.state == "stopped":
            return
        if self._link.connection is not None:
            self._link.connection.detach(self)
        self._disconnect()
        self._link.lost(failure)

    # ------------------------------------------------------------------ pushed entries

    def _message(self, frame: Frame, connection: Connection) -> None:
        message = frame.command.message
        position = Position.read(message.message_id)
        charged = permits_taken(frame)
        metadata = frame.metadata
        if message.HasField("consumer_epoch") and message.consumer_epoch < self._rewinds and not self.options.shared:
            self._credit(charged)  # EPOCH-01: on its way when we asked for everything again
        elif frame.checksum_ok is False or metadata is None:
            self._discard([position], CommandAck.ChecksumMismatch, charged)
        elif self._is_duplicate(position):
            self._credit(charged)  # PERMIT-08
        elif (label := ChunkLabel.read(metadata)) is not None:
            self._piece(frame, metadata, label, position)
        elif len(frame.payload) > connection.max_message_size:
            self._discard([position], CommandAck.UncompressedSizeCorruption, charged)
        elif metadata.encryption_keys:
            self._discard([position], CommandAck.DecryptionError, charged)
        else:
            self._entry(frame, metadata, position, charged)
        self._wind_clock()

    def _is_duplicate(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged here and the broker does not know it yet (ACK-11)."""
        if self._acks.covered(position) and self._acks.came_again(self._epoch):
            self._ack_sender.plan()
        return self._acks.hides(position) or (self._dead is not None and self._dead.in_transfer(position))

    def _discard(self, entries: list[Position], error: CommandAck.ValidationError, charged: int) -> None:
        """CORR-01 to CORR-05: not delivered, acknowledged with the reason, permits back."""
        self._ack_sender.discard(entries, error)
        self._credit(charged)

    def _piece(self, frame: Frame, metadata: MessageMetadata, label: ChunkLabel, position: Position) -> None:
        """A piece takes no room once it is placed; only a complete message waits for the application (FLOW-04)."""
        whole = self._assembler.accept(label, position, frame.payload, self._runtime.now)
        for evicted in self._assembler.evict():
            self._evicted(evicted.entries)
        if whole is None:
            self._credit(1)
        else:
            self._assembled(frame, metadata, whole, position)

    def _evicted(self, entries: tuple[Position, ...]) -> None:
        """CHUNK-EXP-04: acknowledged (lost), or left for a redelivery."""
        if self.options.auto_ack_oldest_chunked:
            for position in entries:
                self._acks.whole_entry(position)
            self._ack_sender.plan()
        else:
            self._timeouts.add(Delivery(entries[-1], entries, b"", self._epoch), self._runtime.now)

    def _assembled(self, frame: Frame, metadata: MessageMetadata, whole: Assembled, position: Position) -> None:
        try:
            payload = codec.decompress(compression_of(metadata), whole.payload, metadata.uncompressed_size)
        except WireError:
            self._discard(list(whole.entries), CommandAck.DecompressionError, 1)
            return
        delivery = plain_delivery(metadata, payload, position, self._epoch, frame.command.message.redelivery_count)
        self._deliver(
            position,
            [replace(delivery, entries=whole.entries, first_chunk=whole.first)],
            frame.command.message.redelivery_count,
        )

    def _entry(self, frame: Frame, metadata: MessageMetadata, position: Position, charged: int) -> None:
        message = frame.command.message
        try:
            payload = codec.decompress(compression_of(metadata), frame.payload, metadata.uncompressed_size)
        except WireError:
            self._discard([position], CommandAck.DecompressionError, charged)
            return
        if not is_batch(metadata):
            delivery = plain_delivery(metadata, payload, position, self._epoch, message.redelivery_count)
            self._deliver(position, [delivery], message.redelivery_count)
            return
        size = metadata.num_messages_in_batch
        try:
            members = self._splitter.members(payload, size, message.ack_set)
        except WireError:
            self._discard([position], CommandAck.BatchDeSerializeError, charged)
            return
        self._acks.opened(position, size, from_words(message.ack_set, size))
        deliveries = [
            member_delivery(metadata, index, member, position, self._epoch, message.redelivery_count)
            for index, member in members
            if not self._acks.hides(position, index)
        ]
        self._credit(charged - len(deliveries))
        self._deliver(position, deliveries, message.redelivery_count)

    def _deliver(self, position: Position, deliveries: list[Delivery], redelivery_count: int) -> None:
        """To the application, or past it (DLQ-01)."""
        if self._dead is not None and deliveries and self._dead.is_last_chance(redelivery_count):
            self._dead.arrived(position, deliveries)
            if self._dead.is_exhausted(redelivery_count):
                self._credit(len(deliveries))
                self._transfer(position)
                return
        for delivery in deliveries:
            self._queue.put(delivery)

    # ------------------------------------------------------------------ permits

    def _credit(self, count: int) -> None:
        """Nothing is owed without a subscription: the next one begins with a full grant (PERMIT-06, PERMIT-14)."""
        if count > 0 and self._connection is not None:
            self._grant(self._permits.give_back(count))

    def _grant(self, permits: int) -> None:
        if permits > 0 and self._connection is not None:
            flow = CommandFlow(consumer_id=self.id, messagePermits=permits)
            self._connection.send(BaseCommand(type=BaseCommand.FLOW, flow=flow))

    # ------------------------------------------------------------------ seek

    def seek(
        self, target: Delivery | int | Literal["earliest", "latest"], on_done: OnDone, on_failed: OnFailed
    ) -> None:
        """To a message, a publish time in milliseconds, or an end of the topic (SEEK-01, SEEK-02)."""
        refusal = self._refusal()
        if refusal is None and self._seek is not None:
            refusal = Failure("invalid", "a seek is under way")
        connection = self._connection
        if refusal is None and connection is None:
            refusal = Failure("not_connected", "no subscription to move")
        if refusal is not None or connection is None:
            on_failed(refusal or CLOSED)
            return
        self._ack_sender.flush()  # SEEK-05: before the position moves, never after
        request_id = self._counters.request_id()
        command = CommandSeek(consumer_id=self.id, request_id=request_id)
        if isinstance(target, int):
            command.message_publish_time = target
        else:
            command.message_id.CopyFrom(_seek_target(target))
        self._seek = _Seek(self._epoch, on_done, on_failed)
        connection.request(
            request_id, BaseCommand(type=BaseCommand.SEEK, seek=command), lambda _: self._sought(), self._not_sought
        )

    def _sought(self) -> None:
        """Nothing from before may be received any more, nor hide what comes (SEEK-04, SEEK-06)."""
        seek, self._seek = self._seek, None
        if seek is None:
            return
        self._credit(self._queue.clear(seek.epoch) if seek.epoch == self._epoch else 0)
        if seek.epoch == self._epoch:
            self._acks.reset()
            self._nacks.clear()
            self._timeouts.clear()
            self._assembler.clear()
            if self._dead is not None:
                self._dead.forget_candidates()
        seek.on_done()

    def _not_sought(self, failure: Failure) -> None:
        seek, self._seek = self._seek, None
        if failure.kind in ("disconnected", "timeout"):
            self._acks.reset()  # SEEK-07: perhaps it moved, then nothing of the past may hide a message
        if seek is not None:
            seek.on_failed(failure)

    # ------------------------------------------------------------------ the end

    def unsubscribe(self, on_done: OnDone, on_failed: OnFailed) -> None:
        """Delete the subscription (UNSUB-01 to UNSUB-06).

        When the connection is lost before the answer, nobody knows whether it still exists; the consumer is closed
        then, because subscribing again might silently make a new one at the end of the topic (UNSUB-04).
        """
        refusal = self._refusal()
        connection = self._connection
        if refusal is None and (connection is None or self.state == "unsubscribing"):
            refusal = Failure("not_connected", "no subscription to delete, or it is being deleted")
        if refusal is not None or connection is None:
            on_failed(refusal or CLOSED)
            return
        self._ack_sender.flush()
        self.state = "unsubscribing"
        request_id = self._counters.request_id()
        unsubscribe = CommandUnsubscribe(consumer_id=self.id, request_id=request_id)

        def gone(_: BaseCommand) -> None:
            self._finish()
            on_done()

        def refused(failure: Failure) -> None:
            if self.state != "unsubscribing":
                pass
            elif failure.kind == "disconnected":
                self._finish()
            else:
                self.state = "open"  # UNSUB-03
            on_failed(failure)

        command = BaseCommand(type=BaseCommand.UNSUBSCRIBE, unsubscribe=unsubscribe)
        connection.request(request_id, command, gone, refused)

    def close(self, on_done: OnDone, on_failed: OnFailed) -> None:
        """Acknowledgements first, then CLOSE_CONSUMER; local when there is no connection (CCLOSE-01 to CCLOSE-06)."""
        if self.state in ("closed", "failed"):
            on_done()
            return
        self._closes.append((on_done, on_failed))
        if self.state == "closing":
            return
        self._ack_sender.flush()
        was_creating, self.state = self.state == "creating", "closing"
        registered_on = self._link.connection
        self._link.stop()
        if was_creating:
            self._on_creation_failed(INTERRUPTED)
        self._fail_waiting()
        if registered_on is None or not registered_on.ready:
            self._closed(None)
            return
        request_id = self._counters.request_id()
        registered_on.request(
            request_id,
            self._close_command(request_id),
            lambda _: self._closed(None),
            lambda failure: self._closed(None if failure.kind == "disconnected" else failure),
        )

    def _close_command(self, request_id: int) -> BaseCommand:
        close = CommandCloseConsumer(consumer_id=self.id, request_id=request_id)
        return BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=close)

    def _closed(self, failure: Failure | None) -> None:
        closes, self._closes = self._closes, []
        self._finish()

        def all_done(trouble: Failure | None) -> None:
            for on_done, on_failed in closes:
                if trouble is None:
                    on_done()
                else:
                    on_failed(trouble)

        # CDLQ-12: the dead letter producer does not outlive its consumer.
        self._dead_producer.close(lambda: all_done(failure), lambda trouble: all_done(failure or trouble))

    def _finish(self) -> None:
        """No timer, no frame, no waiter is left (CCLOSE-05, CCLOSE-08, UNSUB-05, UNSUB-06)."""
        self.state = "closed"
        self._link.stop()
        if self._link.connection is not None:
            self._link.connection.detach(self)
        self._disconnect()
        self._ack_sender.stop()
        if self._clock is not None:
            self._clock.cancel()
        self._queue.clear()
        self._fail_waiting()

    def _fail_waiting(self) -> None:
        receives, self._waiting_receives = self._waiting_receives, []
        for closed in receives:
            closed(CLOSED)


@dataclass(frozen=True, slots=True)
class _Seek:
    epoch: int
    on_done: OnDone
    on_failed: OnFailed


def _seek_target(target: Delivery | Literal["earliest", "latest"]) -> MessageIdData:
    if isinstance(target, str):
        return (SENTINEL if target == "earliest" else LATEST).write()
    data = (target.first_chunk or target.position).write()
    if target.batch_index:
        data.ack_set.extend(to_words(range(target.batch_index, target.batch_size), target.batch_size))
    return data
