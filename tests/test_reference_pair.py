"""The reference client against the reference broker, in memory and under virtual time."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from harness.reference.broker.config import BrokerConfig
from harness.reference.client.config import ClientConfig
from harness.wire.frame import Frame, command_name
from harness.wire.message_id import Position
from harness.wire.pulsar_pb2 import BaseCommand, CommandAck, CommandSendError, CommandSendReceipt, ServerError
from tests.reference_pair import MS, Pair, PairError

TOPIC = "persistent://public/default/t"
SMALL = BrokerConfig(service_url="pulsar://broker:6650", max_message_size=1000)
DEDUP = BrokerConfig(service_url="pulsar://broker:6650", dedup_enabled=True)


def stored(pair: Pair) -> int:
    return len(pair.broker.entries(TOPIC))


def backlog(pair: Pair, subscription: str = "s") -> int:
    view = pair.broker.cursor(TOPIC, subscription)
    assert view is not None
    return view.backlog


def test_messages_arrive_with_everything_the_application_gave():
    pair = Pair()
    pair.producer()
    sent = pair.send(b"one", key="k", properties={"a": "1"})
    pair.consumer()
    message = pair.receive()
    assert message is not None
    assert message["message_id"] == sent["message_id"]
    assert (message["payload"], message["key"], message["properties"]) == ("b25l", "k", {"a": "1"})
    assert (message["producer"], message["sequence_id"], message["redelivery_count"]) == ("p", 0, 0)


@pytest.mark.parametrize("compression", ["lz4", "zlib", "zstd", "snappy"])
@pytest.mark.parametrize("batching", [None, {"max_messages": 3, "max_bytes": 1000, "max_delay_ms": 5}])
def test_compressed_messages_come_back(compression: str, batching: dict[str, int] | None):
    pair = Pair()
    pair.producer(compression=compression, batching=batching)
    begun = [pair.begin_send(bytes([number]) * 100) for number in range(7)]
    ids = [pair.end(number)["message_id"] for number in begun]
    assert len({(i["ledger"], i["entry"]) for i in ids}) == (7 if batching is None else 3)
    pair.consumer()
    assert pair.drain() == [bytes([number]) * 100 for number in range(7)]


def test_batch_has_one_receipt_and_consecutive_indices():
    pair = Pair()
    pair.producer(batching={"max_messages": 3, "max_bytes": 0, "max_delay_ms": 5})
    begun = [pair.begin_send(b"x") for _ in range(4)]
    ids = [pair.end(number)["message_id"] for number in begun]
    assert [i.get("batch_index") for i in ids] == [0, 1, 2, None]
    sends = pair.sent("SEND")
    assert [f.command.send.num_messages for f in sends] == [3, 1]
    assert [f.command.send.highest_sequence_id for f in sends] == [2, 0]


def test_suspected_duplicates_travel_apart_from_fresh_messages():
    pair = Pair(broker=DEDUP)
    pair.producer(batching={"max_messages": 10, "max_bytes": 0, "max_delay_ms": 5})
    pair.end(pair.begin_send(b"first", sequence_id=10))
    begun = [pair.begin_send(b"x", sequence_id=number) for number in (5, 6, 11, 12, 7)]
    answers = [pair.end(number) for number in begun]
    assert [bool(answer.get("duplicate")) for answer in answers] == [True, True, False, False, True]
    ranges = [(f.command.send.sequence_id, f.command.send.highest_sequence_id) for f in pair.sent("SEND")]
    assert ranges == [(10, 0), (5, 6), (11, 12), (7, 0)]


def test_chunked_message_is_one_delivery_and_its_ack_names_every_piece():
    pair = Pair(broker=SMALL)
    pair.producer(chunking=True)
    payload = bytes(range(256)) * 12
    sent = pair.send(payload)
    pair.consumer()
    message = pair.receive()
    assert message is not None
    assert base64.b64decode(message["payload"]) == payload
    assert message["message_id"] == sent["message_id"]
    pair.ask("ack", consumer="c", ref=0)
    pair.run(200)
    (ack,) = pair.sent("ACK")
    assert len(ack.command.ack.message_id) == stored(pair) > 3
    assert backlog(pair) == 0


def test_too_large_a_message_is_refused_without_a_frame():
    pair = Pair(broker=SMALL)
    pair.producer()
    with pytest.raises(PairError, match="too_big"):
        pair.send(b"x" * 1001)
    pair.send(b"x" * 1000)
    assert [f.command.send.sequence_id for f in pair.sent("SEND")] == [0]


def test_pending_sends_go_out_again_unchanged_and_before_newer_ones():
    pair = Pair()
    pair.producer()
    pair.send(b"0")
    pair.tamper = lambda way, frame: None if command_name(frame.command) == "SEND_RECEIPT" else frame
    begun = [pair.begin_send(b"%d" % number) for number in (1, 2)]
    pair.run(5)
    before = [f.raw for f in pair.sent("SEND")[1:]]
    pair.tamper = lambda way, frame: frame
    pair.cut()
    begun.append(pair.begin_send(b"3"))
    for number in begun:
        pair.end(number)
    after = [f.raw for f in pair.sent("SEND")[3:]]
    assert len(before) == 2
    assert after[:2] == before
    assert len(after) == 3


def test_resend_with_deduplication_is_stored_once_and_called_duplicate():
    pair = Pair(broker=DEDUP)
    pair.producer()
    pair.tamper = lambda way, frame: None if command_name(frame.command) == "SEND_RECEIPT" else frame
    begun = pair.begin_send(b"1")
    pair.run(5)
    pair.tamper = lambda way, frame: frame
    pair.cut()
    assert pair.end(begun) == {"message_id": {}, "duplicate": True}
    assert stored(pair) == 1


def test_sequence_ids_continue_above_the_broker_after_a_restart_of_the_producer():
    pair = Pair(broker=DEDUP)
    assert pair.producer() == {"last_sequence_id": None}
    for _ in range(3):
        pair.send(b"x")
    pair.ask("close", producer="p")
    assert pair.producer() == {"last_sequence_id": 2}
    pair.send(b"y")
    assert pair.sent("SEND")[-1].command.send.sequence_id == 3


def test_reconnect_does_not_take_the_brokers_sequence_id_again():
    pair = Pair()
    pair.producer(initial_sequence_id=100)
    pair.send(b"x")
    pair.cut()
    pair.send(b"y")
    assert [f.command.send.sequence_id for f in pair.sent("SEND")] == [101, 102]


def test_send_timeout_takes_everything_pending_and_the_late_receipt_hits_nobody():
    pair = Pair()
    pair.producer(send_timeout_ms=1000)
    held: list[Frame] = []

    def hold(way: str, frame: Frame) -> Frame | None:
        if command_name(frame.command) != "SEND_RECEIPT":
            return frame
        held.append(frame)
        return None

    pair.tamper = hold
    first = pair.begin_send(b"1")
    pair.run(900)
    second = pair.begin_send(b"2")
    started = pair.now
    for number in (first, second):
        with pytest.raises(PairError, match="timeout"):
            pair.end(number)
    assert pair.now - started < 101 * MS
    pair.tamper = lambda way, frame: frame
    third = pair.begin_send(b"3")
    for frame in held:
        pair.from_broker(pair.connections[0], frame)
    assert pair.end(third)["message_id"]["entry"] == 2


def test_receipt_from_the_future_closes_the_connection_and_everything_is_sent_again():
    pair = Pair()
    pair.producer()
    pair.send(b"0")
    (conn,) = pair.connections
    begun = pair.begin_send(b"1")
    receipt = CommandSendReceipt(producer_id=0, sequence_id=7, message_id=Position(9, 9).write())
    pair.from_broker(conn, Frame(BaseCommand(type=BaseCommand.SEND_RECEIPT, send_receipt=receipt)))
    pair.end(begun)
    assert pair.connections != [conn]


def refusal(error: ServerError, sequence_id: int) -> Frame:
    refused = CommandSendError(producer_id=0, sequence_id=sequence_id, error=error, message="made up")
    return Frame(BaseCommand(type=BaseCommand.SEND_ERROR, send_error=refused))


@pytest.mark.parametrize(
    ("error", "outcome", "producers"),
    [
        (ServerError.ChecksumError, "ok", 1),
        (ServerError.PersistenceError, "ok", 2),
        (ServerError.NotAllowedError, "broker_error", 1),
        (ServerError.TopicTerminatedError, "broker_error", 1),
    ],
)
def test_what_each_send_error_does(error: ServerError, outcome: str, producers: int):
    pair = Pair()
    pair.producer()
    pair.consumer()
    pair.tamper = lambda way, frame: None if command_name(frame.command) == "SEND" else frame
    begun = pair.begin_send(b"1")
    pair.run(5)
    pair.tamper = lambda way, frame: frame
    pair.from_broker(pair.connections[0], refusal(error, 0))
    if outcome == "ok":
        pair.end(begun)
        assert pair.drain() == [b"1"]
    else:
        with pytest.raises(PairError, match=ServerError.Name(error)):
            pair.end(begun)
    assert len(pair.sent("PRODUCER")) == producers
    assert len(pair.sent("CONNECT")) == 1
    if error == ServerError.TopicTerminatedError:
        with pytest.raises(PairError, match="already_closed"):
            pair.send(b"2")


def test_a_link_that_always_flips_bits_is_retried_at_a_bounded_rate():
    pair = Pair()
    pair.producer(send_timeout_ms=2000)

    def corrupt(way: str, frame: Frame) -> Frame | None:
        if command_name(frame.command) != "SEND":
            return frame
        pair.from_broker(pair.connections[0], refusal(ServerError.ChecksumError, frame.command.send.sequence_id))
        return None

    pair.tamper = corrupt
    with pytest.raises(PairError, match="timeout"):
        pair.send(b"1")
    assert 2 <= len(pair.sent("PRODUCER")) <= 25


def test_full_pending_queue_refuses_or_waits():
    pair = Pair()
    pair.producer("p", max_pending=1)
    pair.producer("q", max_pending=1, block_if_full=True)
    first = pair.begin_send(b"1", "p")
    with pytest.raises(PairError, match="queue_full"):
        pair.send(b"2", "p")
    pair.end(first)
    begun = [pair.begin_send(b"%d" % n, "q") for n in range(3)]
    flushed = pair.begin("flush", producer="q")
    pair.end(flushed)
    assert all(number in pair.answers for number in begun)


def test_flush_pushes_the_open_batch_and_waits_for_it():
    pair = Pair()
    pair.producer(batching={"max_messages": 100, "max_bytes": 0, "max_delay_ms": 60_000})
    begun = [pair.begin_send(b"x") for _ in range(2)]
    pair.ask("flush", producer="p")
    assert all(number in pair.answers for number in begun)


def test_close_resolves_what_is_pending_and_frees_the_name():
    pair = Pair()
    pair.producer()
    pair.tamper = lambda way, frame: None if command_name(frame.command) == "SEND_RECEIPT" else frame
    written = pair.begin_send(b"1")
    pair.run(5)
    pair.ask("close", producer="p")
    with pytest.raises(PairError, match="interrupted"):
        pair.end(written)
    with pytest.raises(PairError, match="already_closed"):
        pair.send(b"2")
    assert pair.ask("close", producer="p") == {}
    assert len(pair.sent("CLOSE_PRODUCER")) == 1
    pair.tamper = lambda way, frame: frame
    pair.producer()


def test_close_while_registering_leaves_no_ghost():
    pair = Pair()
    pair.tamper = lambda way, frame: None if command_name(frame.command) == "PRODUCER_SUCCESS" else frame
    creating = pair.begin("producer", client="a", producer="p", topic="t", name="n")
    pair.run(50)
    assert pair.ask("close", producer="p") == {}
    with pytest.raises(PairError, match="interrupted"):
        pair.end(creating)
    pair.tamper = lambda way, frame: frame
    pair.producer("q", name="n")


def test_creation_gives_up_within_the_operation_timeout():
    pair = Pair(client=ClientConfig(operation_timeout=5000 * MS))
    pair.refusing = True
    started = pair.now
    with pytest.raises(PairError, match=r"disconnected|timeout"):
        pair.producer()
    assert pair.now - started <= 5001 * MS


def test_second_exclusive_consumer_is_refused_and_the_first_goes_on():
    pair = Pair()
    pair.producer()
    pair.consumer()
    with pytest.raises(PairError, match="ConsumerBusy"):
        pair.consumer("d")
    pair.send(b"x")
    assert pair.drain() == [b"x"]


# --- permits


def test_permits_open_with_the_queue_refill_by_halves_and_open_again_after_a_cut():
    pair = Pair()
    pair.producer()
    pair.consumer(queue=10)
    for number in range(25):
        pair.send(b"%d" % number)
    assert len(pair.drain()) == 25
    assert [f.command.flow.messagePermits for f in pair.sent("FLOW")] == [10, 5, 5, 5, 5, 5]
    pair.cut()
    pair.run(500)
    assert pair.sent("FLOW")[-1].command.flow.messagePermits == 10


@pytest.mark.parametrize("queue", [1, 2, 3, 7])
def test_no_stall_and_no_over_credit_with_batches_redeliveries_and_corruption(queue: int):
    pair = Pair()
    pair.producer(batching={"max_messages": 4, "max_bytes": 0, "max_delay_ms": 1})
    pair.consumer(queue=queue, type="shared", nack_delay_ms=50, batch_index_ack=True)
    flips = iter([True, False, False] * 100)

    def flip(way: str, frame: Frame) -> Frame | None:
        if command_name(frame.command) != "MESSAGE" or not next(flips) or frame.raw is None:
            return frame
        raw = bytearray(frame.raw)
        raw[-1] ^= 1
        return replace(frame, raw=bytes(raw))

    pair.tamper = flip
    for number in [pair.begin_send(b"%d" % n) for n in range(60)]:
        pair.end(number)
    seen = 0
    while (message := pair.receive(timeout_ms=2000)) is not None:
        seen += 1
        verb = "nack" if seen % 5 == 0 and message["redelivery_count"] == 0 else "ack"
        pair.ask(verb, consumer="c", ref=message["ref"])
    pair.run(500)
    assert backlog(pair) == 0
    granted = sum(f.command.flow.messagePermits for f in pair.sent("FLOW"))
    charged = 0
    for frame in pair.sent("MESSAGE", "to_client"):
        size = frame.metadata.num_messages_in_batch if frame.metadata is not None else 1
        words = frame.command.message.ack_set
        charged += sum(bin(word % 2**64).count("1") for word in words) if words else size
    assert queue // 2 <= granted - charged <= queue


# --- acknowledgements


def test_individual_acks_are_grouped_into_one_frame():
    pair = Pair()
    pair.producer()
    pair.consumer()
    for number in range(5):
        pair.send(b"%d" % number)
    pair.drain()
    for ref in (3, 1, 0):
        assert pair.ask("ack", consumer="c", ref=ref) == {"confirmed": False}
    pair.run(99)
    assert pair.sent("ACK") == []
    pair.run(5)
    (ack,) = pair.sent("ACK")
    assert [i.entryId for i in ack.command.ack.message_id] == [3, 1, 0]
    assert backlog(pair) == 2


def test_confirmed_acks_end_with_the_brokers_answer():
    pair = Pair(client=ClientConfig(ack_receipt=True))
    pair.producer()
    pair.consumer()
    pair.send(b"x")
    pair.drain()
    assert pair.ask("ack", consumer="c", ref=0) == {"confirmed": True}
    assert len(pair.sent("ACK_RESPONSE", "to_client")) == 1


def test_lost_answer_to_a_confirmed_ack_is_unknown():
    pair = Pair(client=ClientConfig(ack_receipt=True, operation_timeout=1000 * MS))
    pair.producer()
    pair.consumer()
    pair.send(b"x")
    pair.drain()
    pair.tamper = lambda way, frame: None if command_name(frame.command) == "ACK_RESPONSE" else frame
    with pytest.raises(PairError, match="timeout"):
        pair.ask("ack", consumer="c", ref=0)


def test_cumulative_acks_only_rise_and_are_refused_on_shared():
    pair = Pair()
    pair.producer()
    pair.consumer()
    pair.consumer("d", subscription="shared", type="shared")
    for number in range(4):
        pair.send(b"%d" % number)
    pair.drain()
    pair.drain("d")
    for ref in (1, 0, 2, 1):
        pair.ask("ack_cumulative", consumer="c", ref=ref)
        pair.run(150)
    assert [f.command.ack.message_id[0].entryId for f in pair.sent("ACK")] == [1, 2]
    with pytest.raises(PairError, match="invalid"):
        pair.ask("ack_cumulative", consumer="d", ref=1)
    assert backlog(pair, "shared") == 4


def test_lost_cumulative_ack_is_sent_again():
    pair = Pair()
    pair.producer()
    pair.consumer()
    for number in range(3):
        pair.send(b"%d" % number)
    pair.drain()
    pair.tamper = lambda way, frame: None if command_name(frame.command) == "ACK" else frame
    pair.ask("ack_cumulative", consumer="c", ref=2)
    pair.run(200)
    pair.tamper = lambda way, frame: frame
    pair.cut()
    assert pair.drain() == []
    assert backlog(pair) == 0
    pair.run(5000)
    assert len(pair.sent("ACK")) == 1


def test_acks_made_during_an_outage_are_sent_after_the_subscribe_and_hide_the_messages():
    pair = Pair()
    pair.producer()
    pair.consumer()
    for number in range(3):
        pair.send(b"%d" % number)
    pair.drain()
    pair.refusing = True
    pair.cut()
    for ref in (0, 2):
        pair.ask("ack", consumer="c", ref=ref)
    pair.run(1000)
    pair.refusing = False
    assert pair.drain() == [b"1"]
    assert backlog(pair) == 1
    names = [command_name(f.command) for _, way, _, f in pair.frames if way == "to_broker"]
    last = len(names) - 1 - names[::-1].index("SUBSCRIBE")
    assert names[last : last + 3] == ["SUBSCRIBE", "ACK", "FLOW"]


def test_batch_is_acked_as_a_whole_without_index_acks():
    pair = Pair()
    pair.producer(batching={"max_messages": 3, "max_bytes": 0, "max_delay_ms": 5})
    for number in [pair.begin_send(b"%d" % n) for n in range(3)]:
        pair.end(number)
    pair.consumer()
    pair.drain()
    for ref in (0, 2):
        pair.ask("ack", consumer="c", ref=ref)
    pair.run(200)
    assert pair.sent("ACK") == []
    pair.cut()
    assert pair.drain() == [b"0", b"1", b"2"]
    pair.ask("ack", consumer="c", ref=4)
    pair.run(200)
    (ack,) = pair.sent("ACK")
    assert not ack.command.ack.message_id[0].ack_set
    assert backlog(pair) == 0


def test_index_acks_bring_back_only_the_other_members():
    pair = Pair()
    pair.producer(batching={"max_messages": 3, "max_bytes": 0, "max_delay_ms": 5})
    for number in [pair.begin_send(b"%d" % n) for n in range(3)]:
        pair.end(number)
    pair.consumer(batch_index_ack=True)
    pair.drain()
    pair.ask("ack", consumer="c", ref=1)
    pair.run(200)
    pair.cut()
    assert pair.drain() == [b"0", b"2"]
    pair.ask("ack_cumulative", consumer="c", ref=3)
    pair.run(200)
    pair.cut()
    assert pair.drain() == [b"2"]


def test_partial_cumulative_ack_without_index_acks_covers_what_is_before_the_batch():
    pair = Pair()
    pair.producer(batching={"max_messages": 3, "max_bytes": 0, "max_delay_ms": 5})
    for number in [pair.begin_send(b"%d" % n) for n in range(6)]:
        pair.end(number)
    pair.consumer()
    pair.drain()
    for ref in (4, 3, 4):
        pair.ask("ack_cumulative", consumer="c", ref=ref)
        pair.run(200)
    (ack,) = pair.sent("ACK")
    assert ack.command.ack.message_id[0].entryId == 0
    pair.ask("ack_cumulative", consumer="c", ref=5)
    pair.run(200)
    assert backlog(pair) == 0


# --- redelivery


def test_nack_on_shared_names_the_entry_and_counts():
    pair = Pair()
    pair.producer()
    pair.consumer(type="shared", nack_delay_ms=300)
    pair.send(b"0")
    pair.send(b"1")
    pair.drain()
    pair.ask("nack", consumer="c", ref=1)
    started = pair.now
    message = pair.receive()
    assert message is not None
    assert (message["payload"], message["redelivery_count"]) == ("MQ==", 1)
    assert 300 * MS <= pair.now - started < 310 * MS
    (redeliver,) = pair.sent("REDELIVER_UNACKNOWLEDGED_MESSAGES")
    assert [i.entryId for i in redeliver.command.redeliverUnacknowledgedMessages.message_ids] == [1]


def test_nack_on_exclusive_rewinds_everything_in_order():
    pair = Pair()
    pair.producer()
    pair.consumer(nack_delay_ms=300)
    for number in range(4):
        pair.send(b"%d" % number)
    pair.receive()
    pair.receive()
    pair.ask("ack", consumer="c", ref=0)
    pair.ask("nack", consumer="c", ref=1)
    pair.run(400)
    assert pair.drain() == [b"1", b"2", b"3"]
    (redeliver,) = pair.sent("REDELIVER_UNACKNOWLEDGED_MESSAGES")
    assert not redeliver.command.redeliverUnacknowledgedMessages.message_ids


def test_ack_timeout_asks_again_within_its_window_and_never_for_acked_ones():
    pair = Pair()
    pair.producer()
    pair.consumer(type="shared", ack_timeout_ms=2500)
    pair.send(b"0")
    pair.send(b"1")
    pair.drain(timeout_ms=0)
    pair.run(1)
    pair.drain(timeout_ms=100)
    handed = pair.now
    pair.ask("ack", consumer="c", ref=0)
    pair.run(10_000, until=lambda: bool(pair.sent("REDELIVER_UNACKNOWLEDGED_MESSAGES")))
    assert 2800 * MS <= pair.now - handed <= 4001 * MS
    (redeliver,) = pair.sent("REDELIVER_UNACKNOWLEDGED_MESSAGES")
    assert [i.entryId for i in redeliver.command.redeliverUnacknowledgedMessages.message_ids] == [1]


def test_poison_message_goes_to_the_dead_letter_topic_after_its_last_chance():
    pair = Pair()
    pair.producer()
    policy = {"max_redeliver": 2, "topic": "dead"}
    pair.consumer(type="shared", nack_delay_ms=100, dead_letter=policy)
    sent = pair.send(b"poison", key="k", properties={"a": "1"})["message_id"]
    counts = []
    while (message := pair.receive()) is not None:
        counts.append(message["redelivery_count"])
        pair.ask("nack", consumer="c", ref=message["ref"])
    assert counts == [0, 1, 2]
    pair.run(200)
    assert backlog(pair) == 0
    pair.consumer("d", topic="dead", subscription="x")
    copy = pair.receive("d")
    assert copy is not None
    assert (copy["payload"], copy["key"]) == (base64.b64encode(b"poison").decode(), "k")
    assert copy["properties"] == {
        "a": "1",
        "ORIGIN_MESSAGE_ID": f"{sent['ledger']}:{sent['entry']}:-1",
        "REAL_TOPIC": TOPIC,
        "REAL_SUBSCRIPTION": "s",
    }
    names = [command_name(f.command) for _, _, _, f in pair.frames]
    assert names.index("ACK") > max(i for i, name in enumerate(names) if name == "SEND_RECEIPT")
    assert len(pair.sent("REDELIVER_UNACKNOWLEDGED_MESSAGES")) == 2


def test_only_unacked_members_of_a_batch_are_dead_lettered():
    pair = Pair()
    pair.producer(batching={"max_messages": 3, "max_bytes": 0, "max_delay_ms": 5})
    for number in [pair.begin_send(b"%d" % n) for n in range(3)]:
        pair.end(number)
    pair.consumer(type="shared", nack_delay_ms=100, dead_letter={"max_redeliver": 0, "topic": "dead"})
    pair.drain(timeout_ms=50)
    pair.ask("ack", consumer="c", ref=1)
    pair.ask("nack", consumer="c", ref=0)
    pair.run(500)
    assert backlog(pair) == 0
    pair.consumer("d", topic="dead", subscription="x")
    assert pair.drain("d") == [b"0", b"2"]


def test_source_stays_when_the_copy_is_not_confirmed():
    pair = Pair()
    pair.producer()
    pair.consumer(type="shared", nack_delay_ms=100, dead_letter={"max_redeliver": 0, "topic": "dead"})
    pair.send(b"poison")
    pair.receive()
    pair.tamper = lambda way, frame: None if command_name(frame.command) == "SEND_RECEIPT" else frame
    pair.ask("nack", consumer="c", ref=0)
    pair.run(20_000)
    assert pair.sent("ACK") == []
    assert backlog(pair) == 1
    pair.tamper = lambda way, frame: frame
    pair.run(60_000)
    assert backlog(pair) == 0


# --- damaged and incomplete


def test_flipped_payload_is_acked_with_the_reason_and_the_rest_flows():
    pair = Pair()
    pair.producer()
    for number in range(3):
        pair.send(b"%d" % number)

    def flip(way: str, frame: Frame) -> Frame | None:
        if command_name(frame.command) != "MESSAGE" or frame.payload != b"1" or frame.raw is None:
            return frame
        return replace(frame, raw=frame.raw[:-1] + b"?")

    pair.tamper = flip
    pair.consumer(queue=1)
    assert pair.drain() == [b"0", b"2"]
    (ack,) = pair.sent("ACK")
    assert ack.command.ack.validation_error == CommandAck.ChecksumMismatch
    assert ack.command.ack.message_id[0].entryId == 1


def test_orphaned_pieces_are_acked_after_their_time_also_after_a_complete_message():
    pair = Pair(broker=SMALL)
    pair.producer(chunking=True)
    pair.send(b"good" * 600)
    dropped = 0

    def behead(way: str, frame: Frame) -> Frame | None:
        nonlocal dropped
        if command_name(frame.command) == "SEND" and frame.metadata and frame.metadata.chunk_id >= 1:
            dropped += 1
            return None
        return frame

    pair.tamper = behead
    pair.begin_send(b"orphan" * 400)
    pair.run(5)
    assert dropped == 2
    pair.begin("close", producer="p")
    pair.run(5)
    pair.tamper = lambda way, frame: frame
    pair.consumer(expire_chunks_ms=2000)
    arrived = pair.now
    assert pair.drain(timeout_ms=100) == [b"good" * 600]
    pair.ask("ack", consumer="c", ref=0)
    pair.run(6000, until=lambda: len(pair.sent("ACK")) == 2)
    assert 2000 * MS < pair.now - arrived <= 4200 * MS
    assert backlog(pair) == 0


# --- seek, unsubscribe, close


def test_seek_back_shows_acked_messages_again_and_nothing_from_before():
    pair = Pair()
    pair.producer()
    pair.consumer()
    for number in range(5):
        pair.send(b"%d" % number)
    pair.drain()
    pair.ask("ack_cumulative", consumer="c", ref=4)
    pair.ask("seek", consumer="c", ref=2)
    assert pair.drain() == [b"2", b"3", b"4"]
    pair.ask("seek", consumer="c", position="earliest")
    assert pair.drain() == [b"0", b"1", b"2", b"3", b"4"]
    names = [command_name(f.command) for _, way, _, f in pair.frames if way == "to_broker"]
    assert names.index("ACK") < names.index("SEEK")


def test_seek_and_unsubscribe_without_a_connection_fail_at_once():
    pair = Pair()
    pair.consumer()
    pair.refusing = True
    pair.cut()
    with pytest.raises(PairError, match="not_connected"):
        pair.ask("seek", consumer="c", position="earliest")
    with pytest.raises(PairError, match="not_connected"):
        pair.ask("unsubscribe", consumer="c")
    pair.refusing = False
    pair.run(1000)
    pair.ask("unsubscribe", consumer="c")
    assert pair.broker.cursor(TOPIC, "s") is None


def test_close_flushes_acks_first_and_ends_waiting_receives():
    pair = Pair()
    pair.producer()
    pair.consumer(ack_group_ms=60_000)
    pair.send(b"0")
    pair.drain()
    pair.ask("ack", consumer="c", ref=0)
    waiting = pair.begin("receive", consumer="c", timeout_ms=60_000)
    pair.ask("close", consumer="c")
    with pytest.raises(PairError, match="already_closed"):
        pair.end(waiting)
    names = [command_name(f.command) for _, way, _, f in pair.frames if way == "to_broker"]
    assert names.index("ACK") < names.index("CLOSE_CONSUMER")
    pair.consumer("d")
    assert pair.drain("d") == []


def test_waiting_receives_are_served_in_order_and_survive_a_cut():
    pair = Pair()
    pair.producer()
    pair.consumer()
    waiting = [pair.begin("receive", consumer="c", timeout_ms=60_000) for _ in range(3)]
    pair.run(10)
    pair.cut()
    for number in range(3):
        pair.send(b"%d" % number)
    got = [base64.b64decode(pair.end(number)["message"]["payload"]) for number in waiting]
    assert got == [b"0", b"1", b"2"]


def test_client_close_closes_children_before_the_connection():
    pair = Pair()
    pair.producer()
    pair.consumer()
    pair.ask("close", client="a")
    pair.run(10)
    names = [command_name(f.command) for _, way, _, f in pair.frames if way == "to_broker"]
    assert names[-2:] == ["CLOSE_PRODUCER", "CLOSE_CONSUMER"]
    assert pair.connections == []
    with pytest.raises(PairError, match="already_closed"):
        pair.ask("producer", client="a", producer="q", topic="t", name="q")
    with pytest.raises(PairError, match="already_closed"):
        pair.ask("close", client="a")


def test_partitioned_topics_are_answered_unsupported():
    pair = Pair(broker=BrokerConfig(service_url="pulsar://broker:6650", partitions={TOPIC: 3}))
    with pytest.raises(PairError, match="unsupported"):
        pair.producer()


# --- connections


def test_silent_broker_is_given_up_after_two_intervals():
    pair = Pair()
    pair.consumer()
    pair.tamper = lambda way, frame: None if way == "to_client" else frame
    started = pair.now
    pair.run(100_000, until=lambda: not pair.connections)
    assert 30_000 * MS <= pair.now - started <= 60_000 * MS


def test_idle_connection_lives_on_pings():
    pair = Pair()
    pair.consumer()
    pair.run(200_000)
    assert len(pair.sent("CONNECT")) == 1
    assert len(pair.sent("PING")) >= 5


def test_reconnect_attempts_back_off_and_end_when_the_broker_is_back():
    pair = Pair()
    pair.consumer()
    pair.refusing = True
    pair.cut()
    pair.run(30_000)
    pair.refusing = False
    pair.run(60_000)
    assert len(pair.sent("SUBSCRIBE")) == 2


def test_same_run_twice_is_the_same_to_the_byte():
    def run() -> list[tuple[int, str, int, bytes | None]]:
        pair = Pair()
        pair.producer(batching={"max_messages": 3, "max_bytes": 0, "max_delay_ms": 5})
        pair.consumer(type="shared", nack_delay_ms=100)
        for number in range(5):
            pair.begin_send(b"%d" % number)
        pair.receive()
        pair.ask("nack", consumer="c", ref=0)
        pair.cut()
        pair.drain()
        return [(time, way, conn, frame.raw) for time, way, conn, frame in pair.frames]

    assert run() == run()


def test_dead_letters_may_need_several_pieces():
    pair = Pair(broker=SMALL)
    pair.producer(chunking=True)
    pair.consumer(type="shared", nack_delay_ms=100, dead_letter={"max_redeliver": 0, "topic": "dead"})
    pair.send(b"poison" * 500)
    pair.receive()
    pair.ask("nack", consumer="c", ref=0)
    pair.run(500)
    assert backlog(pair) == 0
    pair.consumer("d", topic="dead", subscription="x")
    assert pair.drain("d") == [b"poison" * 500]


def test_a_dead_letter_topic_that_refuses_everything_is_retried_at_the_pace_of_negative_acks():
    partitions = {"persistent://public/default/dead": 2}
    pair = Pair(broker=BrokerConfig(service_url="pulsar://broker:6650", partitions=partitions))
    pair.producer()
    pair.consumer(type="shared", nack_delay_ms=100, dead_letter={"max_redeliver": 0, "topic": "dead"})
    pair.send(b"poison")
    pair.receive()
    pair.ask("nack", consumer="c", ref=0)
    pair.run(1100)
    assert 8 <= len(pair.sent("MESSAGE", "to_client")) <= 11
    assert backlog(pair) == 1


def test_duplicate_verdict_on_the_last_piece_may_overtake_the_others():
    slow = BrokerConfig(
        service_url="pulsar://broker:6650", max_message_size=1000, dedup_enabled=True, storage_latency=2 * MS
    )
    pair = Pair(broker=slow)
    pair.producer(chunking=True)
    pair.tamper = lambda way, frame: None if command_name(frame.command) == "SEND_RECEIPT" else frame
    begun = [pair.begin_send(b"x" * 2500), pair.begin_send(b"after")]
    pair.run(20)
    pair.tamper = lambda way, frame: frame
    pair.cut()
    assert [pair.end(number).get("duplicate") for number in begun] == [True, True]
    assert len(pair.sent("PRODUCER")) == 3
    assert "first_chunk" in pair.send(b"y" * 2500)["message_id"]


def test_the_size_limit_is_known_before_the_first_send_also_while_disconnected():
    pair = Pair(broker=SMALL)
    pair.producer()
    pair.refusing = True
    pair.cut()
    with pytest.raises(PairError, match="too_big"):
        pair.send(b"x" * 1001)


def test_duplicate_verdict_on_an_old_id_behind_a_fresh_message_is_not_forgotten():
    slow = BrokerConfig(service_url="pulsar://broker:6650", dedup_enabled=True, storage_latency=50 * MS)
    pair = Pair(broker=slow)
    pair.producer(send_timeout_ms=1000)
    pair.send(b"5", sequence_id=5)
    fresh, old = pair.begin_send(b"10", sequence_id=10), pair.begin_send(b"5", sequence_id=5)
    assert pair.end(fresh).get("duplicate") is None
    assert pair.end(old) == {"message_id": {}, "duplicate": True}
    assert len(pair.sent("CONNECT")) == 1
