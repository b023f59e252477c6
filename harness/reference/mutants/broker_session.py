"""Brokers that break a promise about requests and sessions: lookups, registrations, answers, seeks, farewells."""

from __future__ import annotations

from harness.reference.broker import answers
from harness.reference.broker.breach import ProtocolBreach
from harness.reference.broker.connection import Connection
from harness.reference.broker.consume import ConsumeService
from harness.reference.broker.consumer import Consumer
from harness.reference.broker.lookup import LookupService
from harness.reference.broker.producer import Producer
from harness.reference.broker.publish import PublishService
from harness.reference.broker.topic import Topic
from harness.reference.mutants.mutant import Mutant
from harness.wire.frame import Frame
from harness.wire.pulsar_pb2 import BaseCommand, CommandProducer, CommandSeek, CommandSubscribe


class AnswersLookupsTwice(LookupService):
    def lookup(self, connection: Connection, frame: Frame) -> None:
        super().lookup(connection, frame)
        super().lookup(connection, frame)


class RenamesProducers(PublishService):
    def _admit(self, connection: Connection, request: CommandProducer, topic: Topic, name: str) -> None:
        super()._admit(connection, request, topic, f"{name}-1")


class NeverConfirmsClose(PublishService):
    def close(self, connection: Connection, frame: Frame) -> None:
        producer = connection.producers.get(frame.command.close_producer.producer_id)
        if producer is not None:
            self._forget(producer)


class WritesGarbage(Producer):
    def receipt(self, sequence_id: int, highest: int | None, at: tuple[int, int] | None) -> None:
        super().receipt(sequence_id, highest, at)
        if sequence_id == 2 and at is not None:
            self.connection.send_bytes(b"\x00\x00\x00\x06\x00\x00\x00\x02\xff\xff")


class AnswersEveryAck(ConsumeService):
    def ack(self, connection: Connection, frame: Frame) -> None:
        super().ack(connection, frame)
        if not frame.command.ack.HasField("request_id"):
            command = BaseCommand(type=BaseCommand.ACK_RESPONSE)
            command.ackResponse.consumer_id = frame.command.ack.consumer_id
            command.ackResponse.request_id = 1_000_000
            connection.send(command)


class DropsConnectionOverSeek(ConsumeService):
    def seek(self, connection: Connection, frame: Frame) -> None:
        raise ProtocolBreach("a seek")


class DropsConnectionOverSecondExclusive(ConsumeService):
    def _question(self, holder: Consumer, connection: Connection, request: CommandSubscribe, topic: Topic) -> None:
        raise ProtocolBreach("a second exclusive consumer")


class SeeksTooFar(ConsumeService):
    def _target(self, request: CommandSeek, topic: Topic) -> tuple[int, tuple[int, int] | None]:
        mark_delete, _ = super()._target(request, topic)
        return min(mark_delete + 2, len(topic.ledgers) - 1), None


class PushesAfterClose(ConsumeService):
    def close(self, connection: Connection, frame: Frame) -> None:
        consumer = connection.consumers.get(frame.command.close_consumer.consumer_id)
        super().close(connection, frame)
        if consumer is not None and (entries := consumer.subscription.topic.ledgers.entries):
            consumer.deliver(entries[-1], 1, 0)


class PushesAfterUnsubscribe(ConsumeService):
    def unsubscribe(self, connection: Connection, frame: Frame) -> None:
        consumer = self._consumer(connection, frame.command.unsubscribe.consumer_id)
        super().unsubscribe(connection, frame)
        if entries := consumer.subscription.topic.ledgers.entries:
            consumer.deliver(entries[-1], 1, 0)


class RefusesDuplicates(Producer):
    def receipt(self, sequence_id: int, highest: int | None, at: tuple[int, int] | None) -> None:
        if at is None:
            self.connection.send(answers.send_error(self.id, sequence_id, "PersistenceError", "seen before"))
        else:
            super().receipt(sequence_id, highest, at)


MUTANTS = (
    Mutant(
        name="broker-answers-lookups-twice",
        family="receipts",
        side="broker",
        breaks="A lookup gets two answers.",
        expected=("LOOKUP-14",),
        shown_by="receipts-async-burst",
        parts={"lookup": AnswersLookupsTwice},
    ),
    Mutant(
        name="broker-renames-producers",
        family="receipts",
        side="broker",
        breaks="A producer that gave its name is confirmed under another.",
        expected=("PROD-04",),
        shown_by="receipts-async-burst",
        parts={"publish": RenamesProducers},
    ),
    Mutant(
        name="broker-never-confirms-close",
        family="receipts",
        side="broker",
        breaks="CLOSE_PRODUCER is not answered.",
        expected=("PCLOSE-05",),
        shown_by="receipts-plain",
        parts={"publish": NeverConfirmsClose},
    ),
    Mutant(
        name="broker-writes-garbage",
        family="receipts",
        side="broker",
        breaks="Bytes that are no frame are sent after a receipt.",
        expected=("META-01",),
        shown_by="receipts-async-burst",
        parts={"producer": WritesGarbage},
    ),
    Mutant(
        name="broker-refuses-duplicates",
        family="dedup",
        side="broker",
        breaks="A known duplicate is answered with an error instead of a receipt without a position.",
        expected=("DEDUP-01",),
        shown_by="dedup-again",
        parts={"producer": RefusesDuplicates},
    ),
    Mutant(
        name="broker-answers-every-ack",
        family="acks",
        side="broker",
        breaks="An acknowledgement that asks for no answer gets one.",
        expected=("ACK-IND-04",),
        shown_by="acks-after-redelivery-request",
        parts={"consume": AnswersEveryAck},
    ),
    Mutant(
        name="broker-drops-connection-over-seek",
        family="acks",
        side="broker",
        breaks="A seek costs the connection instead of being answered.",
        expected=("SEEK-03",),
        shown_by="acks-seek",
        parts={"consume": DropsConnectionOverSeek},
    ),
    Mutant(
        name="broker-drops-connection-over-second-exclusive",
        family="acks",
        side="broker",
        breaks="A second exclusive consumer costs the connection instead of being told that it is busy.",
        expected=("DISPATCH-01",),
        shown_by="acks-second-exclusive",
        parts={"consume": DropsConnectionOverSecondExclusive},
    ),
    Mutant(
        name="broker-seeks-too-far",
        family="acks",
        side="broker",
        breaks="After a seek the target and the message behind it are not sent.",
        expected=("SEEK-04",),
        shown_by="acks-seek-to-message",
        parts={"consume": SeeksTooFar},
    ),
    Mutant(
        name="broker-pushes-after-close",
        family="acks",
        side="broker",
        breaks="A consumer whose close was confirmed is sent a message.",
        expected=("CCLOSE-01",),
        shown_by="acks-after-redelivery-request",
        parts={"consume": PushesAfterClose},
    ),
    Mutant(
        name="broker-pushes-after-unsubscribe",
        family="acks",
        side="broker",
        breaks="A consumer whose unsubscribe was confirmed is sent a message.",
        expected=("UNSUB-07",),
        shown_by="acks-unsubscribe-in-a-burst",
        parts={"consume": PushesAfterUnsubscribe},
    ),
)
