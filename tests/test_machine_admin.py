"""The admin service of the reference broker: what it tells is what its peers can count, what it is told happens."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from harness.reference.broker.config import BrokerConfig
from harness.reference.broker.machine import BrokerMachine
from harness.systems.admin import AdminMissing, AdminRefused, AdminUnreachable
from harness.systems.machine_admin import MachineAdmin, machine_internal, machine_stats
from harness.wire.message_id import Position
from harness.wire.pulsar_pb2 import BaseCommand, CommandSubscribe, MessageIdData
from tests.raw_client import TOPIC, Bench

NAMESPACE = "public/default"


def bench_of(**settings: Any) -> tuple[Bench, MachineAdmin]:
    bench = Bench(BrokerMachine(BrokerConfig(**settings)))
    return bench, MachineAdmin(bench.machine, lambda: bench.now, bench.take)


def run(call: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(call)


def at(position: tuple[int, int]) -> MessageIdData:
    return Position(*position).write()


def test_accounts_of_a_shared_subscription():
    bench, _ = bench_of()
    client = bench.client()
    client.produce()
    client.subscribe(kind=CommandSubscribe.Shared, flow=10, consumer_name="c")
    for number in range(3):
        client.send(number)
    client.send_batch(3, 4)
    positions = [entry[1:] for entry in client.receipts()]
    client.ack(at(positions[1]))
    (subscription,) = machine_stats(bench.machine, TOPIC).subscriptions.values()
    (consumer,) = subscription.consumers
    assert subscription.type == "shared"
    assert (subscription.backlog, subscription.unacked) == (3, 6)
    assert (consumer.name, consumer.permits, consumer.unacked, consumer.blocked) == ("c", 3, 6, False)


def test_a_blocked_consumer_says_so():
    bench, _ = bench_of(max_unacked_per_consumer=2)
    client = bench.client()
    client.produce()
    client.subscribe(kind=CommandSubscribe.Shared, flow=10)
    for number in range(4):
        client.send(number)
    (consumer,) = machine_stats(bench.machine, TOPIC).subscriptions["s"].consumers
    assert (consumer.permits, consumer.unacked, consumer.blocked) == (8, 2, True)


def test_an_exclusive_consumer_owes_nothing():
    bench, _ = bench_of()
    client = bench.client()
    client.produce()
    client.subscribe(flow=10)
    client.send(0)
    subscription = machine_stats(bench.machine, TOPIC).subscriptions["s"]
    assert (subscription.type, subscription.backlog, subscription.unacked) == ("exclusive", 1, 0)
    assert subscription.consumers[0].permits == 9


def test_ledgers_and_cursors():
    bench, _ = bench_of(max_entries_per_ledger=2)
    client = bench.client()
    client.produce()
    client.subscribe(flow=10)
    for number in range(5):
        client.send(number)
    stored = [entry[1:] for entry in client.receipts()]
    internal = machine_internal(bench.machine, TOPIC)
    assert [(one.ledger, one.entries) for one in internal.ledgers] == [
        (stored[0][0], 2), (stored[2][0], 2), (stored[4][0], 1)
    ]  # fmt: skip
    assert internal.entries == 5
    assert internal.last_confirmed == Position(*stored[4])
    assert internal.cursors["s"].mark_delete is None
    client.ack(at(stored[0]), at(stored[2]), at(stored[3]))
    cursor = machine_internal(bench.machine, TOPIC).cursors["s"]
    assert cursor.mark_delete == Position(*stored[0])
    assert cursor.individually_deleted == ((stored[2][0], 0, 1),)
    assert cursor.backlog == 2


def test_an_empty_topic_has_no_position():
    bench, _ = bench_of()
    bench.client().produce()
    internal = machine_internal(bench.machine, TOPIC)
    assert (internal.last_confirmed, internal.entries, internal.ledgers) == (None, 0, ())


def test_what_is_not_there_and_nobody_at_home():
    bench, admin = bench_of()
    with pytest.raises(AdminMissing):
        run(admin.topic_stats(TOPIC))
    with pytest.raises(AdminMissing):
        run(admin.unload_topic(TOPIC))
    bench.take(bench.machine.crash(bench.now))
    for call in (admin.topic_stats(TOPIC), admin.create_namespace(NAMESPACE), admin.unload_namespace(NAMESPACE)):
        with pytest.raises(AdminUnreachable):
            run(call)


def test_deduplication_of_a_namespace():
    bench, admin = bench_of()
    client = bench.client()
    client.produce()
    client.produce(producer_id=2, topic="persistent://public/other/t")
    run(admin.set_deduplication(NAMESPACE, True))
    assert run(admin.topic_stats(TOPIC)).deduplication is True
    assert run(admin.topic_stats("persistent://public/other/t")).deduplication is False


def test_unload_tells_everybody_to_come_again():
    bench, admin = bench_of()
    client = bench.client()
    client.produce()
    client.subscribe()
    client.frames()
    run(admin.unload_namespace(NAMESPACE))
    assert sorted(client.heard()) == ["CLOSE_CONSUMER", "CLOSE_PRODUCER"]


def test_nothing_is_stored_in_a_terminated_topic():
    bench, admin = bench_of()
    client = bench.client()
    client.produce()
    client.send(0)
    (receipt,) = client.receipts()
    assert run(admin.terminate_topic(TOPIC)) == Position(*receipt[1:])
    assert client.heard() == ["CLOSE_PRODUCER"]
    client.produce(producer_id=2)
    assert client.only("ERROR").error == 15
    assert run(admin.internal_stats(TOPIC)).state == "Terminated"
    bench.take(bench.machine.restart(bench.now))
    again = bench.client()
    again.produce()
    assert again.only("ERROR").error == 15


def test_a_terminated_topic_refuses_what_was_on_its_way():
    bench, admin = bench_of(storage_latency=1_000)
    client = bench.client()
    client.produce()
    client.send(0)
    client.frames()
    assert run(admin.terminate_topic(TOPIC)) is not None
    assert client.heard() == ["SEND_RECEIPT", "CLOSE_PRODUCER"]


def test_deleting_a_subscription():
    bench, admin = bench_of()
    client = bench.client()
    client.subscribe()
    client.frames()
    with pytest.raises(AdminRefused, match="connected"):
        run(admin.delete_subscription(TOPIC, "s"))
    run(admin.delete_subscription(TOPIC, "s", force=True))
    assert client.heard() == ["CLOSE_CONSUMER"]
    assert bench.machine.subscriptions(TOPIC) == []
    run(admin.delete_subscription(TOPIC, "s"))


def test_removing_a_namespace():
    bench, admin = bench_of()
    client = bench.client()
    client.produce()
    client.produce(producer_id=2, topic="persistent://public/other/t")
    client.frames()
    run(admin.remove_namespace(NAMESPACE))
    assert bench.machine.topics() == ["persistent://public/other/t"]
    assert client.heard() == ["CLOSE_PRODUCER"]


def test_partitions_only_grow():
    bench, admin = bench_of()
    with pytest.raises(AdminRefused):
        run(admin.grow_partitions(TOPIC, 2))
    run(admin.create_partitions(TOPIC, 2))
    run(admin.create_partitions(TOPIC, 2))
    run(admin.grow_partitions(TOPIC, 3))
    for number in (2, 1):
        with pytest.raises(AdminRefused):
            run(admin.grow_partitions(TOPIC, number))
    client = bench.client()
    client.ask(BaseCommand.PARTITIONED_METADATA, "partitionMetadata", topic=TOPIC)
    assert client.only("PARTITIONED_METADATA_RESPONSE").partitions == 3


def test_a_topic_that_is_there_gets_no_partitions():
    bench, admin = bench_of()
    bench.client().produce()
    with pytest.raises(AdminRefused):
        run(admin.create_partitions(TOPIC, 2))


def test_what_the_reference_broker_does_not_do_is_refused():
    _, admin = bench_of()
    with pytest.raises(AdminRefused, match="quota"):
        run(admin.set_backlog_quota(NAMESPACE, "producer_exception", size=1))
