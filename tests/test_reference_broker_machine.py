"""The reference broker as a machine: frames in, frames out, time by hand. Each test names the clauses it stands for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.reference.broker.config import MILLISECOND, SECOND, BrokerConfig
from harness.reference.broker.machine import BrokerMachine
from harness.wire.frame import Frame, encode, entry_bytes
from harness.wire.pulsar_pb2 import BaseCommand, CommandSubscribe, IntRange, KeySharedMeta, MessageIdData, ServerError
from tests.raw_client import TOPIC, Bench

SHARED = CommandSubscribe.Shared
FAILOVER = CommandSubscribe.Failover
KEY_SHARED = CommandSubscribe.Key_Shared


def bench(**config) -> Bench:
    return Bench(BrokerMachine(BrokerConfig(**config)))


def filled(count, **config):
    """A topic with ``count`` messages ``0``, ``1``, ... and the client that sent them."""
    made = bench(**config)
    client = made.client()
    client.produce()
    for number in range(count):
        client.send(number, b"%d" % number)
    made.wait(0)
    client.frames()
    return made, client


def at(frame, **more):
    body = frame.command.message.message_id
    return MessageIdData(ledgerId=body.ledgerId, entryId=body.entryId, **more)


def error_of(body):
    return ServerError.Name(body.error)


# --- session ---------------------------------------------------------------------------------------------------------


def test_handshake_announces_the_maximum():
    made = bench(max_message_size=12345)
    client = made.client(connect=False)
    client.say(BaseCommand.CONNECT, "connect", client_version="raw", protocol_version=15)
    body = client.only("CONNECTED")
    assert (body.max_message_size, body.protocol_version) == (12345, 15)


@pytest.mark.parametrize("kind", ["lookup", "ping", "send"])
def test_commands_before_connect_close(kind):  # CONN-12
    made = bench()
    other, client = made.client(), made.client(connect=False)
    if kind == "lookup":
        client.ask(BaseCommand.LOOKUP, "lookupTopic", topic=TOPIC)
    elif kind == "ping":
        client.say(BaseCommand.PING, "ping")
    else:
        client.send(0)
    assert client.closed
    assert client.heard() == []
    assert not other.closed


def test_second_connect_closes():  # CONN-12
    client = bench().client()
    client.say(BaseCommand.CONNECT, "connect", client_version="raw")
    assert client.closed


def test_ping_is_answered_and_silence_is_dropped():  # KEEP-01, KEEP-02
    made = bench()
    client = made.client()
    client.say(BaseCommand.PING, "ping")
    assert client.heard() == ["PONG"]
    made.wait(30 * SECOND)
    assert client.heard() == ["PING"]
    client.say(BaseCommand.PONG, "pong")
    made.wait(30 * SECOND)
    assert client.heard() == ["PING"]
    made.wait(30 * SECOND)
    assert client.closed


def test_any_frame_is_a_life_sign():  # KEEP-01
    made = bench()
    client = made.client()
    for _ in range(5):
        made.wait(30 * SECOND)
        client.ask(BaseCommand.PARTITIONED_METADATA, "partitionMetadata", topic=TOPIC)
    assert not client.closed


def test_garbage_closes_only_its_connection():
    made = bench()
    good, bad = made.client(), made.client()
    bad.write(b"\x00\x00\x00\x08\xff\xff\xff\xff\x00\x00\x00\x00")
    assert bad.closed
    assert not good.closed


def test_unknown_requests_are_refused_not_ignored():
    client = bench().client()
    request = client.ask(BaseCommand.GET_SCHEMA, "getSchema", topic=TOPIC)
    body = client.only("ERROR")
    assert (body.request_id, error_of(body)) == (request, "NotAllowedError")


def test_answers_from_a_client_close():
    client = bench().client()
    client.ask(BaseCommand.SUCCESS, "success")
    assert client.closed


# --- lookup ----------------------------------------------------------------------------------------------------------


def test_lookup_and_partitions_are_answered():  # LOOKUP-14
    made = bench(partitions={TOPIC: 4}, service_url="pulsar://here:1")
    client = made.client()
    client.ask(BaseCommand.LOOKUP, "lookupTopic", topic=TOPIC)
    body = client.only("LOOKUP_RESPONSE")
    assert (body.brokerServiceUrl, body.authoritative) == ("pulsar://here:1", True)
    client.ask(BaseCommand.PARTITIONED_METADATA, "partitionMetadata", topic="t")
    assert client.only("PARTITIONED_METADATA_RESPONSE").partitions == 4
    client.ask(BaseCommand.LOOKUP, "lookupTopic", topic="not/good")
    assert error_of(client.only("LOOKUP_RESPONSE")) == "InvalidTopicName"
    client.ask(BaseCommand.PARTITIONED_METADATA, "partitionMetadata", topic="not/good")
    assert error_of(client.only("PARTITIONED_METADATA_RESPONSE")) == "InvalidTopicName"


def test_topics_of_namespace():
    client = bench().client()
    client.produce(1, "p", "b")
    client.produce(2, "p", "a")
    client.produce(3, "p", "other/ns/c")
    client.frames()
    client.ask(BaseCommand.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", namespace="public/default")
    topics = client.only("GET_TOPICS_OF_NAMESPACE_RESPONSE").topics
    assert list(topics) == ["persistent://public/default/a", "persistent://public/default/b"]


# --- producers -------------------------------------------------------------------------------------------------------


def test_registration_is_idempotent():  # PROD-18
    client = bench().client()
    client.produce()
    client.produce()
    first, second = (frame.command.producer_success for frame in client.frames())
    assert first.producer_name == second.producer_name == "p"


def test_live_holder_of_a_name_keeps_it():  # PROD-17
    made = bench()
    old, new = made.client(), made.client()
    old.produce()
    old.frames()
    new.produce()
    assert old.heard() == ["PING"]
    assert new.heard() == []
    old.say(BaseCommand.PONG, "pong")
    assert error_of(new.only("ERROR")) == "ProducerBusy"


def test_dead_holder_of_a_name_loses_it():  # PROD-17
    made = bench()
    old, new = made.client(), made.client()
    old.produce()
    new.produce()
    new.produce()
    assert error_of(new.only("ERROR")) == "ServiceNotReady"
    made.wait(5 * SECOND)
    assert old.closed
    assert new.heard() == ["PRODUCER_SUCCESS"]


def test_a_name_is_given_when_there_is_none():
    client = bench().client()
    client.produce(1, "")
    client.produce(2, "")
    names = {frame.command.producer_success.producer_name for frame in client.frames()}
    assert len(names) == 2
    assert "" not in names


def test_send_for_unknown_producer_closes_but_not_for_one_just_closed():  # SEND-04
    made = bench()
    client = made.client()
    client.produce()
    client.ask(BaseCommand.CLOSE_PRODUCER, "close_producer", producer_id=1)
    client.frames()
    client.send(0)
    assert client.heard() == []
    client.send(0, producer_id=9)
    assert client.closed
    assert made.machine.entries(TOPIC) == []


def test_close_answers_after_the_sends_before_it():
    made = bench(storage_latency=MILLISECOND)
    client = made.client()
    client.produce()
    client.frames()
    client.send(0)
    client.ask(BaseCommand.CLOSE_PRODUCER, "close_producer", producer_id=1)
    client.send(1)
    assert client.heard() == ["SEND_ERROR"]
    made.wait(MILLISECOND)
    assert client.heard() == ["SEND_RECEIPT", "SUCCESS"]


def test_receipts_in_order_and_only_after_storage():  # RCPT-06, RECEIPT-02, LEDGER-01..03
    made = bench(storage_latency=5 * MILLISECOND, max_entries_per_ledger=3)
    client = made.client()
    client.produce()
    client.frames()
    for number in range(8):
        client.send(number)
        made.wait(MILLISECOND)
    assert len(client.receipts()) == len(made.machine.entries(TOPIC)) == 4
    made.wait(SECOND)
    stored = [(entry.ledger, entry.entry) for entry in made.machine.entries(TOPIC)]
    assert [entry for _, entry in stored] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert stored == sorted(stored)
    assert [(ledger, entry) for _, ledger, entry in client.receipts()] == stored[4:]


def test_bad_checksum_is_reported_precisely():  # CHECKSUM-01, ERR-08
    made = bench()
    client = made.client()
    client.produce()
    client.frames()
    good = client.send_frame(5, b"payload", highest=7, num_messages_in_batch=3)
    for place in range(good.index(b"\x0e\x01") + 2, len(good)):
        client.write(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        body = client.only("SEND_ERROR")
        assert (error_of(body), body.sequence_id) == ("ChecksumError", 7)
    assert made.machine.entries(TOPIC) == []
    client.send(5)
    assert client.heard() == ["SEND_RECEIPT"]


def test_no_checksum_is_accepted():  # ERR-08
    made, client = filled(1)
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id, command.send.sequence_id = 1, 1
    client.write(encode(Frame(command, made.machine.entries(TOPIC)[0].metadata, b"bare"), checksum=False))
    assert client.heard() == ["SEND_RECEIPT"]
    client.subscribe(flow=10)
    assert client.payloads() == [b"0", b"bare"]


def test_lowest_above_highest():  # BATCH-02, ERR-08
    made = bench()
    client = made.client()
    client.produce()
    client.frames()
    client.write(client.send_frame(9, highest=5))
    assert error_of(client.only("SEND_ERROR")) == "MetadataError"
    assert made.machine.entries(TOPIC) == []


def test_size_ceiling():  # SEND-05
    made = bench(max_message_size=1000, frame_padding=500)
    client = made.client()
    client.produce()
    client.frames()
    room = 1500 - len(client.send_frame(0, b""))
    client.send(0, b"x" * room)
    assert client.heard() == ["SEND_RECEIPT"]
    client.send(1, b"x" * (room + 1))
    assert client.closed
    assert len(made.machine.entries(TOPIC)) == 1


def test_entry_is_served_byte_for_byte():  # DISPATCH-04, LEDGER-04
    made = bench()
    client = made.client()
    client.produce()
    frame = bytearray(client.send_frame(0, b"payload", properties=[]))
    client.write(bytes(frame))
    client.subscribe(flow=1)
    (message,) = client.messages()
    assert entry_bytes(message) == bytes(frame[frame.index(b"\x0e\x01") + 10 :])
    assert message.checksum_ok


# --- deduplication ---------------------------------------------------------------------------------------------------


def test_duplicate_is_answered_at_once_and_overtakes():  # DEDUP-01, RECEIPT-03
    made = bench(dedup_enabled=True, storage_latency=MILLISECOND)
    client = made.client()
    client.produce()
    client.send(5)
    made.wait(MILLISECOND)
    client.frames()
    client.send(10)
    client.send(5)
    assert client.receipts() == [(5, -1, -1)]
    made.wait(MILLISECOND)
    assert client.receipts() == [(10, 1, 1)]


def test_undetermined_is_an_error_and_the_retry_is_settled():  # DEDUP-02
    made = bench(dedup_enabled=True, storage_latency=MILLISECOND)
    old = made.client()
    old.produce()
    old.send(0)
    old.leave()
    new = made.client()
    new.produce()
    new.frames()
    new.send(0)
    body = new.only("SEND_ERROR")
    assert (error_of(body), body.sequence_id) == ("PersistenceError", 0)
    made.wait(MILLISECOND)
    new.send(0)
    assert new.receipts() == [(0, -1, -1)]
    assert len(made.machine.entries(TOPIC)) == 1


def test_batch_is_judged_by_its_lowest_id():  # DEDUP-05
    made = bench(dedup_enabled=True)
    client = made.client()
    client.produce()
    client.send_batch(5, 5)
    client.send_batch(8, 5)
    client.send_batch(10, 2)
    assert [ledger for _, ledger, _ in client.receipts()] == [1, -1, 1]
    assert [entry.sequence_id for entry in made.machine.entries(TOPIC)] == [5, 10]


def test_pieces_are_stored_and_the_last_one_is_judged():  # DEDUP-08, CHUNK-04
    made = bench(dedup_enabled=True)
    client = made.client()
    client.produce()
    for chunk_id in (0, 1, 0, 1, 2, 2):
        client.send(3, uuid="u", chunk_id=chunk_id, num_chunks_from_msg=3, total_chunk_msg_size=9)
    assert [ledger for _, ledger, _ in client.receipts()] == [1, 1, 1, 1, 1, -1]


def test_failed_writes_release_their_ids():  # DEDUP-06
    made = bench(dedup_enabled=True, storage_latency=MILLISECOND)
    client = made.client()
    client.produce()
    client.frames()
    client.send(0)
    made.take(made.machine.fail_writes(TOPIC, made.now))
    assert error_of(client.only("SEND_ERROR")) == "PersistenceError"
    client.send(0)
    made.wait(MILLISECOND)
    assert [number for number, _, _ in client.receipts()] == [0]
    assert len(made.machine.entries(TOPIC)) == 1


@pytest.mark.parametrize("snapshot_every", [1, 3, 1000])
def test_marks_survive_a_crash(snapshot_every):  # DEDUP-04, RECEIPT-05
    made = bench(dedup_enabled=True, storage_latency=MILLISECOND, dedup_snapshot_entries=snapshot_every)
    client = made.client()
    client.produce()
    for number in range(7):
        client.send(number)
    made.wait(MILLISECOND)
    client.send(7)
    made.take(made.machine.crash(made.now))
    assert client.closed
    made.wait(SECOND)
    made.take(made.machine.restart(made.now))
    client = made.client()
    client.produce()
    assert client.only("PRODUCER_SUCCESS").last_sequence_id == 6
    client.send(6)
    client.send(7)
    made.wait(MILLISECOND)
    (old, *_), (new, ledger, entry) = client.receipts()
    assert (old, new) == (6, 7)
    assert ledger > 1
    assert entry == 0
    assert [entry.sequence_id for entry in made.machine.entries(TOPIC)] == list(range(8))


def test_a_broker_that_is_down_refuses():
    made = bench()
    made.take(made.machine.crash(made.now))
    assert made.client(connect=False).closed


def test_dedup_off_by_default_and_switched():  # DEDUP-09
    made, client = filled(1)
    client.send(0)
    assert client.receipts() == [(0, 1, 1)]
    made.machine.set_dedup(True)
    client.send(0)
    client.send(0)
    assert client.receipts() == [(0, 1, 2), (0, -1, -1)]
    made.machine.set_dedup(False)
    client.send(0)
    assert client.receipts() == [(0, 1, 3)]


def test_dedup_is_switched_by_topic_prefix():
    """Runs side by side choose each its own: one whose name only begins like another's is not meant."""
    made = bench()
    base = "persistent://public/default/"
    made.machine.set_dedup(True, f"{base}run-1-")

    def stored_of_two(producer_id: int, topic: str) -> int:
        client = made.client()
        client.produce(producer_id, topic=base + topic)
        client.frames()
        client.send(0, producer_id=producer_id)
        client.send(0, producer_id=producer_id)
        return sum(1 for _, ledger, _ in client.receipts() if ledger != -1)

    assert [stored_of_two(n, name) for n, name in enumerate(("run-1-0", "run-10-0", "run-2-0"))] == [1, 2, 2]
    made.machine.set_dedup(False, base)
    assert stored_of_two(3, "run-1-1") == 1, "the longer prefix decides"
    made.machine.set_dedup(False)
    assert stored_of_two(4, "run-1-2") == 2, "the switch for all topics forgets the narrower ones"


def test_write_begun_before_dedup_was_on_counts():
    made = bench(storage_latency=MILLISECOND)
    client = made.client()
    client.produce()
    client.frames()
    client.send(4)
    made.machine.set_dedup(True)
    made.wait(MILLISECOND)
    client.send(4)
    assert client.receipts() == [(4, 1, 0), (4, -1, -1)]


# --- flow ------------------------------------------------------------------------------------------------------------


def test_nothing_before_flow_and_grants_add_up():  # FLOW-01, PERMIT-01
    _, client = filled(20)
    client.subscribe()
    assert client.heard() == ["SUCCESS"]
    client.flow(5)
    client.flow(5)
    assert client.payloads() == [b"%d" % n for n in range(10)]
    client.flow(5, consumer_id=77)
    assert client.heard() == []


@pytest.mark.parametrize("kind", [0, SHARED])
def test_a_batch_overshoots_and_is_charged_whole(kind):  # FLOW-02
    made = bench()
    client = made.client()
    client.produce()
    for number in range(5):
        client.send_batch(10 * number, 10)
    client.subscribe(kind=kind)
    client.flow(1)
    assert len(client.messages()) == 1
    client.flow(9)
    assert client.messages() == []
    client.flow(1)
    assert len(client.messages()) == 1


def test_flow_of_nothing_closes():  # PERMIT-11
    client = bench().client()
    client.subscribe()
    client.flow(0)
    assert client.closed


def test_unacked_cap_parks_a_shared_consumer():  # FLOW-05
    _, client = filled(10, max_unacked_per_consumer=3)
    client.subscribe(kind=SHARED, flow=100)
    got = client.messages()
    assert len(got) == 3
    client.ack(at(got[0]))
    assert client.payloads() == [b"3"]


# --- single active ---------------------------------------------------------------------------------------------------


def test_second_exclusive_is_refused_while_the_first_lives():  # DISPATCH-01
    made = bench()
    old, new = made.client(), made.client()
    old.subscribe()
    old.frames()
    new.subscribe()
    assert old.heard() == ["PING"]
    old.say(BaseCommand.PONG, "pong")
    assert error_of(new.only("ERROR")) == "ConsumerBusy"
    new.subscribe()
    made.wait(5 * SECOND)
    assert old.closed
    assert new.heard() == ["SUCCESS"]


def test_type_of_a_subscription_in_use_is_fixed():
    made = bench()
    client = made.client()
    client.subscribe(1, kind=SHARED)
    client.frames()
    client.subscribe(2, kind=FAILOVER)
    assert error_of(client.only("ERROR")) == "ConsumerBusy"
    client.ask(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=1)
    client.subscribe(2, kind=FAILOVER)
    assert client.heard() == ["SUCCESS", "SUCCESS"]


def test_failover_announces_and_rewinds():  # DISPATCH-01, DISPATCH-03, CONS-18
    made, _ = filled(5)
    one, two = made.client(), made.client()
    one.subscribe(1, kind=FAILOVER, consumer_name="a", flow=10)
    two.subscribe(1, kind=FAILOVER, consumer_name="b", flow=10)
    made.wait(SECOND)
    announced = [f.command.active_consumer_change for c in (one, two) for f in c.inbox if f.command.type == 31]
    assert [change.is_active for change in announced] == [True, False]
    got = one.messages()
    assert len(got) == 5
    assert two.messages() == []
    one.ack(at(got[1]))
    one.ack(at(got[3]))
    one.leave()
    assert two.messages() == []
    made.wait(SECOND)
    frames = two.frames()
    assert frames[0].command.active_consumer_change.is_active
    assert [frame.payload for frame in frames[1:]] == [b"0", b"2", b"4"]


def test_redeliver_rewinds_and_carries_the_epoch():  # REDEL-01, EPOCH-01
    _, client = filled(4)
    client.subscribe(flow=100, consumer_epoch=0)
    got = client.messages()
    client.ack(at(got[0]))
    client.redeliver(consumer_epoch=3)
    again = client.messages()
    assert [frame.payload for frame in again] == [b"1", b"2", b"3"]
    assert {frame.command.message.consumer_epoch for frame in again} == {3}
    assert {frame.command.message.redelivery_count for frame in again} == {0}


def test_hash_ranges_of_an_exclusive_consumer():  # KEYHASH-01
    made = bench()
    client = made.client()
    client.produce()
    for number in range(200):
        client.send(number, b"%d" % number, partition_key=f"k{number}")
    halves = []
    for consumer_id, (low, high) in enumerate([(0, 20000), (20001, 65535)]):
        meta = KeySharedMeta(keySharedMode=1, hashRanges=[IntRange(start=low, end=high)])
        client.subscribe(consumer_id, f"r{consumer_id}", keySharedMeta=meta, durable=False, flow=1000)
        halves.append({int(payload) for payload in client.payloads()})
    assert halves[0] | halves[1] == set(range(200))
    assert not halves[0] & halves[1]
    assert all(halves)


# --- shared ----------------------------------------------------------------------------------------------------------


def test_round_robin_by_priority():  # DISP-01
    _, client = filled(0)
    grants = [(1, 0, 2), (2, 0, 1), (3, 0, 1), (4, 1, 2), (5, 1, 1)]
    for consumer_id, priority, permits in grants:
        client.subscribe(consumer_id, kind=SHARED, priority_level=priority)
        client.flow(permits, consumer_id)
    client.frames()
    for number in range(8):
        client.send(number)
    order = [frame.command.message.consumer_id for frame in client.messages()]
    assert order == [1, 2, 3, 1, 4, 5, 4]


def test_redelivery_counts_only_what_is_named():  # REDEL-02, Q1
    made, client = filled(3)
    other = made.client()
    client.subscribe(1, kind=SHARED, flow=100)
    got = client.messages()
    client.redeliver(at(got[0]), at(got[2]))
    again = client.messages()
    counts = [(frame.payload, frame.command.message.redelivery_count) for frame in again]
    assert counts == [(b"0", 1), (b"2", 1)]
    client.redeliver()
    counts = [(frame.payload, frame.command.message.redelivery_count) for frame in client.messages()]
    assert counts == [(b"0", 2), (b"1", 1), (b"2", 2)]
    other.subscribe(1, kind=SHARED, flow=100)
    other.redeliver(at(got[0]))
    assert other.messages() == []
    client.leave()
    counts = [(frame.payload, frame.command.message.redelivery_count) for frame in other.messages()]
    assert counts == [(b"0", 2), (b"1", 1), (b"2", 2)]
    other.leave()
    last = made.client()
    last.subscribe(1, kind=SHARED, flow=100)
    assert {frame.command.message.redelivery_count for frame in last.messages()} == {0}


def test_pieces_stay_with_one_consumer():  # CHUNK-08
    made = bench()
    client = made.client()
    client.produce()
    client.frames()
    for consumer_id in (1, 2):
        client.subscribe(consumer_id, kind=SHARED, flow=100)
    client.frames()
    for number in range(6):
        for chunk_id in range(4):
            client.send(number, uuid=f"u{number}", chunk_id=chunk_id, num_chunks_from_msg=4)
    homes = {}
    for frame in client.messages():
        homes.setdefault(frame.metadata.uuid, []).append((frame.command.message.consumer_id, frame.metadata.chunk_id))
    assert all(len({consumer for consumer, _ in pieces}) == 1 for pieces in homes.values())
    assert all([chunk for _, chunk in pieces] == [0, 1, 2, 3] for pieces in homes.values())
    assert len({pieces[0][0] for pieces in homes.values()}) == 2


def test_pieces_wait_for_the_permits_of_their_consumer():  # CHUNK-08
    made = bench()
    client = made.client()
    client.produce()
    client.subscribe(1, kind=SHARED, flow=1)
    client.send(0, uuid="u", chunk_id=0, num_chunks_from_msg=2)
    client.subscribe(2, kind=SHARED, flow=10)
    client.send(0, uuid="u", chunk_id=1, num_chunks_from_msg=2)
    client.send(1, b"plain")
    homes = [(frame.command.message.consumer_id, frame.metadata.chunk_id) for frame in client.messages()]
    assert homes == [(1, 0), (2, 0)]
    client.flow(1, 1)
    assert [(frame.command.message.consumer_id, frame.metadata.chunk_id) for frame in client.messages()] == [(1, 1)]


def test_delayed_on_shared_only():  # FILTER-02
    made = bench()
    client = made.client()
    client.produce()
    client.subscribe(1, "shared", kind=SHARED, flow=10)
    client.subscribe(2, "exclusive", flow=10)
    client.frames()
    due = made.now // MILLISECOND + 500
    client.send(0, b"later", deliver_at_time=due)
    client.send(1, b"now")
    homes = [(frame.command.message.consumer_id, frame.payload) for frame in client.messages()]
    assert homes == [(2, b"later"), (1, b"now"), (2, b"now")]
    made.wait(499 * MILLISECOND)
    assert client.messages() == []
    made.wait(MILLISECOND)
    assert [(frame.command.message.consumer_id, frame.payload) for frame in client.messages()] == [(1, b"later")]


# --- key shared ------------------------------------------------------------------------------------------------------


def test_a_key_waits_for_its_former_owner():
    made = bench()
    client = made.client()
    client.produce()
    meta = KeySharedMeta(keySharedMode=0)
    client.subscribe(1, kind=KEY_SHARED, flow=1000, keySharedMeta=meta)
    keys = [f"k{n}" for n in range(40)]
    for number, key in enumerate(keys):
        client.send(number, partition_key=key)
    first = {frame.metadata.partition_key: frame for frame in client.messages()}
    assert set(first) == set(keys)
    client.subscribe(2, kind=KEY_SHARED, flow=1000, keySharedMeta=meta)
    client.frames()
    for number, key in enumerate(keys):
        client.send(100 + number, partition_key=key)
    at_once = {frame.metadata.partition_key: frame.command.message.consumer_id for frame in client.messages()}
    assert set(at_once.values()) == {1}
    assert 0 < len(at_once) < 40
    moved = sorted(set(keys) - set(at_once))
    for key in moved:
        client.ack(at(first[key]))
        got = [(f.metadata.partition_key, f.command.message.consumer_id) for f in client.messages()]
        assert got == [(key, 2)]


def test_sticky_ranges_can_be_refused():
    client = bench().client()
    meta = KeySharedMeta(keySharedMode=1, hashRanges=[IntRange(start=0, end=10)])
    client.subscribe(1, kind=KEY_SHARED, keySharedMeta=meta)
    assert client.heard() == ["SUCCESS"]
    client.subscribe(2, kind=KEY_SHARED, keySharedMeta=meta)
    assert error_of(client.only("ERROR")) == "ConsumerAssignError"
    client.subscribe(3, kind=KEY_SHARED, keySharedMeta=KeySharedMeta(keySharedMode=0))
    assert error_of(client.only("ERROR")) == "ConsumerBusy"


# --- acknowledgement -------------------------------------------------------------------------------------------------


def view(made):
    seen = made.machine.cursor(TOPIC, "s")
    mark = seen.mark_delete
    return (mark and (mark.ledger, mark.entry), list(seen.individually_deleted), seen.backlog)


def test_prefix_rule_over_ledgers():  # MARKDEL-01, MARKDEL-02
    made, client = filled(7, max_entries_per_ledger=3)
    client.subscribe(flow=100)
    got = client.messages()
    assert view(made) == (None, [], 7)
    for place in (1, 2, 3, 4, 6):
        client.ack(at(got[place]))
    assert view(made) == (None, [(1, 1, 2), (2, 0, 1), (3, 0, 0)], 2)
    client.ack(at(got[0]))
    assert view(made) == ((2, 1), [(3, 0, 0)], 1)


def test_ack_response_when_asked_for():  # ACK-IND-04
    _, client = filled(1)
    client.subscribe(flow=1)
    (got,) = client.messages()
    client.ack(at(got))
    assert client.heard() == []
    client.ack(at(got), request_id=9)
    body = client.only("ACK_RESPONSE")
    assert (body.request_id, body.HasField("error")) == (9, False)
    client.ack(at(got), request_id=10, consumer_id=55)
    assert client.heard() == []


def test_ids_beyond_the_end_are_not_recorded():  # ACK-IND-06, ACK-CUM-01
    made, client = filled(3)
    client.subscribe(flow=10)
    for cumulative in (False, True):
        client.ack(MessageIdData(ledgerId=1, entryId=3), cumulative=cumulative)
        client.ack(MessageIdData(ledgerId=99, entryId=0), cumulative=cumulative)
        assert view(made) == (None, [], 3)
    client.ack(MessageIdData(ledgerId=1, entryId=1), cumulative=True)
    assert view(made) == ((1, 1), [], 1)


def test_cumulative_in_front_of_a_ledger():  # ACK-CUM-06: entry -1
    made, client = filled(5, max_entries_per_ledger=3)
    client.subscribe(flow=10)
    client.ack(MessageIdData(ledgerId=2, entryId=2**64 - 1), cumulative=True)
    assert view(made) == ((1, 2), [], 2)


def test_cumulative_is_ignored_on_shared_and_with_two_ids():  # ACK-CUM-04
    made, client = filled(3)
    client.subscribe(kind=SHARED, flow=10)
    got = client.messages()
    client.ack(at(got[1]), cumulative=True, request_id=1)
    assert client.heard() == ["ACK_RESPONSE"]
    assert view(made) == (None, [], 3)


@pytest.mark.parametrize("kind", [0, SHARED])
def test_batch_index_acks_intersect(kind):  # ACK-BATCH-01, C7
    made = bench()
    client = made.client()
    client.produce()
    client.send_batch(0, 6)
    client.subscribe(kind=kind, flow=6)
    (got,) = client.messages()
    assert list(got.command.message.ack_set) == []
    client.ack(at(got, ack_set=[0b110110], batch_size=6))
    client.ack(at(got, ack_set=[0b011111], batch_size=6))
    client.redeliver(at(got))
    client.flow(1)
    (again,) = client.messages()
    assert list(again.command.message.ack_set) == [0b010110]
    client.ack(at(got, ack_set=[0b101001], batch_size=6))
    assert view(made) == ((1, 0), [], 0)


def test_cumulative_inside_a_batch():  # ACK-CUM-06
    for enabled in (True, False):
        made = bench(batch_index_ack=enabled)
        client = made.client()
        client.produce()
        client.send(0)
        client.send_batch(1, 4)
        client.subscribe(flow=5)
        got = client.messages()
        client.ack(at(got[1], ack_set=[0b0111]))
        client.ack(at(got[1], ack_set=[0b1100]), cumulative=True)
        assert view(made) == ((1, 0), [], 1)
        client.redeliver()
        client.flow(5)
        (again,) = client.messages()
        assert list(again.command.message.ack_set) == ([0b0100] if enabled else [])


def test_crash_rewinds_to_the_saved_cursor_and_a_restart_does_not():  # MARKDEL-04, ACK-IND-05
    for graceful in (False, True):
        made, client = filled(10)
        client.subscribe(flow=100)
        got = client.messages()
        made.wait(SECOND)
        client.ack(at(got[0]))
        saved = view(made)
        assert saved[0] == (1, 0)
        made.wait(SECOND // 2)
        client.ack(at(got[4]), cumulative=True)
        assert view(made)[0] == (1, 4)
        if not graceful:
            made.take(made.machine.crash(made.now))
        made.take(made.machine.restart(made.now))
        assert client.closed
        assert view(made)[0] == ((1, 4) if graceful else (1, 0))


def test_dirty_cursor_is_flushed_in_time():  # MARKDEL-04
    made, client = filled(10)
    client.subscribe(flow=100)
    got = client.messages()
    made.wait(SECOND)
    client.ack(at(got[0]))
    client.ack(at(got[1]))
    made.wait(60 * SECOND)
    made.take(made.machine.crash(made.now))
    assert view(made)[0] == (1, 1)


# --- positions -------------------------------------------------------------------------------------------------------


def test_last_message_id():
    made = bench()
    client = made.client()
    client.produce()
    client.subscribe(flow=10)
    client.frames()
    client.ask(BaseCommand.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=1)
    assert client.only("GET_LAST_MESSAGE_ID_RESPONSE").last_message_id.entryId == 2**64 - 1
    client.send_batch(0, 3)
    client.frames()
    client.ask(BaseCommand.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=1)
    last = client.only("GET_LAST_MESSAGE_ID_RESPONSE").last_message_id
    assert (last.ledgerId, last.entryId, last.batch_index) == (1, 0, 2)
    client.ask(BaseCommand.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=8)
    assert client.heard() == ["ERROR"]


@pytest.mark.parametrize("durable", [True, False])
def test_seek_closes_consumers_and_moves(durable):  # SEEK-03
    _, client = filled(6)
    fields = {"durable": durable}
    client.subscribe(flow=100, **fields)
    got = client.messages()
    client.ack(at(got[5]), cumulative=True)
    client.ask(BaseCommand.SEEK, "seek", consumer_id=1, message_id=at(got[2]))
    assert client.heard() == ["CLOSE_CONSUMER", "SUCCESS"]
    client.subscribe(flow=100, **fields)
    assert client.payloads() == [b"2", b"3", b"4", b"5"]
    latest = MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)
    client.ask(BaseCommand.SEEK, "seek", consumer_id=1, message_id=latest)
    client.subscribe(flow=100, **fields)
    assert client.payloads() == []


def test_seek_into_a_batch():
    made = bench()
    client = made.client()
    client.produce()
    client.send_batch(0, 4)
    client.subscribe(flow=4)
    (got,) = client.messages()
    client.ask(BaseCommand.SEEK, "seek", consumer_id=1, message_id=at(got, ack_set=[0b1100]))
    client.subscribe(flow=4)
    (again,) = client.messages()
    assert list(again.command.message.ack_set) == [0b1100]


def test_reader_starts_after_its_start_id():  # CONS-13
    _, client = filled(5)
    for number, (start, expected) in enumerate(
        [
            (MessageIdData(ledgerId=1, entryId=2), [b"3", b"4"]),
            (MessageIdData(ledgerId=1, entryId=2, batch_index=1), [b"2", b"3", b"4"]),
            (MessageIdData(ledgerId=1, entryId=2**64 - 1), [b"0", b"1", b"2", b"3", b"4"]),
            (MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1), [b"0", b"1", b"2", b"3", b"4"]),
            (MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1), []),
        ]
    ):
        client.subscribe(number, f"r{number}", durable=False, start_message_id=start, flow=100)
        assert client.payloads() == expected


def test_subscription_without_memory_goes_with_its_consumer():
    made, client = filled(1)
    client.subscribe(durable=False)
    client.subscribe(2, "d")
    assert made.machine.subscriptions(TOPIC) == ["s", "d"]
    client.leave()
    assert made.machine.subscriptions(TOPIC) == ["d"]


def test_initial_position():
    _, client = filled(2)
    client.subscribe(1, "new", initialPosition=0, flow=10)
    client.subscribe(2, "old", initialPosition=1, flow=10)
    client.send(2, b"2")
    got = [(frame.command.message.consumer_id, frame.payload) for frame in client.messages()]
    assert got == [(2, b"0"), (2, b"1"), (1, b"2"), (2, b"2")]


def test_unsubscribe():  # UNSUB-01, UNSUB-03
    made, client = filled(1)
    client.subscribe(1, kind=SHARED)
    client.subscribe(2, kind=SHARED)
    client.frames()
    client.ask(BaseCommand.UNSUBSCRIBE, "unsubscribe", consumer_id=1)
    assert error_of(client.only("ERROR")) == "MetadataError"
    client.ask(BaseCommand.UNSUBSCRIBE, "unsubscribe", consumer_id=1, force=True)
    assert client.heard() == ["CLOSE_CONSUMER", "SUCCESS"]
    assert made.machine.cursor(TOPIC, "s") is None


def test_unload_loses_nothing():
    made = bench(storage_latency=MILLISECOND, dedup_enabled=True)
    client = made.client()
    client.produce()
    client.subscribe(flow=10)
    client.send(0)
    client.frames()
    made.take(made.machine.unload(TOPIC, made.now))
    assert client.heard() == ["SEND_RECEIPT", "MESSAGE", "CLOSE_PRODUCER", "CLOSE_CONSUMER"]
    client.produce()
    assert client.only("PRODUCER_SUCCESS").last_sequence_id == 0


# --- whatever a peer may do ------------------------------------------------------------------------------------------


def conversation():
    """Frames of an ordinary session."""
    made = bench()
    client = made.client()
    said = []
    client.write = said.append
    client.say(BaseCommand.CONNECT, "connect", client_version="raw", protocol_version=21)
    client.produce()
    client.subscribe(flow=3)
    client.subscribe(2, "k", kind=KEY_SHARED, keySharedMeta=KeySharedMeta(keySharedMode=0))
    client.send(0, b"a", partition_key="k")
    client.send_batch(1, 3)
    one = MessageIdData(ledgerId=1, entryId=1)
    client.ack(one, request_id=4)
    client.redeliver(one)
    client.ask(BaseCommand.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=1)
    client.ask(BaseCommand.SEEK, "seek", consumer_id=1, message_id=one)
    client.ask(BaseCommand.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", namespace="public/default")
    client.ask(BaseCommand.LOOKUP, "lookupTopic", topic=TOPIC)
    client.ask(BaseCommand.UNSUBSCRIBE, "unsubscribe", consumer_id=2)
    client.ask(BaseCommand.CLOSE_PRODUCER, "close_producer", producer_id=1)
    return said


CONVERSATION = conversation()
edits = st.lists(st.tuples(st.integers(0, len(CONVERSATION) - 1), st.integers(4, 400), st.integers(0, 255)), max_size=4)


@settings(max_examples=300, deadline=None)
@given(edits, st.lists(st.integers(0, len(CONVERSATION) - 1), max_size=6), st.integers(0, 12))
def test_no_bytes_break_the_machine(changes, again, start):
    made = bench()
    healthy = made.client()
    client = made.client(connect=False)
    frames = [bytearray(frame) for frame in CONVERSATION]
    for number, place, value in changes:
        if place < len(frames[number]):
            frames[number][place] = value
    order = [0, *(1 + (start + n) % (len(frames) - 1) for n in range(len(frames) - 1)), *again]
    for number in order:
        if not client.closed:
            client.write(bytes(frames[number]))
    made.wait(SECOND)
    if not client.closed:
        client.leave()
    healthy.frames()
    healthy.produce(9, "healthy", "persistent://public/default/healthy")
    assert healthy.heard() == ["PRODUCER_SUCCESS"]
    healthy.send(0, producer_id=9)
    assert healthy.heard() == ["SEND_RECEIPT"]


def test_same_input_same_output():
    def run():
        made = bench(dedup_enabled=True, storage_latency=3)
        said = []
        made.take = said.append
        for conn in range(3):
            said.append(made.machine.connected(conn, made.now))
            for frame in CONVERSATION:
                made.now += 1
                said.append(made.machine.received(conn, frame, made.now))
        return said

    assert run() == run()
