"""The reference client as one machine: requests of the adapter contract in, socket work and answers out."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any, ClassVar

import msgspec

from harness.clients import client as contract
from harness.clients import requests
from harness.reference.client.address import service_address
from harness.reference.client.config import MILLISECOND, ClientConfig
from harness.reference.client.connection import Connection
from harness.reference.client.consumer import Consumer
from harness.reference.client.consumer_options import ConsumerOptions
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

_COMPRESSIONS: dict[str | None, CompressionType] = {
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

    CAPABILITIES: ClassVar[frozenset[str]] = contract.CAPABILITIES - {"ack_receipt"}
    """What it can without ``ClientConfig.ack_receipt``; ``capabilities`` is what this one can."""

    def __init__(self, config: ClientConfig = _DEFAULT_CONFIG, parts: ClientParts = _DEFAULT_PARTS) -> None:
        self.capabilities = contract.CAPABILITIES if config.ack_receipt else self.CAPABILITIES
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
            request: requests.AnyRequest = msgspec.convert(message, requests.AnyRequest)
        except msgspec.ValidationError as error:
            self._malformed(_id_of(message), str(error))
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
        if request.contract != contract.CONTRACT_VERSION:
            reply.fail(
                Failure("unsupported", f"contract {request.contract}; this client speaks {contract.CONTRACT_VERSION}")
            )
            return
        reply.ok(
            {
                "name": NAME,
                "version": VERSION,
                "contract": contract.CONTRACT_VERSION,
                "capabilities": sorted(self.capabilities),
            }
        )

    @_perform.register
    def _client(self, request: requests.NewClient, reply: Reply) -> None:
        former = self._sessions.get(request.client)
        if former is not None and not former.closed:
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
        if request.auth is not None:
            config = replace(config, auth_method=request.auth.method, auth_data=request.auth.data)
        self._sessions[request.client] = Session(Runtime(config, self._parts, self._step), service)
        reply.ok({})

    @_perform.register
    def _producer(self, request: requests.NewProducer, reply: Reply) -> None:
        session = self._open_session(request.client, reply)
        if session is None:
            return
        former = self._producers.get(request.producer)
        if former is not None and former.state != "closed":
            reply.fail(_taken("producer", request.producer))
            return
        try:
            options = _producer_options(request)
        except ValueError as error:
            reply.fail(Failure("invalid", str(error)))
            return

        def created(last_sequence_id: int) -> None:
            reply.ok({"last_sequence_id": None if last_sequence_id < 0 else last_sequence_id})

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
    def _consumer(self, request: requests.NewConsumer, reply: Reply) -> None:
        session = self._open_session(request.client, reply)
        if session is None:
            return
        former = self._consumers.get(request.consumer)
        if former is not None and former.state != "closed":
            reply.fail(_taken("consumer", request.consumer))
            return
        if request.queue is not None and request.queue < 1:
            reply.fail(Failure("unsupported", "a consumer without a receiver queue"))
            return
        try:
            options = _consumer_options(request, self._config.ack_receipt)
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

    def _malformed(self, request_id: int | None, text: str) -> None:
        error = {"kind": contract.MALFORMED, "message": text}
        self._step.outputs.append(Answer({"id": request_id, "error": error}))

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
            reply.fail(Failure(contract.MALFORMED, f"consumer {handle} was handed nothing as {ref}"))
            return None
        return consumer, delivery


def _taken(kind: str, handle: str) -> Failure:
    return Failure("invalid", f"there is a {kind} {handle} already")


def _unknown(kind: str, handle: str) -> Failure:
    return Failure("no_such_handle", f"no {kind} {handle}")


def _producer_options(request: requests.NewProducer) -> ProducerOptions:
    if request.batching is not None and request.chunking:
        raise ValueError("batching and chunking exclude each other")  # BATCH-05
    options = ProducerOptions(
        topic=complete_topic(request.topic),
        name=request.name,
        batching=None if request.batching is None else _batching_options(request.batching),
        chunking=request.chunking,
        compression=_COMPRESSIONS[request.compression],
        initial_sequence_id=request.initial_sequence_id,
        block_if_full=request.block_if_full,
    )
    if request.send_timeout_ms is not None:
        options = replace(options, send_timeout=request.send_timeout_ms * MILLISECOND)
    if request.max_pending is not None:
        options = replace(options, max_pending=request.max_pending)
    return options


def _batching_options(caps: requests.Batching) -> BatchingOptions:
    options = BatchingOptions()
    if caps.max_messages is not None:
        if caps.max_messages < 1:
            raise ValueError(f"batches of {caps.max_messages} messages")
        options = replace(options, max_messages=caps.max_messages)
    if caps.max_bytes is not None:
        options = replace(options, max_bytes=max(caps.max_bytes, 0))
    if caps.max_delay_ms is not None:
        options = replace(options, max_delay=caps.max_delay_ms * MILLISECOND)
    return options


def _consumer_options(request: requests.NewConsumer, ack_receipt: bool) -> ConsumerOptions:
    given: dict[str, Any] = {
        "queue": request.queue,
        "nack_delay": _nanoseconds(request.nack_delay_ms),
        "ack_timeout": _nanoseconds(request.ack_timeout_ms),
        "max_pending_chunked": request.max_pending_chunked,
        "auto_ack_oldest_chunked": request.auto_ack_oldest_chunked,
        "expire_chunks": _nanoseconds(request.expire_chunks_ms),
        "ack_group": _nanoseconds(request.ack_group_ms),
        "batch_index_ack": request.batch_index_ack,
    }
    if request.dead_letter is not None:
        given["max_redeliver"] = request.dead_letter.max_redeliver
        given["dead_letter_topic"] = complete_topic(request.dead_letter.topic)
    return ConsumerOptions(
        topic=complete_topic(request.topic),
        subscription=request.subscription,
        name=request.name,
        type=request.type,
        earliest=request.initial_position == "earliest",
        ack_receipt=ack_receipt,
        **{name: value for name, value in given.items() if value is not None},
    )


def _nanoseconds(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * MILLISECOND


def _id_of(message: Any) -> int | None:
    identity = message.get("id") if isinstance(message, dict) else None
    return identity if type(identity) is int else None


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
