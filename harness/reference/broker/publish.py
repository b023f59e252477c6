"""Producers: registration, SEND, closing."""

from __future__ import annotations

from harness.reference.broker import answers
from harness.reference.broker.breach import ProtocolBreach, Refusal
from harness.reference.broker.connection import Connection
from harness.reference.broker.core import Core
from harness.reference.broker.producer import Producer
from harness.reference.broker.sessions import Sessions
from harness.reference.broker.stored_entry import body_of
from harness.reference.broker.topic import Publication, Topic
from harness.reference.broker.topics import Topics
from harness.wire.frame import Frame
from harness.wire.pulsar_pb2 import BaseCommand, CommandProducer, ProducerAccessMode


class PublishService:
    """Handlers of the producer's commands."""

    def __init__(self, core: Core, topics: Topics, sessions: Sessions) -> None:
        self.core = core
        self.topics = topics
        self.sessions = sessions

    # ------------------------------------------------------------------------------------------------ registration

    def register(self, connection: Connection, frame: Frame) -> None:
        """PRODUCER. Repeating it changes nothing and is answered alike (PROD-18)."""
        request = frame.command.producer
        existing = connection.producers.get(request.producer_id)
        if existing is not None:
            self._welcome(existing, request)
            return
        if ("producer", request.producer_id) in connection.registering:
            raise Refusal("ServiceNotReady", "this producer is being registered")
        if request.producer_access_mode != ProducerAccessMode.Shared:
            raise Refusal("NotAllowedError", "this broker knows only the access mode Shared")
        topic = self.topics.get(request.topic)
        if topic.terminated:
            raise Refusal("TopicTerminatedError", "the topic was terminated")
        name = request.producer_name or self.core.new_name()
        self._admit(connection, request, topic, name)

    def _admit(self, connection: Connection, request: CommandProducer, topic: Topic, name: str) -> None:
        holder = topic.producers.get(name)
        if holder is None:
            producer = self.core.parts.producer(request.producer_id, name, request.epoch, topic, connection)
            topic.add_producer(producer)
            connection.producers[producer.id] = producer
            connection.closed_producers.discard(producer.id)
            self._welcome(producer, request)
        elif holder.connection is connection:
            raise Refusal("ProducerBusy", f"producer {name!r} is connected already")
        else:
            self._question(holder, connection, request, topic, name)

    def _question(
        self, holder: Producer, connection: Connection, request: CommandProducer, topic: Topic, name: str
    ) -> None:
        """The name is taken: whether it is refused depends on whether its holder still lives (PROD-17)."""
        key = ("producer", request.producer_id)
        connection.registering.add(key)

        def answered(holder_lives: bool) -> None:
            if key not in connection.registering:
                return
            connection.registering.discard(key)
            if not connection.alive:
                return
            try:
                if holder_lives and topic.producers.get(name) is holder:
                    raise Refusal("ProducerBusy", f"producer {name!r} is connected already")
                self._admit(connection, request, topic, name)
            except Refusal as refusal:
                connection.send(answers.error(request.request_id, refusal.error, refusal.message))

        self.sessions.probe(holder.connection, answered)

    def _welcome(self, producer: Producer, request: CommandProducer) -> None:
        command = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
        answer = command.producer_success
        answer.request_id = request.request_id
        answer.producer_name = producer.name
        answer.last_sequence_id = producer.topic.last_sequence_id(producer.name)
        answer.schema_version = b""
        answer.producer_ready = True
        producer.connection.send(command)

    # ------------------------------------------------------------------------------------------------ SEND

    def send(self, connection: Connection, frame: Frame) -> None:
        """Raises ``ProtocolBreach`` for a producer that was never there (SEND-04)."""
        request = frame.command.send
        producer = connection.producers.get(request.producer_id)
        if producer is None:
            if request.producer_id in connection.closed_producers:
                return
            raise ProtocolBreach(f"SEND for unknown producer {request.producer_id}")
        # Zero is the default of the field and means: not told.
        highest = request.highest_sequence_id or None
        answer_id = max(request.sequence_id, highest or 0)
        if producer.closing:
            producer.refuse(answer_id, "PersistenceError", "the producer is being closed")
        elif not self.checksum_good(frame):
            producer.refuse(answer_id, "ChecksumError", "checksum failed on the broker")
        elif highest is not None and request.sequence_id > highest:
            producer.refuse(answer_id, "MetadataError", "lowest sequence id above the highest")
        elif frame.metadata is None:
            raise ProtocolBreach("SEND without readable metadata")
        else:
            metadata = frame.metadata
            count = max(1, metadata.num_messages_in_batch) if metadata.HasField("num_messages_in_batch") else 1
            producer.topic.publish(
                producer, Publication(request.sequence_id, highest, count, metadata, frame.payload, body_of(frame))
            )

    def checksum_good(self, frame: Frame) -> bool:
        """A frame without checksum is accepted unchecked (CHECKSUM-01, ERR-08)."""
        return frame.checksum_ok is not False

    # ------------------------------------------------------------------------------------------------ closing

    def close(self, connection: Connection, frame: Frame) -> None:
        """CLOSE_PRODUCER is answered after the SENDs before it."""
        request = frame.command.close_producer
        producer = connection.producers.get(request.producer_id)
        if producer is None:
            if ("producer", request.producer_id) in connection.registering:
                connection.registering.discard(("producer", request.producer_id))
                connection.send(answers.success(request.request_id))
                return
            raise Refusal("UnknownError", "no such producer on this connection")

        def closed() -> None:
            self._forget(producer)
            connection.send(answers.success(request.request_id))

        if producer.pending:
            producer.closing.append(closed)
        else:
            closed()

    def _forget(self, producer: Producer) -> None:
        producer.topic.remove_producer(producer)
        if producer.connection.producers.pop(producer.id, None) is not None:
            producer.connection.closed_producers.add(producer.id)

    def expel(self, producer: Producer) -> None:
        """The broker closes the producer (unload)."""
        producer.connection.send(answers.close_producer(producer.id))
        self._forget(producer)
