"""Whatever a history holds, judging it answers: random events, and real histories cut, shuffled and bent."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.history.event import Event
from harness.invariants.engine import judge_history
from harness.invariants.registry import all_invariants
from harness.invariants.routes import may_broadcast, may_have_key
from harness.invariants.shape import MOST, shaped
from harness.worlds.simulated import SimulatedWorld
from properties.explore import directed_plans, run_plan

API = (
    "producer", "send", "flush", "consumer", "receive", "ack", "ack_cumulative", "nack", "seek", "unsubscribe", "close",
)  # fmt: skip
FRAMES = (
    "CONNECT", "CONNECTED", "SUBSCRIBE", "PRODUCER", "SEND", "SEND_RECEIPT", "SEND_ERROR", "MESSAGE", "ACK", "FLOW",
    "UNSUBSCRIBE", "SUCCESS", "ERROR", "CLOSE_PRODUCER", "CLOSE_CONSUMER", "PRODUCER_SUCCESS", "PING", "PONG",
    "REDELIVER_UNACKNOWLEDGED_MESSAGES", "LOOKUP", "LOOKUP_RESPONSE", "PARTITIONED_METADATA", "SEEK", "ACK_RESPONSE",
    "PARTITIONED_METADATA_RESPONSE", "ACTIVE_CONSUMER_CHANGE", "CONNECTION_OPEN", "CONNECTION_CLOSED", "WIRE_ERROR",
    "REACHED_END_OF_TOPIC",
)  # fmt: skip
FAULTS = (
    "toxic", "untoxic", "cut", "refuse", "restore", "dedup", "healed", "quiescent", "broker_kill", "broker_stop",
    "broker_pause", "broker_resume", "broker_ready", "unload", "unload_namespace", "terminate", "delete_subscription",
    "grow_partitions", "backlog_quota", "ledger_rollover", "max_message_size", "not_injected",
)  # fmt: skip
KINDS: dict[str, tuple[str, ...]] = {
    "api": API, "tap.client": FRAMES, "tap.broker": FRAMES, "fault": FAULTS, "admin": ("CURSOR",),
    "log": ("ENTRY", "LOG_END"),
}  # fmt: skip
TOPICS = ("persistent://public/default/t", "persistent://public/default/t-s-DLQ", "non-persistent://p/d/t", "", "t")
DIGESTS = ("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "")

numbers = st.sampled_from([0, 0, 1, 1, 2, 3, 5, -1, -2, MOST + 1, 2**31, 2**63 - 1, -(2**63)])
texts = st.sampled_from(["", "s", "p", "c", *DIGESTS])
json = st.recursive(
    st.none() | st.booleans() | numbers | texts | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "ledger", "entry", "batch_index", "ack_set", "first_chunk", "digest", "sequence_id", "properties", "topic",
        "max_redeliver", "max_messages", "key", "REAL_TOPIC", "ORIGIN_MESSAGE_ID",
    ]), inner, max_size=4),
    max_leaves=6,
)  # fmt: skip
EXTRA: dict[str, Any] = {
    "ids": st.lists(st.fixed_dictionaries({}, optional={
        "ledger": numbers, "entry": numbers, "batch_index": numbers, "ack_set": st.lists(numbers, max_size=2),
        "first_chunk": st.lists(numbers, max_size=3), "batch_size": numbers,
    }), max_size=3),
    "messages": st.lists(st.fixed_dictionaries({}, optional={
        "digest": st.sampled_from(DIGESTS) | st.none(), "size": numbers, "sequence_id": numbers | st.none(),
        "key": texts | st.none(),
    }), max_size=4),
    "metadata": st.fixed_dictionaries({}, optional={
        "sequence_id": numbers, "producer_name": texts, "uncompressed_size": numbers, "total_chunk_msg_size": numbers,
        "partition_key": texts, "properties": st.dictionaries(texts, texts, max_size=2), "publish_time": numbers,
        "compression": texts, "num_messages_in_batch": numbers, "deliver_at_time": numbers,
    }),
    "options": st.fixed_dictionaries({}, optional={
        "dead_letter": st.fixed_dictionaries({}, optional={"max_redeliver": numbers, "topic": texts}) | st.none(),
        "batching": st.fixed_dictionaries({}, optional={"max_messages": numbers, "max_bytes": numbers}) | st.none(),
        "nack_delay_ms": numbers, "ack_timeout_ms": numbers, "queue": numbers, "expire_chunks_ms": numbers,
        "max_pending_chunked": numbers, "initial_sequence_id": numbers, "ack_group_ms": numbers,
    }),
    "type": st.sampled_from(["exclusive", "shared", "failover", "key_shared"]),
    "producer_id": numbers, "consumer_id": numbers, "last_sequence_id": numbers, "max_message_size": numbers,
    "protocol_version": numbers, "stored_size": numbers, "backlog": numbers, "asked_ns": numbers,
    "fault": st.sampled_from(FAULTS),
    "first_chunk": st.lists(numbers, max_size=3), "properties": st.dictionaries(texts, texts, max_size=2),
    "checksum_ok": st.booleans() | st.none(), "complete": st.just(True), "drained": st.just(True),
    "duplicate": st.booleans(), "enabled": st.booleans(), "durable": st.booleans(), "ready": st.booleans(),
    "is_chunk": st.booleans(), "frame_digest": st.sampled_from(DIGESTS), "by": st.sampled_from(["client", "broker"]),
    "direction": st.sampled_from(["to_broker", "to_client"]), "request": st.sampled_from(FRAMES), "key": texts,
    "payload_error": texts, "individually_deleted": st.lists(st.lists(numbers, max_size=3), max_size=2),
}  # fmt: skip
extras = st.fixed_dictionaries({}, optional=EXTRA)
odd_extras = st.dictionaries(st.sampled_from([*EXTRA, "unheard_of"]), json, max_size=4)
COLUMNS: dict[str, Any] = {
    "op": st.integers(0, 4), "actor": texts, "connection": st.sampled_from(["client-1", "broker-1", "broker-2"]),
    "topic": st.sampled_from(TOPICS), "partition": numbers, "subscription": texts, "producer": texts,
    "consumer": texts, "sequence_id": numbers, "highest_sequence_id": numbers, "num_messages": numbers,
    "ledger_id": numbers, "entry_id": numbers, "batch_index": numbers, "ack_set": st.lists(numbers, max_size=3),
    "ack_type": st.sampled_from(["individual", "cumulative"]), "redelivery_count": numbers,
    "chunk_uuid": st.sampled_from(["p-0", "p-1"]), "chunk_id": numbers, "num_chunks": numbers,
    "payload_digest": st.sampled_from(DIGESTS), "payload_size": numbers, "permits": numbers, "request_id": numbers,
    "error": st.sampled_from([
        "PersistenceError", "ChecksumError", "ConsumerBusy", "TopicTerminatedError", "unfinished", "timeout",
    ]),
}  # fmt: skip
REAL = (
    "dedup-chunks-again", "dead_letter-batch", "acks-batch-cumulative", "chunks-torn", "receipts-many-cuts",
    "dedup-kill-survives", "acks-kill-after-second-write", "acks-kill-redelivery-count", "receipts-topic-terminated",
)  # fmt: skip


@st.composite
def drawn_event(draw: st.DrawFn) -> Event:
    layer = draw(st.sampled_from(sorted(KINDS)))
    phase = draw(st.sampled_from(["invoke", "ok", "ok", "fail", "unknown"])) if layer == "api" else "event"
    columns = draw(st.fixed_dictionaries({}, optional=COLUMNS))
    return Event(
        layer=layer, kind=draw(st.sampled_from(KINDS[layer])), phase=phase, extra=draw(extras | odd_extras), **columns
    )


def numbered(events: list[Event]) -> list[Event]:
    return [
        msgspec.structs.replace(event, index=place, time_ns=place * 700_000_000) for place, event in enumerate(events)
    ]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(drawn_event(), min_size=5, max_size=40))
def test_random_events_are_judged(events: list[Event]) -> None:
    judge_history(numbered(events), all_invariants())


@cache
def real_history(name: str) -> tuple[Event, ...]:
    family = name.split("-", 1)[0]
    plan = dict(directed_plans(family))[name]
    outcome = run_plan(SimulatedWorld(), plan)
    assert outcome.error is None
    return tuple(outcome.history)


def bend(draw: st.DrawFn, event: Event) -> Event:
    """One column gone or changed, or one value of extra gone or of another type."""
    columns = [name for name in COLUMNS if getattr(event, name) is not None]
    if event.extra and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(event.extra)))
        rest = {key: value for key, value in event.extra.items() if key != name}
        return msgspec.structs.replace(event, extra=rest if draw(st.booleans()) else rest | {name: draw(json)})
    if not columns:
        return event
    name = draw(st.sampled_from(columns))
    return msgspec.structs.replace(event, **{name: None if draw(st.booleans()) else draw(COLUMNS[name])})


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_bent_histories_are_judged(name: str, data: st.DataObject) -> None:
    events = list(real_history(name))
    first = data.draw(st.integers(0, len(events) // 2))
    events = events[first : data.draw(st.integers(first, len(events)))]
    if events:
        for place in data.draw(st.lists(st.integers(0, len(events) - 1), max_size=12)):
            events[place] = bend(data.draw, events[place])
        for here, there in data.draw(st.lists(st.tuples(*[st.integers(0, len(events) - 1)] * 2), max_size=6)):
            events[here], events[there] = events[there], events[here]
        for gone in sorted(data.draw(st.sets(st.integers(0, len(events) - 1), max_size=6)), reverse=True):
            del events[gone]
    judge_history(numbered(events), all_invariants())


def test_a_value_of_another_type_is_read_as_missing() -> None:
    event = Event(
        layer="tap.broker", kind="ACK", num_messages=2**31, batch_index=-1,
        extra={"ids": [{"ledger": "1"}], "consumer_id": 3, "unheard_of": {}},
    )  # fmt: skip
    sound = shaped(event)
    assert sound.extra == {"consumer_id": 3, "unheard_of": {}}
    assert (sound.num_messages, sound.batch_index) == (None, None)
    assert "ids" in event.extra


def test_a_sound_event_is_left_alone() -> None:
    event = Event(layer="tap.broker", kind="ACK", extra={"ids": [{"ledger": 1, "entry": 2}], "consumer_id": 3})
    assert shaped(event) is event


@settings(max_examples=200, deadline=None)
@given(drawn_event())
def test_no_fold_is_left_out_that_reads_the_event(event: Event) -> None:
    for invariant in all_invariants():
        if invariant.key(event) is not None:
            assert may_have_key(invariant, event.layer, event.kind), invariant.name
        if invariant.broadcast(event):
            assert may_broadcast(invariant, event.layer, event.kind), invariant.name
