"""What the unmodified Python client does against the reference broker. One scenario a process: ``python FILE NAME``.

A process of its own, left by ``os._exit``, because the client's native threads sometimes abort the interpreter at its
end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pulsar

from harness.reference.broker.config import MILLISECOND, BrokerConfig
from harness.systems.reference_server import ReferenceServer

EARLIEST = pulsar.InitialPosition.Earliest
PATIENCE_MS = 10_000
TOPIC = "persistent://public/default/t"


class Bench:
    """A reference broker in a thread, and one client of it."""

    def __init__(self, **config: Any) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.server = ReferenceServer(BrokerConfig(**config))
        self.host, self.port = self.call(self.server.start)
        self.client = self.new_client()

    def call(self, make: Callable[[], Any]) -> Any:
        """Runs ``make`` in the broker's loop and waits for the coroutine it returns."""

        async def run() -> Any:
            result = make()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_MS / 1000)

    def new_client(self) -> pulsar.Client:
        return pulsar.Client(f"pulsar://{self.host}:{self.port}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    def cut(self) -> None:
        """Every connection is gone at once, with whatever was under way."""
        self.call(self.server.cut)

    def entries(self, topic: str = TOPIC) -> list[Any]:
        return self.call(lambda: self.server.machine.entries(topic))

    def cursor(self, subscription: str, topic: str = TOPIC) -> Any:
        return self.call(lambda: self.server.machine.cursor(topic, subscription))

    def wait_backlog(self, subscription: str, backlog: int) -> None:
        """Acknowledgements travel on their own; waits until the broker has them all."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while self.cursor(subscription).backlog != backlog:
            assert time.monotonic() < deadline, self.cursor(subscription)
            time.sleep(0.02)


def receive(consumer: Any, count: int) -> list[Any]:
    return [consumer.receive(PATIENCE_MS) for _ in range(count)]


def nothing_more(consumer: Any, wait_ms: int = 300) -> None:
    try:
        message = consumer.receive(wait_ms)
    except pulsar.Timeout:
        return
    raise AssertionError(f"unexpected {message.data()!r}")


def send_all(producer: Any, payloads: list[bytes], **options: Any) -> list[Any]:
    """Results in order of completion, as (result, message id)."""
    done: list[Any] = []
    for payload in payloads:
        producer.send_async(payload, lambda result, at: done.append((result, at)), **options)
    producer.flush()
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while len(done) < len(payloads):
        assert time.monotonic() < deadline, f"{len(done)} of {len(payloads)}"
        time.sleep(0.01)
    return done


def plain() -> None:
    bench = Bench()
    producer = bench.client.create_producer(TOPIC, producer_name="p")
    consumer = bench.client.subscribe(TOPIC, "s", initial_position=EARLIEST)
    ids = [producer.send(b"%d" % n, properties={"n": str(n)}, partition_key=f"k{n % 3}") for n in range(100)]
    got = receive(consumer, 100)
    assert [message.data() for message in got] == [b"%d" % n for n in range(100)]
    assert [str(message.message_id()) for message in got] == [str(at) for at in ids]
    assert got[7].properties() == {"n": "7"}
    assert got[7].partition_key() == "k1"
    for message in got:
        consumer.acknowledge(message)
    bench.wait_backlog("s", 0)
    assert producer.last_sequence_id() == 99


def batches_and_compression() -> None:
    bench = Bench()
    consumer = bench.client.subscribe(TOPIC, "s", initial_position=EARLIEST)
    kinds = [
        pulsar.CompressionType.NONE,
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ]
    sent = []
    for number, kind in enumerate(kinds):
        producer = bench.client.create_producer(
            TOPIC, compression_type=kind, batching_enabled=True, batching_max_messages=10
        )
        payloads = [b"%d-%d" % (number, n) + b"x" * 500 for n in range(35)]
        assert all(result == pulsar.Result.Ok for result, _ in send_all(producer, payloads))
        sent += payloads
        producer.close()
    got = receive(consumer, len(sent))
    assert [message.data() for message in got] == sent
    assert max(message.message_id().batch_index() for message in got) == 9
    assert len(bench.entries()) < len(sent)
    for message in got:
        consumer.acknowledge(message)
    bench.wait_backlog("s", 0)


def chunks() -> None:
    bench = Bench(max_message_size=64 * 1024)
    producer = bench.client.create_producer(TOPIC, chunking_enabled=True)
    payloads = [os.urandom(size) for size in (10, 64 * 1024, 200_000, 300_000)]
    for payload in payloads:
        producer.send(payload)
    for name, kind in (("e", pulsar.ConsumerType.Exclusive), ("s", pulsar.ConsumerType.Shared)):
        consumer = bench.client.subscribe(TOPIC, name, consumer_type=kind, initial_position=EARLIEST)
        got = receive(consumer, len(payloads))
        assert [message.data() for message in got] == payloads
        for message in got:
            consumer.acknowledge(message)
        bench.wait_backlog(name, 0)
    assert len(bench.entries()) > 10


def too_big() -> None:
    bench = Bench(max_message_size=64 * 1024)
    producer = bench.client.create_producer(TOPIC)
    try:
        producer.send(b"x" * 100_000)
    except pulsar.MessageTooBig:
        pass
    else:
        raise AssertionError("a message above the announced maximum was sent")
    producer.send(b"small")
    assert len(bench.entries()) == 1


def dedup() -> None:
    bench = Bench(dedup_enabled=True)
    producer = bench.client.create_producer(TOPIC, producer_name="p")
    for sequence_id in (1, 2, 50, 51):
        producer.send(b"%d" % sequence_id, sequence_id=sequence_id)
    for sequence_id in (2, 30, 51):
        at = producer.send(b"again", sequence_id=sequence_id)
        assert (at.ledger_id(), at.entry_id()) == (-1, -1), at
    producer.close()
    producer = bench.client.create_producer(TOPIC, producer_name="p")
    assert producer.last_sequence_id() == 51
    producer.send(b"next")
    assert [entry.payload for entry in bench.entries()] == [b"1", b"2", b"50", b"51", b"next"]


def dedup_over_cuts() -> None:
    """Storage is slow, connections die again and again: every message is stored once and confirmed once."""
    bench = Bench(dedup_enabled=True, storage_latency=30 * MILLISECOND)
    producer = bench.client.create_producer(TOPIC, producer_name="p", max_pending_messages=1000)
    done: list[Any] = []
    for n in range(300):
        producer.send_async(b"%d" % n, lambda result, at: done.append(result))
        if n % 100 == 50:
            time.sleep(0.015)
            bench.cut()
        time.sleep(0.001)
    producer.flush()
    assert done == [pulsar.Result.Ok] * 300, done
    assert [entry.payload for entry in bench.entries()] == [b"%d" % n for n in range(300)]


def resend_without_dedup() -> None:
    bench = Bench(storage_latency=30 * MILLISECOND)
    producer = bench.client.create_producer(TOPIC, producer_name="p")
    done: list[Any] = []
    for n in range(50):
        producer.send_async(b"%d" % n, lambda result, at: done.append(result))
    time.sleep(0.015)
    bench.cut()
    producer.flush()
    assert done == [pulsar.Result.Ok] * 50
    stored = [int(entry.payload) for entry in bench.entries()]
    assert set(stored) == set(range(50))
    assert len(stored) > 50


def consume_over_cut() -> None:
    bench = Bench()
    producer = bench.client.create_producer(TOPIC)
    consumer = bench.client.subscribe(TOPIC, "s", initial_position=EARLIEST)
    for n in range(20):
        producer.send(b"%d" % n)
    for message in receive(consumer, 10):
        consumer.acknowledge(message)
    bench.wait_backlog("s", 10)
    bench.cut()
    # Acks of what was still in the client's queue may die with the old connection; then those messages come again.
    seen = set()
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while bench.cursor("s").backlog:
        assert time.monotonic() < deadline
        with contextlib.suppress(pulsar.Timeout):
            message = consumer.receive(200)
            seen.add(int(message.data()))
            consumer.acknowledge(message)
    assert seen == set(range(10, 20))


def shared() -> None:
    bench = Bench()
    kind = pulsar.ConsumerType.Shared
    consumers = [bench.client.subscribe(TOPIC, "s", consumer_type=kind, consumer_name=name) for name in "ab"]
    producer = bench.client.create_producer(TOPIC)
    for n in range(40):
        producer.send(b"%d" % n)
    shares = [receive(consumer, 20) for consumer in consumers]
    assert {int(message.data()) for share in shares for message in share} == set(range(40))
    consumers[0].close()
    again = receive(consumers[1], 20)
    assert {message.data() for message in again} == {message.data() for message in shares[0]}
    assert {message.redelivery_count() for message in again} == {0}
    for message in shares[1] + again:
        consumers[1].acknowledge(message)
    bench.wait_backlog("s", 0)


def failover() -> None:
    bench = Bench(failover_delay=50 * MILLISECOND)
    kind = pulsar.ConsumerType.Failover
    first, second = [
        client.subscribe(TOPIC, "s", consumer_type=kind, consumer_name=name)
        for name, client in (("a", bench.client), ("b", bench.new_client()))
    ]
    producer = bench.client.create_producer(TOPIC)
    for n in range(10):
        producer.send(b"%d" % n)
    got = receive(first, 10)
    nothing_more(second)
    first.acknowledge_cumulative(got[4])
    bench.wait_backlog("s", 5)
    first.close()
    assert [message.data() for message in receive(second, 5)] == [b"5", b"6", b"7", b"8", b"9"]


def exclusive() -> None:
    bench = Bench()
    consumer = bench.client.subscribe(TOPIC, "s")
    try:
        bench.new_client().subscribe(TOPIC, "s")
    except pulsar.ConsumerBusy:
        pass
    else:
        raise AssertionError("two exclusive consumers")
    consumer.close()
    bench.client.subscribe(TOPIC, "s")


def producer_busy() -> None:
    bench = Bench()
    producer = bench.client.create_producer(TOPIC, producer_name="p")
    try:
        bench.new_client().create_producer(TOPIC, producer_name="p")
    except pulsar.ProducerBusy:
        pass
    else:
        raise AssertionError("two producers of one name")
    producer.send(b"still there")


def key_shared() -> None:
    bench = Bench()
    kind = pulsar.ConsumerType.KeyShared
    consumers = [bench.client.subscribe(TOPIC, "s", consumer_type=kind, consumer_name=name) for name in "abc"]
    producer = bench.client.create_producer(TOPIC)
    for n in range(300):
        producer.send(b"%d" % n, partition_key=f"key-{n % 30}")
    owners: dict[str, set[int]] = {}
    order: dict[str, list[int]] = {}
    for number, consumer in enumerate(consumers):
        with contextlib.suppress(pulsar.Timeout):
            while True:
                message = consumer.receive(500)
                owners.setdefault(message.partition_key(), set()).add(number)
                order.setdefault(message.partition_key(), []).append(int(message.data()))
                consumer.acknowledge(message)
    assert sum(map(len, order.values())) == 300
    assert all(len(numbers) == 1 for numbers in owners.values()), owners
    assert all(values == sorted(values) for values in order.values())
    assert len({next(iter(numbers)) for numbers in owners.values()}) == 3
    bench.wait_backlog("s", 0)


def negative_ack() -> None:
    bench = Bench()
    consumer = bench.client.subscribe(
        TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    producer = bench.client.create_producer(TOPIC)
    producer.send(b"x")
    for count in range(4):
        message = consumer.receive(PATIENCE_MS)
        assert message.redelivery_count() == count, message.redelivery_count()
        consumer.negative_acknowledge(message)


def dead_letters() -> None:
    bench = Bench()
    consumer = bench.client.subscribe(
        TOPIC,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=2, dead_letter_topic="dead"),
    )
    letters = bench.client.subscribe("dead", "s", initial_position=EARLIEST)
    bench.client.create_producer(TOPIC).send(b"x")
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(PATIENCE_MS))
    assert letters.receive(PATIENCE_MS).data() == b"x"
    bench.wait_backlog("s", 0)


def batch_index_acks() -> None:
    bench = Bench()
    kind = pulsar.ConsumerType.Shared
    options = {"initial_position": EARLIEST, "consumer_type": kind, "batch_index_ack_enabled": True}
    consumer = bench.client.subscribe(TOPIC, "s", **options)
    producer = bench.client.create_producer(TOPIC, batching_enabled=True, batching_max_messages=10)
    send_all(producer, [b"%d" % n for n in range(10)])
    for message in receive(consumer, 10):
        if int(message.data()) % 2:
            consumer.acknowledge(message)
    consumer.close()
    consumer = bench.client.subscribe(TOPIC, "s", **options)
    assert [int(message.data()) for message in receive(consumer, 5)] == [0, 2, 4, 6, 8]
    nothing_more(consumer)


def readers() -> None:
    bench = Bench()
    producer = bench.client.create_producer(TOPIC)
    ids = [producer.send(b"%d" % n) for n in range(10)]
    reader = bench.client.create_reader(TOPIC, pulsar.MessageId.earliest)
    got = []
    while reader.has_message_available():
        got.append(int(reader.read_next(PATIENCE_MS).data()))
    assert got == list(range(10))
    # The client itself leaves the target out, unless it is told to include it.
    reader.seek(ids[3])
    assert int(reader.read_next(PATIENCE_MS).data()) == 4
    late = bench.client.create_reader(TOPIC, pulsar.MessageId.latest)
    assert not late.has_message_available()
    middle = bench.client.create_reader(TOPIC, ids[5])
    assert int(middle.read_next(PATIENCE_MS).data()) == 6
    bench.cut()
    assert int(middle.read_next(PATIENCE_MS).data()) == 7
    assert bench.call(lambda: len(bench.server.machine.subscriptions(TOPIC))) <= 3


def seeks() -> None:
    bench = Bench()
    producer = bench.client.create_producer(TOPIC)
    consumer = bench.client.subscribe(TOPIC, "s", initial_position=EARLIEST, start_message_id_inclusive=True)
    ids = []
    for n in range(10):
        ids.append(producer.send(b"%d" % n))
        if n == 4:
            time.sleep(0.05)
            middle = int(time.time() * 1000)
            time.sleep(0.05)
    for message in receive(consumer, 10):
        consumer.acknowledge(message)
    bench.wait_backlog("s", 0)
    consumer.seek(ids[3])
    assert [int(message.data()) for message in receive(consumer, 7)] == [3, 4, 5, 6, 7, 8, 9]
    consumer.seek(middle)
    assert [int(message.data()) for message in receive(consumer, 5)] == [5, 6, 7, 8, 9]
    consumer.seek(pulsar.MessageId.earliest)
    assert int(consumer.receive(PATIENCE_MS).data()) == 0
    consumer.seek(pulsar.MessageId.latest)
    nothing_more(consumer)
    producer.send(b"10")
    assert int(consumer.receive(PATIENCE_MS).data()) == 10


def unsubscribes() -> None:
    bench = Bench()
    producer = bench.client.create_producer(TOPIC)
    consumer = bench.client.subscribe(TOPIC, "s")
    producer.send(b"x")
    consumer.unsubscribe()
    assert bench.cursor("s") is None
    consumer = bench.client.subscribe(TOPIC, "s")
    nothing_more(consumer)


def partitions() -> None:
    topic = "persistent://public/default/parted"
    bench = Bench(partitions={topic: 3})
    assert len(bench.client.get_topic_partitions(topic)) == 3
    producer = bench.client.create_producer(topic)
    consumer = bench.client.subscribe(topic, "s", initial_position=EARLIEST)
    for n in range(30):
        producer.send(b"%d" % n, partition_key=str(n))
    got = receive(consumer, 30)
    assert {int(message.data()) for message in got} == set(range(30))
    for message in got:
        assert 0 <= message.message_id().partition() < 3
        consumer.acknowledge(message)
    stored = [len(bench.entries(f"{topic}-partition-{n}")) for n in range(3)]
    assert sum(stored) == 30
    assert all(stored), stored


def delayed() -> None:
    bench = Bench()
    consumer = bench.client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = bench.client.create_producer(TOPIC)
    begin = time.monotonic()
    producer.send(b"later", deliver_at=int(time.time() * 1000) + 600)
    producer.send(b"now")
    assert consumer.receive(PATIENCE_MS).data() == b"now"
    assert time.monotonic() - begin < 0.5
    assert consumer.receive(PATIENCE_MS).data() == b"later"
    assert time.monotonic() - begin >= 0.59


def broker_crash() -> None:
    """A crash loses no confirmed message; the client finds its way back."""
    bench = Bench(dedup_enabled=True)
    producer = bench.client.create_producer(TOPIC, producer_name="p")
    consumer = bench.client.subscribe(TOPIC, "s", initial_position=EARLIEST)
    for n in range(5):
        producer.send(b"%d" % n)

    def crash() -> None:
        bench.server.perform(bench.server.machine.crash(bench.server.now()))
        bench.server.perform(bench.server.machine.restart(bench.server.now()))

    bench.call(crash)
    for n in range(5, 10):
        producer.send(b"%d" % n)
    seen: set[int] = set()
    while len(seen) < 10:
        message = consumer.receive(PATIENCE_MS)
        seen.add(int(message.data()))
        consumer.acknowledge(message)
    assert [int(entry.payload) for entry in bench.entries()] == list(range(10))
    bench.wait_backlog("s", 0)


def unload() -> None:
    bench = Bench()
    producer = bench.client.create_producer(TOPIC, producer_name="p")
    consumer = bench.client.subscribe(TOPIC, "s")
    producer.send(b"a")
    bench.call(lambda: bench.server.perform(bench.server.machine.unload(TOPIC, bench.server.now())))
    producer.send(b"b")
    # "a" is unacknowledged: when it reached the client before the unload it comes again, by right (CONS-12, CONS-16).
    received = [consumer.receive(PATIENCE_MS).data()]
    while received[-1] != b"b":
        received.append(consumer.receive(PATIENCE_MS).data())
    assert received in ([b"a", b"b"], [b"a", b"a", b"b"])
    ledgers = [entry.ledger for entry in bench.entries()]
    assert ledgers[0] < ledgers[1]


def scenarios() -> Iterator[Callable[[], None]]:
    yield from (
        plain,
        batches_and_compression,
        chunks,
        too_big,
        dedup,
        dedup_over_cuts,
        resend_without_dedup,
        consume_over_cut,
        shared,
        failover,
        exclusive,
        producer_busy,
        key_shared,
        negative_ack,
        dead_letters,
        batch_index_acks,
        readers,
        seeks,
        unsubscribes,
        partitions,
        delayed,
        broker_crash,
        unload,
    )


SCENARIOS = {scenario.__name__: scenario for scenario in scenarios()}


def main() -> None:
    status = 1
    try:
        SCENARIOS[sys.argv[1]]()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
