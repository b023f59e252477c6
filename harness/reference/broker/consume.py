"""Consumers: SUBSCRIBE, FLOW, ACK, REDELIVER, SEEK, UNSUBSCRIBE, closing, last message id."""

from __future__ import annotations

from harness.reference.broker import answers
from harness.reference.broker.ack_set import from_words
from harness.reference.broker.answers import signed
from harness.reference.broker.breach import Refusal
from harness.reference.broker.connection import Connection
from harness.reference.broker.consumer import Consumer
from harness.reference.broker.core import Core
from harness.reference.broker.sessions import Sessions
from harness.reference.broker.subscription import Subscription
from harness.reference.broker.topic import Topic
from harness.reference.broker.topics import Topics
from harness.wire.frame import Frame
from harness.wire.pulsar_pb2 import BaseCommand, CommandSeek, CommandSubscribe

_SECOND_IN_NS = 1_000_000_000
_MS_IN_NS = 1_000_000


class ConsumeService:
    """Handlers of the consumer's commands."""

    def __init__(self, core: Core, topics: Topics, sessions: Sessions) -> None:
        self.core = core
        self.topics = topics
        self.sessions = sessions

    # ------------------------------------------------------------------------------------------------ SUBSCRIBE

    def subscribe(self, connection: Connection, frame: Frame) -> None:
        request = frame.command.subscribe
        if request.consumer_id in connection.consumers:
            connection.send(answers.success(request.request_id))
            return
        if ("consumer", request.consumer_id) in connection.registering:
            raise Refusal("ServiceNotReady", "this consumer is being registered")
        if not request.subscription:
            raise Refusal("NotAllowedError", "a subscription needs a name")
        self._admit(connection, request, self.topics.get(request.topic))

    def _admit(self, connection: Connection, request: CommandSubscribe, topic: Topic) -> None:
        subscription = topic.subscriptions.get(request.subscription)
        if subscription is not None and subscription.durable != request.durable:
            raise Refusal("NotAllowedError", "durable and non-durable consumers cannot share a subscription")
        created = subscription is None
        if subscription is None:
            subscription = self.core.parts.subscription(
                request.subscription, topic, self.core, mark_delete=self._start(request, topic), durable=request.durable
            )
        subscription.prepare(request)
        consumer = self.core.parts.consumer(
            request, request.consumer_name or self.core.new_name(), subscription, connection, self.core.parts.permits()
        )
        holder = subscription.dispatcher.admits(consumer)
        if holder is not None:
            self._question(holder, connection, request, topic)
            return
        self._attach(consumer, subscription, created)

    def _attach(self, consumer: Consumer, subscription: Subscription, created: bool) -> None:
        connection, request = consumer.connection, consumer.request
        subscription.dispatcher.add(consumer)
        if created:
            subscription.topic.subscriptions[subscription.name] = subscription
        connection.consumers[consumer.id] = consumer
        connection.send(answers.success(request.request_id))
        subscription.dispatcher.joined(consumer)

    def _question(self, holder: Consumer, connection: Connection, request: CommandSubscribe, topic: Topic) -> None:
        """Exclusive and taken: refused unless the holder's connection turns out dead (DISPATCH-01)."""
        if holder.connection is connection:
            raise Refusal("ConsumerBusy", "the subscription has an exclusive consumer")
        key = ("consumer", request.consumer_id)
        connection.registering.add(key)

        def answered(holder_lives: bool) -> None:
            if key not in connection.registering:
                return
            connection.registering.discard(key)
            if not connection.alive:
                return
            try:
                if holder_lives and holder in holder.subscription.dispatcher.consumers:
                    raise Refusal("ConsumerBusy", "the subscription has an exclusive consumer")
                self._admit(connection, request, topic)
            except Refusal as refusal:
                connection.send(answers.error(request.request_id, refusal.error, refusal.message))

        self.sessions.probe(holder.connection, answered)

    def _start(self, request: CommandSubscribe, topic: Topic) -> int:
        """Mark-delete offset of a new subscription."""
        end = len(topic.ledgers) - 1
        if request.start_message_rollback_duration_sec:
            since = self.core.now - request.start_message_rollback_duration_sec * _SECOND_IN_NS
            return self._before(topic, since // _MS_IN_NS)
        if not request.durable and request.HasField("start_message_id"):
            start = request.start_message_id
            ledger, entry = signed(start.ledgerId), signed(start.entryId)
            if ledger >= 0 and entry >= 0 and start.batch_index >= 0:
                # The rest of that batch may be wanted; the client drops what it has seen (CONS-13, CONS-14).
                entry -= 1
            return topic.ledgers.through(ledger, entry) - 1
        return -1 if request.initialPosition == CommandSubscribe.Earliest else end

    # ------------------------------------------------------------------------------------------------ flow and acks

    def flow(self, connection: Connection, frame: Frame) -> None:
        """A consumer that is not there is ignored (FLOW-01)."""
        request = frame.command.flow
        consumer = connection.consumers.get(request.consumer_id)
        if consumer is not None:
            consumer.permits.grant(request.messagePermits)
            consumer.subscription.dispatcher.pump()

    def ack(self, connection: Connection, frame: Frame) -> None:
        """An unknown consumer gets no answer; success is answered even for an ack that was ignored (ACK-IND-04/05)."""
        request = frame.command.ack
        consumer = connection.consumers.get(request.consumer_id)
        if consumer is None:
            return
        command = BaseCommand(type=BaseCommand.ACK_RESPONSE)
        answer = command.ackResponse
        answer.consumer_id = request.consumer_id
        answer.request_id = request.request_id
        if request.txnid_least_bits or request.txnid_most_bits:
            answer.error = answers.server_error("NotAllowedError")
            answer.message = "this broker has no transactions"
        else:
            consumer.subscription.acknowledge(request)
        if request.HasField("request_id"):
            connection.send(command)

    def redeliver(self, connection: Connection, frame: Frame) -> None:
        request = frame.command.redeliverUnacknowledgedMessages
        consumer = connection.consumers.get(request.consumer_id)
        if consumer is None:
            return
        if request.HasField("consumer_epoch"):
            consumer.epoch = max(request.consumer_epoch, consumer.epoch or 0)
        offsets: list[int] | None = None
        if request.message_ids:
            ledgers = consumer.subscription.topic.ledgers
            found = (ledgers.offset(signed(at.ledgerId), signed(at.entryId)) for at in request.message_ids)
            offsets = [offset for offset in found if offset is not None]
        consumer.subscription.dispatcher.redeliver(consumer, offsets)

    # ------------------------------------------------------------------------------------------------ positions

    def last_message_id(self, connection: Connection, frame: Frame) -> None:
        request = frame.command.getLastMessageId
        consumer = self._consumer(connection, request.consumer_id)
        topic = consumer.subscription.topic
        command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        answer = command.getLastMessageIdResponse
        answer.request_id = request.request_id
        entries = topic.ledgers.entries
        if entries:
            last = entries[-1]
            index = last.num_messages - 1 if last.is_batch else -1
            answer.last_message_id.CopyFrom(answers.message_id(last.ledger, last.entry, topic.name.partition, index))
        else:
            answer.last_message_id.CopyFrom(answers.message_id(-1, -1, topic.name.partition))
        mark = consumer.subscription.cursor.mark_delete
        at = (entries[mark].ledger, entries[mark].entry) if mark >= 0 else (-1, -1)
        answer.consumer_mark_delete_position.CopyFrom(answers.message_id(*at))
        connection.send(command)

    def seek(self, connection: Connection, frame: Frame) -> None:
        """The consumers of the subscription are closed first and come back by themselves (SEEK-03)."""
        request = frame.command.seek
        subscription = self._consumer(connection, request.consumer_id).subscription
        mark_delete, first = self._target(request, subscription.topic)
        topic = subscription.topic
        for consumer in list(subscription.dispatcher.consumers):
            self.expel(consumer)
        # A subscription without memory went with its last consumer; it is kept for the ones that come back.
        topic.subscriptions[subscription.name] = subscription
        subscription.seek(mark_delete, first)
        connection.send(answers.success(request.request_id))

    def _target(self, request: CommandSeek, topic: Topic) -> tuple[int, tuple[int, int] | None]:
        """Mark-delete offset in front of the target, and what is left of a batch that the target is inside of."""
        if request.HasField("message_publish_time"):
            return self._before(topic, request.message_publish_time), None
        if not request.HasField("message_id"):
            raise Refusal("MetadataError", "SEEK without a target")
        given = request.message_id
        ledger, entry = signed(given.ledgerId), signed(given.entryId)
        if ledger < 0:
            return -1, None
        offset = topic.ledgers.offset(ledger, entry)
        if offset is None:
            return topic.ledgers.through(ledger, entry) - 1, None
        if given.ack_set:
            bits = from_words(given.ack_set) & ((1 << topic.ledgers.entries[offset].num_messages) - 1)
            if bits:
                return offset - 1, (offset, bits)
        return offset - 1, None

    def _before(self, topic: Topic, publish_time: int) -> int:
        """Offset in front of the first entry published at or after that time (ms)."""
        for offset, stored in enumerate(topic.ledgers.entries):
            if stored.metadata.publish_time >= publish_time:
                return offset - 1
        return len(topic.ledgers) - 1

    # ------------------------------------------------------------------------------------------------ leaving

    def unsubscribe(self, connection: Connection, frame: Frame) -> None:
        """Refused while others are attached, unless forced (UNSUB-01, UNSUB-03)."""
        request = frame.command.unsubscribe
        consumer = self._consumer(connection, request.consumer_id)
        subscription = consumer.subscription
        if not request.force and not subscription.dispatcher.may_unsubscribe(consumer):
            raise Refusal("MetadataError", "other consumers are attached to the subscription")
        for other in list(subscription.dispatcher.consumers):
            if other is consumer:
                self._forget(other)
            else:
                self.expel(other)
        subscription.topic.drop_subscription(subscription)
        connection.send(answers.success(request.request_id))

    def close(self, connection: Connection, frame: Frame) -> None:
        request = frame.command.close_consumer
        key = ("consumer", request.consumer_id)
        if key in connection.registering:
            connection.registering.discard(key)
        else:
            self._forget(self._consumer(connection, request.consumer_id))
        connection.send(answers.success(request.request_id))

    def expel(self, consumer: Consumer) -> None:
        """The broker closes the consumer (SEEK, unload, forced UNSUBSCRIBE)."""
        consumer.connection.send(answers.close_consumer(consumer.id))
        self._forget(consumer)

    def _forget(self, consumer: Consumer) -> None:
        consumer.connection.consumers.pop(consumer.id, None)
        consumer.subscription.detach(consumer)

    def _consumer(self, connection: Connection, consumer_id: int) -> Consumer:
        consumer = connection.consumers.get(consumer_id)
        if consumer is None:
            raise Refusal("MetadataError", "consumer not found")
        return consumer
