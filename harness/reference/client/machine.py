"""The reference client as one machine: requests of the adapter contract in, socket work and answers out."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any

from harness.clients.client import CAPABILITIES, CONTRACT_VERSION
from harness.reference.client import requests
from harness.reference.client.address import service_address
from harness.reference.client.config import MILLISECOND, ClientConfig
from harness.reference.client.connection import Connection
from harness.reference.client.consumer import Consumer, ConsumerOptions
from harness.reference.client.delivery import Delivery
from harness.reference.client.failure import Failure
from harness.reference.client.outgoing import Outgoing
from harness.reference.client.parts import ClientParts
from harness.reference.client.producer import BatchingOptions, Producer, ProducerOptions
from harness.reference.client.runtime import Reply, Runtime, Step
from harness.reference.client.session import Session
from harness.reference.client.topic import complete_topic
from harness.reference.outputs import Answer, ClientOutput
from harness.wire.pulsar_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, CompressionType

NAME = "reference"
VERSION = "1"

_COMPRESSIONS: dict[requests.Compression | None, CompressionType] = {
    None: NONE,
    "lz4": LZ4,
    "zlib": ZLIB,
    "zstd": ZSTD,
    "snappy": SNAPPY,
}
_DEFAULT_CONFIG = ClientConfig()
_DEFAULT_PARTS = ClientParts()


class ClientMachine:
    """Speaks ``docs/adapter-contract.md`` as dicts; payloads are base64 text, as in JSON.

    ``now`` is nanoseconds on a clock that never goes back. Messages carry ``now`` in milliseconds as their publish
    time, so a clock that counts from the epoch gives honest ones. Each call returns what is to be done, in order.
    Call ``tick`` when ``next_deadline`` is reached.
    """

    def __init__(self, config: ClientConfig = _DEFAULT_CONFIG, parts: ClientParts = _DEFAULT_PARTS) -> None:
        self._config = config
        self._parts = parts
        self._step = Step()
        self._sessions: dict[str, Session] = {}
        self._producers: dict[str, Producer] = {}
        self._consumers: dict[str, Consumer] = {}

    # ------------------------------------------------------------------ the surroundings

    def request(self, message: dict[str, Any], now: int) -> list[ClientOutput]:
        """One request; its single ``Answer`` may be among these outputs or among later ones."""
        self._step.now = now
        try:
            request = requests.read_request(message)
        except requests.Malformed as error:
            self._step.outputs.append(
                Answer({"id": error.request_id, "error": {"kind": "malformed", "message": str(error)}})
            )
        else:
            self._perform(request, Reply(self._step, request.id))
        return self._take_outputs()

    def connected(self, conn: int, now: int) -> list[ClientOutput]:
        """The ``Dial`` of ``conn`` succeeded."""
        return self._on_connection(conn, now, Connection.established)

    def connect_failed(self, conn: int, now: int) -> list[ClientOutput]:
        """The ``Dial`` of ``conn`` failed."""
        failure = Failure("disconnected", "could not connect")
        return self._on_connection(conn, now, lambda connection: connection.lost(failure))

    def received(self, conn: int, data: bytes, now: int) -> list[ClientOutput]:
        """Bytes arrived."""
        return self._on_connection(conn, now, lambda connection: connection.received(data))

    def disconnected(self, conn: int, now: int) -> list[ClientOutput]:
        """The connection is gone; unknown and closed ones are ignored."""
        return self._on_connection(conn, now, Connection.lost)

    def tick(self, now: int) -> list[ClientOutput]:
        """Run every timer due at ``now``."""
        self._step.now = now
        self._step.timers.fire_due(now)
        return self._take_outputs()

    def next_deadline(self) -> int | None:
        """When ``tick`` is needed next."""
        return self._step.timers.next_deadline()

    def _on_connection(self, conn: int, now: int, action: Callable[[Connection], None]) -> list[ClientOutput]:
        self._step.now = now
        for session in self._sessions.values():
            connection = session.pool.by_id(conn)
            if connection is not None:
                action(connection)
                break
        return self._take_outputs()

    # ------------------------------------------------------------------ operations

    @singledispatchmethod
    def _perform(self, request: requests.Request, reply: Reply) -> None:
        raise TypeError(f"no operation for {request!r}")

    @_perform.register
    def _hello(self, request: requests.Hello, reply: Reply) -> None:
        if request.contract != CONTRACT_VERSION:
            reply.fail(Failure("unsupported", f"contract {request.contract}; this client speaks {CONTRACT_VERSION}"))
            return
        reply.ok({"name": NAME, "version": VERSION, "contract": CONTRACT_VERSION, "capabilities": sorted(CAPABILITIES)})

    @_perform.register
    def _client(self, request: requests.Client, reply: Reply) -> None:
        if request.client in self._sessions:
            reply.fail(_taken("client", request.client))
            return
        try:
            service = service_address(request.url)
        except ValueError as error:
            reply.fail(Failure("invalid", str(error)))
            return
        config = self._config
        if request.operation_timeout_ms is not None:
            config = replace(config, operation_timeout=request.operation_timeout_ms * MILLISECOND)
        self._sessions[request.client] = Session(Runtime(config, self._parts, self._step), service)
        reply.ok({})

    @_perform.register
    def _producer(self, request: requests.Producer, reply: Reply) -> None:
        session = self._open_session(request.client, reply)
        if session is None:
            return
        if request.producer in self._producers:
            reply.fail(_taken("producer", request.producer))
            return
        try:
            options = _producer_options(request)
        except ValueError as error:
            reply.fail(Failure("invalid", str(error)))
            return

        def created(last_sequence_id: int) -> None:
            reply.ok({"last_sequence_id": last_sequence_id})

        def failed(failure: Failure) -> None:
            self._producers.pop(request.producer, None)
            reply.fail(failure)

        self._producers[request.producer] = session.produce(options, created, failed)

    @_perform.register
    def _send(self, request: requests.Send, reply: Reply) -> None:
        producer = self._producers.get(request.producer)
        if producer is None:
            reply.fail(_unknown("producer", request.producer))
            return
        if request.sequence_id is not None and request.sequence_id < 0:
            reply.fail(Failure("invalid", f"sequence id {request.sequence_id}"))
            return
        producer.send(
            Outgoing(
                number=0,
                payload=request.payload,
                on_sent=reply.ok,
                on_failed=reply.fail,
                explicit_sequence_id=request.sequence_id,
                key=request.key,
                properties=dict(request.properties),
                deliver_after=request.deliver_after_ms,
            )
        )

    @_perform.register
    def _flush(self, request: requests.Flush, reply: Reply) -> None:
        producer = self._producers.get(request.producer)
        if producer is None:
            reply.fail(_unknown("producer", request.producer))
        else:
            producer.flush(lambda: reply.ok({}), reply.fail)

    @_perform.register
    def _consumer(self, request: requests.Consumer, reply: Reply) -> None:
        session = self._open_session(request.client, reply)
        if session is None:
            return
        if request.consumer in self._consumers:
            reply.fail(_taken("consumer", request.consumer))
            return
        if request.queue < 1:
            reply.fail(Failure("unsupported", "a consumer without a receiver queue"))
            return
        try:
            options = _consumer_options(request, self._config)
        except ValueError as error:
            reply.fail(Failure("invalid", str(error)))
            return

        def failed(failure: Failure) -> None:
            self._consumers.pop(request.consumer, None)
            reply.fail(failure)

        self._consumers[request.consumer] = session.consume(options, lambda: reply.ok({}), failed)

    @_perform.register
    def _receive(self, request: requests.Receive, reply: Reply) -> None:
        consumer = self._consumers.get(request.consumer)
        if consumer is None:
            reply.fail(_unknown("consumer", request.consumer))
            return
        consumer.receive(
            request.timeout_ms * MILLISECOND,
            lambda ref, delivery: reply.ok({"message": _message(ref, delivery)}),
            lambda: reply.ok({"message": None}),
            reply.fail,
        )

    @_perform.register
    def _ack(self, request: requests.Ack, reply: Reply) -> None:
        found = self._delivery(request.consumer, request.ref, reply)
        if found is not None:
            found[0].acknowledge(found[1], lambda confirmed: reply.ok({"confirmed": confirmed}), reply.fail)

    @_perform.register
    def _ack_cumulative(self, request: requests.AckCumulative, reply: Reply) -> None:
        found = self._delivery(request.consumer, request.ref, reply)
        if found is not None:
            found[0].acknowledge_cumulative(found[1], lambda confirmed: reply.ok({"confirmed": confirmed}), reply.fail)

    @_perform.register
    def _nack(self, request: requests.Nack, reply: Reply) -> None:
        found = self._delivery(request.consumer, request.ref, reply)
        if found is not None:
            found[0].negative_acknowledge(found[1], lambda: reply.ok({"confirmed": False}), reply.fail)

    @_perform.register
    def _seek(self, request: requests.Seek, reply: Reply) -> None:
        consumer = self._consumers.get(request.consumer)
        if consumer is None:
            reply.fail(_unknown("consumer", request.consumer))
            return
        if request.position is not None:
            consumer.seek(request.position, lambda: reply.ok({}), reply.fail)
        elif request.publish_time is not None:
            consumer.seek(request.publish_time, lambda: reply.ok({}), reply.fail)
        elif request.ref is not None and (found := self._delivery(request.consumer, request.ref, reply)) is not None:
            consumer.seek(found[1], lambda: reply.ok({}), reply.fail)

    @_perform.register
    def _unsubscribe(self, request: requests.Unsubscribe, reply: Reply) -> None:
        consumer = self._consumers.get(request.consumer)
        if consumer is None:
            reply.fail(_unknown("consumer", request.consumer))
        else:
            consumer.unsubscribe(lambda: reply.ok({}), reply.fail)

    @_perform.register
    def _close(self, request: requests.Close, reply: Reply) -> None:
        handle: Producer | Consumer | Session | None
        if request.producer is not None:
            handle, missing = self._producers.get(request.producer), _unknown("producer", request.producer)
        elif request.consumer is not None:
            handle, missing = self._consumers.get(request.consumer), _unknown("consumer", request.consumer)
        else:
            name = request.client or ""
            handle, missing = self._sessions.get(name), _unknown("client", name)
        if handle is None:
            reply.fail(missing)
        else:
            handle.close(lambda: reply.ok({}), reply.fail)

    # ------------------------------------------------------------------ handles

    def _take_outputs(self) -> list[ClientOutput]:
        taken, self._step.outputs = self._step.outputs, []
        return taken

    def _open_session(self, handle: str, reply: Reply) -> Session | None:
        session = self._sessions.get(handle)
        if session is None:
            reply.fail(_unknown("client", handle))
        elif session.closing:
            reply.fail(Failure("already_closed", f"client {handle} is closed"))  # CLIENT-01
        else:
            return session
        return None

    def _delivery(self, handle: str, ref: int, reply: Reply) -> tuple[Consumer, Delivery] | None:
        consumer = self._consumers.get(handle)
        if consumer is None:
            reply.fail(_unknown("consumer", handle))
            return None
        delivery = consumer.delivery(ref)
        if delivery is None:
            reply.fail(Failure("invalid", f"consumer {handle} was handed nothing as {ref}"))
            return None
        return consumer, delivery


def _taken(kind: str, handle: str) -> Failure:
    return Failure("invalid", f"there is a {kind} {handle} already")


def _unknown(kind: str, handle: str) -> Failure:
    return Failure("no_such_handle", f"no {kind} {handle}")


def _producer_options(request: requests.Producer) -> ProducerOptions:
    batching = request.batching
    if batching is not None and request.chunking:
        raise ValueError("batching and chunking exclude each other")  # BATCH-05
    if batching is not None and batching.max_messages < 1:
        raise ValueError(f"batches of {batching.max_messages} messages")
    caps = None
    if batching is not None:
        delay = round(batching.max_delay_ms * MILLISECOND)
        caps = BatchingOptions(batching.max_messages, max(batching.max_bytes, 0), delay)
    return ProducerOptions(
        topic=complete_topic(request.topic),
        name=request.name,
        batching=caps,
        chunking=request.chunking,
        compression=_COMPRESSIONS[request.compression],
        send_timeout=request.send_timeout_ms * MILLISECOND,
        initial_sequence_id=request.initial_sequence_id,
        max_pending=request.max_pending,
        block_if_full=request.block_if_full,
    )


def _consumer_options(request: requests.Consumer, config: ClientConfig) -> ConsumerOptions:
    policy = request.dead_letter
    return ConsumerOptions(
        topic=complete_topic(request.topic),
        subscription=request.subscription,
        name=request.name,
        type=request.type,
        earliest=request.initial_position == "earliest",
        queue=request.queue,
        nack_delay=request.nack_delay_ms * MILLISECOND,
        ack_timeout=request.ack_timeout_ms * MILLISECOND,
        max_redeliver=policy.max_redeliver if policy else None,
        dead_letter_topic=complete_topic(policy.topic) if policy and policy.topic else None,
        max_pending_chunked=request.max_pending_chunked,
        auto_ack_oldest_chunked=request.auto_ack_oldest_chunked,
        expire_chunks=request.expire_chunks_ms * MILLISECOND,
        ack_group=request.ack_group_ms * MILLISECOND,
        batch_index_ack=request.batch_index_ack,
        ack_receipt=config.ack_receipt if request.ack_receipt is None else request.ack_receipt,
    )


def _message(ref: int, delivery: Delivery) -> dict[str, Any]:
    message_id: dict[str, Any] = {"ledger": delivery.position.ledger, "entry": delivery.position.entry}
    if delivery.batch_index is not None:
        message_id["batch_index"] = delivery.batch_index
    if delivery.first_chunk is not None:
        message_id["first_chunk"] = [delivery.first_chunk.ledger, delivery.first_chunk.entry]
    message: dict[str, Any] = {
        "ref": ref,
        "message_id": message_id,
        "payload": base64.b64encode(delivery.payload).decode("ascii"),
        "redelivery_count": delivery.redelivery_count,
        "properties": delivery.properties,
        "producer": delivery.producer,
        "sequence_id": delivery.sequence_id,
        "publish_time": delivery.publish_time,
    }
    if delivery.key is not None:
        message["key"] = delivery.key
    return message
