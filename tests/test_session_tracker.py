"""Frames of one connection become the events of ``docs/history.md``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.faults.message_columns import digest
from harness.faults.session_tracker import Direction, SessionTracker
from harness.history.event import Event
from harness.wire.frame import Frame, WireError, decode, encode
from harness.wire.message_id import LATEST, SENTINEL, Position
from harness.wire.pulsar_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    CommandAck,
    CommandAckResponse,
    CommandCloseProducer,
    CommandError,
    CommandLookupTopic,
    CommandMessage,
    CommandProducer,
    CommandProducerSuccess,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSend,
    CommandSendError,
    CommandSendReceipt,
    CommandSubscribe,
    CommandSuccess,
    CommandTopicMigrated,
    EncryptionKeys,
    MessageIdData,
    MessageMetadata,
    ServerError,
)
from tests.golden_capture import CAPTURES, frames

T = BaseCommand
TOPIC = "persistent://public/default/t"


def captured(name: str, *kinds: str) -> list[dict[str, Any]]:
    trackers: dict[int, SessionTracker] = {}
    events = []
    for connection, direction, frame in frames(name):
        tracker = trackers.setdefault(connection, SessionTracker(f"client-{connection}", "tap.client"))
        events.append(tracker.frame(frame, direction))
    return [event for event in events if not kinds or event["kind"] in kinds]


def tracker() -> SessionTracker:
    return SessionTracker("client-1", "tap.client")


def to_broker(on: SessionTracker, command: BaseCommand, **rest: Any) -> dict[str, Any]:
    return on.frame(Frame(command, **rest), "to_broker")


def to_client(on: SessionTracker, command: BaseCommand, **rest: Any) -> dict[str, Any]:
    return on.frame(Frame(command, **rest), "to_client")


def producer(name: str | None = "p", request: int = 5) -> BaseCommand:
    return T(
        type=T.PRODUCER, producer=CommandProducer(topic="t", producer_id=3, request_id=request, producer_name=name)
    )


def subscribe(request: int = 6, **fields: Any) -> BaseCommand:
    body = CommandSubscribe(
        topic="t-partition-2", subscription="s", subType=CommandSubscribe.Key_Shared, consumer_id=4, request_id=request,
        consumer_name="c", **fields,
    )  # fmt: skip
    return T(type=T.SUBSCRIBE, subscribe=body)


def send(**fields: Any) -> BaseCommand:
    return T(type=T.SEND, send=CommandSend(producer_id=3, sequence_id=8, **fields))


def metadata(**fields: Any) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=8, publish_time=9, **fields)


def success(request: int) -> BaseCommand:
    return T(type=T.SUCCESS, success=CommandSuccess(request_id=request))


def numbers(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for each in value.values():
            yield from numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int):
        yield value


@pytest.mark.parametrize("name", CAPTURES)
def test_every_captured_frame_is_an_event(name: str) -> None:
    for columns in captured(name):
        event = msgspec.convert(columns, Event, strict=True)
        assert json.loads(json.dumps(event.extra)) == event.extra
        assert all(-(2**63) <= number < 2**63 for number in numbers(columns))


@pytest.mark.parametrize("name", CAPTURES)
def test_captured_producers_and_consumers_have_names(name: str) -> None:
    for event in captured(name, "SEND", "SEND_RECEIPT", "CLOSE_PRODUCER"):
        assert event["topic"].startswith("persistent://public/default/")
        assert event["producer"]
    for event in captured(name, "FLOW", "MESSAGE", "ACK", "REDELIVER_UNACKNOWLEDGED_MESSAGES", "CLOSE_CONSUMER"):
        assert event["topic"].startswith("persistent://public/default/")
        assert event["subscription"]


def test_a_captured_session() -> None:
    sends = captured("plain", "SEND")
    assert [event["sequence_id"] for event in sends] == [0, 7, 1]
    assert [event["payload_digest"] for event in sends] == [digest(b"one"), digest(b"two"), digest(b"")]
    assert [event["payload_size"] for event in sends] == [3, 3, 0]
    assert sends[0]["extra"]["metadata"]["properties"] == {"a": "1", "b": "zwei"}
    assert sends[0]["extra"]["metadata"]["partition_key"] == "k"
    assert [event["entry_id"] for event in captured("plain", "SEND_RECEIPT")] == [0, 1, 2]
    received = captured("plain", "MESSAGE")
    assert [event["payload_digest"] for event in received] == [event["payload_digest"] for event in sends]
    assert [event["extra"]["frame_digest"] for event in received] == [event["extra"]["frame_digest"] for event in sends]
    assert {event["producer"] for event in received} == {"producer-1"}
    # The client groups acknowledgements, and the cumulative one covers the others.
    assert [(event["ack_type"], event["entry_id"]) for event in captured("plain", "ACK")] == [("cumulative", 2)]
    (grouped,) = captured("codecs", "ACK")
    assert grouped["ack_type"] == "individual"
    assert grouped["extra"]["ids"] == [{"ledger": 0, "entry": entry} for entry in range(10)]


def test_requests_and_lookups_of_one_number_are_told_apart() -> None:
    """This client counts both from their own zero: request 2 is a lookup and a close at the same time."""
    answers = captured("plain", "SUCCESS", "LOOKUP_RESPONSE", "PARTITIONED_METADATA_RESPONSE", "PRODUCER_SUCCESS")
    assert [event["extra"]["request"] for event in answers if event["request_id"] == 2] == ["LOOKUP", "CLOSE_PRODUCER"]
    assert all(event["topic"] == "persistent://public/default/plain" for event in answers)


def test_captured_batches_list_their_messages() -> None:
    batches = [event for event in captured("codecs", "SEND", "MESSAGE") if "messages" in event["extra"]]
    assert len(batches) == 10
    for event in batches:
        name = event["producer"].removesuffix("-batch")
        assert event["num_messages"] == 3
        assert "payload_digest" not in event
        assert event["extra"]["messages"] == [
            {
                "digest": digest(f"{name}-{i}".encode() * 50),
                "size": 50 * (len(name) + 2),
                "sequence_id": i,
                "key": f"k{i}",
            }
            for i in range(3)
        ]


def test_captured_pieces() -> None:
    pieces = captured("chunks", "SEND", "MESSAGE")
    assert [event["chunk_id"] for event in pieces] == [0, 1, 2, 3] * 2
    assert {(event["chunk_uuid"], event["num_chunks"]) for event in pieces} == {("p-0", 4)}
    assert sum(event["payload_size"] for event in pieces) == 2 * 3 * 16 * 1024
    assert all(event["extra"]["is_chunk"] for event in pieces[:4])


def test_captured_partitions_and_redelivery() -> None:
    assert {event["partition"] for event in captured("partitions", "SEND")} == {0, 1}
    counts = [event["redelivery_count"] for event in captured("redelivery", "MESSAGE") if event.get("consumer") == "c"]
    assert counts == [0, 1]
    (asked,) = captured("redelivery", "REDELIVER_UNACKNOWLEDGED_MESSAGES")
    assert asked["extra"]["ids"] == [{"ledger": 0, "entry": 0}]


def test_a_name_that_the_broker_assigns_is_learned() -> None:
    on = tracker()
    assert "producer" not in to_broker(on, producer(None))
    waiting = CommandProducerSuccess(request_id=5, producer_name="", producer_ready=False)
    assert "producer" not in to_client(on, T(type=T.PRODUCER_SUCCESS, producer_success=waiting))
    answer = CommandProducerSuccess(request_id=5, producer_name="assigned", last_sequence_id=17)
    event = to_client(on, T(type=T.PRODUCER_SUCCESS, producer_success=answer))
    assert (event["producer"], event["topic"], event["extra"]["last_sequence_id"]) == ("assigned", TOPIC, 17)
    assert to_broker(on, send(), metadata=metadata())["producer"] == "assigned"


def test_connection_events() -> None:
    on = tracker()
    common = {"layer": "tap.client", "phase": "event", "connection": "client-1"}
    assert on.opened() == common | {"kind": "CONNECTION_OPEN", "extra": {}}
    assert on.closed("broker") == common | {"kind": "CONNECTION_CLOSED", "extra": {"by": "broker"}}
    event = on.wire_error(WireError("truncated", "why"), "to_client")
    assert event == common | {
        "kind": "WIRE_ERROR", "error": "truncated", "extra": {"direction": "to_client", "message": "why"},
    }  # fmt: skip


def test_receipts() -> None:
    on = tracker()
    to_broker(on, producer())
    stored = CommandSendReceipt(producer_id=3, sequence_id=8, highest_sequence_id=9, message_id=Position(1, 2).write())
    event = to_client(on, T(type=T.SEND_RECEIPT, send_receipt=stored))
    assert (event["sequence_id"], event["highest_sequence_id"]) == (8, 9)
    assert (event["ledger_id"], event["entry_id"], event["extra"]["duplicate"]) == (1, 2, False)
    again = CommandSendReceipt(producer_id=3, sequence_id=8, message_id=SENTINEL.write())
    event = to_client(on, T(type=T.SEND_RECEIPT, send_receipt=again))
    assert "ledger_id" not in event
    assert "entry_id" not in event
    assert "highest_sequence_id" not in event
    assert event["extra"]["duplicate"] is True
    error = CommandSendError(producer_id=3, sequence_id=8, error=ServerError.ChecksumError, message="bad")
    event = to_client(on, T(type=T.SEND_ERROR, send_error=error))
    assert (event["sequence_id"], event["error"], event["producer"]) == (8, "ChecksumError", "p")


def test_subscribe_and_message() -> None:
    on = tracker()
    event = to_broker(on, subscribe(initialPosition=CommandSubscribe.Earliest, durable=False))
    assert (event["request_id"], event["partition"], event["consumer"]) == (6, 2, "c")
    extra = event["extra"]
    assert (extra["type"], extra["initial_position"], extra["durable"]) == ("key_shared", "earliest", False)
    message = CommandMessage(consumer_id=4, message_id=MessageIdData(ledgerId=1, entryId=2), ack_set=[-1])
    frame = Frame(T(type=T.MESSAGE, message=message), metadata(), b"x", broker_metadata=BrokerEntryMetadata(index=4))
    event = on.frame(decode(encode(frame)), "to_client")
    assert (event["ledger_id"], event["entry_id"], event["redelivery_count"], event["ack_set"]) == (1, 2, 0, [-1])
    assert "batch_index" not in event
    assert (event["producer"], event["sequence_id"], event["num_messages"]) == ("p", 8, 1)
    assert (event["subscription"], event["consumer"]) == ("s", "c")
    assert event["extra"]["broker_metadata"] == {"index": 4}
    assert event["extra"]["checksum_ok"] is True


def test_acknowledgements() -> None:
    on = tracker()
    to_broker(on, subscribe())
    chunked = Position(1, 3).write()
    chunked.first_chunk_message_id.CopyFrom(Position(1, 1).write())
    ids = [MessageIdData(ledgerId=1, entryId=2, batch_index=0, ack_set=[6], batch_size=3), chunked]
    ack = CommandAck(consumer_id=4, ack_type=CommandAck.Individual, message_id=ids, request_id=9)
    event = to_broker(on, T(type=T.ACK, ack=ack))
    assert (event["ack_type"], event["request_id"], "ledger_id" in event) == ("individual", 9, False)
    assert event["extra"]["ids"] == [
        {"ledger": 1, "entry": 2, "batch_index": 0, "ack_set": [6], "batch_size": 3},
        {"ledger": 1, "entry": 3, "first_chunk": [1, 1]},
    ]
    response = CommandAckResponse(consumer_id=4, request_id=9, error=ServerError.MetadataError)
    event = to_client(on, T(type=T.ACK_RESPONSE, ackResponse=response))
    assert (event["request_id"], event["error"], event["extra"]["request"]) == (9, "MetadataError", "ACK")
    bad = CommandAck(
        consumer_id=4, ack_type=CommandAck.Cumulative, message_id=ids[:1], validation_error=CommandAck.ChecksumMismatch
    )
    event = to_broker(on, T(type=T.ACK, ack=bad))
    assert (event["error"], event["ledger_id"], event["batch_index"]) == ("ChecksumMismatch", 1, 0)
    everything = CommandRedeliverUnacknowledgedMessages(consumer_id=4)
    command = T(type=T.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=everything)
    assert to_broker(on, command)["extra"]["ids"] == []


@pytest.mark.parametrize(("position", "name"), [(SENTINEL, "earliest"), (LATEST, "latest")])
def test_seek_to_an_end(position: Position, name: str) -> None:
    on = tracker()
    to_broker(on, subscribe())
    command = T(type=T.SEEK, seek=CommandSeek(consumer_id=4, request_id=7, message_id=position.write()))
    event = to_broker(on, command)
    assert (event["extra"]["position"], "ledger_id" in event) == (name, False)
    answer = to_client(on, success(7))
    assert (answer["extra"]["request"], answer["subscription"]) == ("SEEK", "s")
    assert "request" not in to_client(on, success(7))["extra"]


def test_errors_name_what_was_asked() -> None:
    on = tracker()
    to_broker(on, T(type=T.LOOKUP, lookupTopic=CommandLookupTopic(topic="other", request_id=5)))
    to_broker(on, producer())
    error = CommandError(request_id=5, error=ServerError.ProducerFenced, message="no")
    event = to_client(on, T(type=T.ERROR, error=error))
    assert (event["error"], event["request_id"], event["producer"]) == ("ProducerFenced", 5, "p")
    assert (event["extra"]["request"], event["extra"]["message"]) == ("PRODUCER", "no")


def test_a_brokers_notice_answers_nothing() -> None:
    on = tracker()
    to_broker(on, producer(request=0))
    notice = CommandCloseProducer(producer_id=3, request_id=2**64 - 1, assignedBrokerServiceUrl="pulsar://x:1")
    event = to_client(on, T(type=T.CLOSE_PRODUCER, close_producer=notice))
    assert (event["producer"], "request_id" in event) == ("p", False)
    assert event["extra"]["assignedBrokerServiceUrl"] == "pulsar://x:1"
    moved = CommandTopicMigrated(resource_id=3, resource_type=CommandTopicMigrated.Producer, brokerServiceUrl="u")
    assert to_client(on, T(type=T.TOPIC_MIGRATED, topicMigrated=moved))["producer"] == "p"


def test_ids_that_nobody_registered_leave_columns_null() -> None:
    on = tracker()
    for event in (
        to_broker(on, send(), metadata=metadata(), payload=b"x"),
        to_client(on, success(1)),
        to_client(on, T(type=T.CLOSE_PRODUCER, close_producer=CommandCloseProducer(producer_id=9, request_id=1))),
    ):
        assert not {"topic", "producer", "subscription", "consumer", "partition"} & set(event)


def test_payloads_that_cannot_be_read_have_no_digest() -> None:
    on = tracker()
    for carrier, kind in (
        (metadata(compression="LZ4", uncompressed_size=50), "bad_compression"),
        (metadata(num_messages_in_batch=2), "bad_batch"),
    ):
        event = to_broker(on, send(), metadata=carrier, payload=b"xx")
        assert ("payload_digest" in event, event["extra"]["payload_error"]) == (False, kind)
        assert event["extra"]["frame_digest"] == digest(carrier.SerializeToString() + b"xx")
    sealed = metadata(encryption_keys=[EncryptionKeys(key="k", value=b"v")])
    event = to_broker(on, send(), metadata=sealed, payload=b"xx")
    assert ("payload_digest" in event, event["extra"]["encrypted"]) == (False, True)
    event = on.frame(Frame(send(), None, b"rubbish", checksum_ok=False), "to_broker")
    assert (event["sequence_id"], event["extra"]["checksum_ok"]) == (8, False)


def test_texts_that_are_not_utf_8_are_escaped() -> None:
    command = send().SerializeToString()
    body = b"\x0a\x01\xff\x10\x08\x18\x09\x32\x02\xc3("
    raw = len(command).to_bytes(4, "big") + command + len(body).to_bytes(4, "big") + body
    event = tracker().frame(decode(len(raw).to_bytes(4, "big") + raw), "to_broker")
    assert event["extra"]["metadata"]["producer_name"] == "\\xff"
    assert event["extra"]["metadata"]["partition_key"] == "\\xc3("


def test_commands_of_a_later_revision_are_events() -> None:
    frame = decode(b"\0\0\0\x0a\0\0\0\x02\x08\x63rest")
    event = tracker().frame(frame, "to_client")
    assert (event["kind"], event["extra"]) == ("UNKNOWN_99", {"direction": "to_client", "unread_size": 4})


@given(st.sampled_from(list(BaseCommand.Type.values())), st.sampled_from(["to_broker", "to_client"]))
def test_every_command_is_an_event(number: BaseCommand.Type, direction: Direction) -> None:
    command = T(type=number)
    getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[number].name).SetInParent()
    event = tracker().frame(Frame(command), direction)
    assert event["kind"] == BaseCommand.Type.Name(number)
    msgspec.convert(event, Event, strict=True)
