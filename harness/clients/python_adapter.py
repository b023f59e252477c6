"""The adapter of pulsar-client for Python (the C++ client 4.2.0 inside): ``python -m harness.clients.python_adapter``.

Public API of the package only: what is tested is what an application gets. Two behaviours of it that show in a history
and are the client's own (the adapter passes everything on): ``sequence_id`` 0 and ``initial_sequence_id`` 0 count as
"not given"; an acknowledgement is complete when it has been buffered.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar

import pulsar

from harness.clients import python_errors
from harness.clients import requests as ask
from harness.clients.adapter_channel import AdapterChannel
from harness.clients.client import CAPABILITIES, CONTRACT_VERSION
from harness.wire.pulsar_pb2 import MessageIdData

LACKS = {"ack_receipt", "chunk_expiry", "highest_sequence_id", "batch_split_on_repeated_id"}
"""Capabilities of the contract that 3.13.0 lacks: the first two have no option in Python, although the library below
has them; of the others that library knows nothing.
"""

CLOSE_PATIENCE_S = 2.0
"""How long the end of stdin waits for clients that do not close: they are known to hang on a dead connection."""

_COMPRESSION = {
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}
_TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "failover": pulsar.ConsumerType.Failover,
    "shared": pulsar.ConsumerType.Shared,
    "key_shared": pulsar.ConsumerType.KeyShared,
}
_POSITIONS = {"earliest": pulsar.InitialPosition.Earliest, "latest": pulsar.InitialPosition.Latest}
_PLACES = {"earliest": pulsar.MessageId.earliest, "latest": pulsar.MessageId.latest}


class Refused(Exception):
    """An error the adapter itself answers with."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class Lane:
    """Runs the calls of one handle one after the other, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def end(self) -> None:
        """Let the calls already asked for run, then none."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class ProducerHandle:
    def __init__(self, client: str, producer: pulsar.Producer) -> None:
        self.client = client
        self.producer = producer
        self.calls = Lane()

    def end(self) -> None:
        self.calls.end()


class ConsumerHandle:
    """A consumer and everything it has handed over: ``ref`` of the contract is the place in ``deliveries``."""

    def __init__(self, client: str, consumer: pulsar.Consumer) -> None:
        self.client = client
        self.consumer = consumer
        self.calls = Lane()
        self.receives = Lane()
        self.deliveries: list[pulsar.Message] = []

    def delivery(self, ref: int) -> pulsar.Message:
        if not 0 <= ref < len(self.deliveries):
            raise Refused("malformed", f"this consumer has no delivery {ref}")
        return self.deliveries[ref]

    def end(self) -> None:
        self.calls.end()
        self.receives.end()


class ClientHandle:
    def __init__(self, client: pulsar.Client) -> None:
        self.client = client

    def end(self) -> None:
        """A client has no calls of its own to wait for."""


H = TypeVar("H", ProducerHandle, ConsumerHandle, ClientHandle)


class Handles(Generic[H]):
    """The open handles of one kind, and the names of the closed ones: a history may come back to those."""

    def __init__(self) -> None:
        self._open: dict[str, H] = {}
        self._closed: set[str] = set()

    def add(self, name: str, handle: H) -> None:
        self._open[name] = handle
        self._closed.discard(name)

    def get(self, name: str) -> H:
        if name in self._closed:
            raise Refused("already_closed", f"{name} was closed")
        handle = self._open.get(name)
        if handle is None:
            raise Refused("no_such_handle", f"nothing is called {name}")
        return handle

    def refuse_if_open(self, name: str) -> None:
        if name in self._open:
            raise Refused("malformed", f"{name} is in use")

    def close(self, name: str) -> None:
        """Forget a handle the client has closed, and with it the messages it keeps for later acknowledgement."""
        handle = self._open.pop(name, None)
        if handle is not None:
            self._closed.add(name)
            handle.end()

    def opened(self) -> list[tuple[str, H]]:
        return list(self._open.items())


def message_id(identity: Any) -> dict[str, Any]:
    """An ``ID`` of the contract. Its first chunk shows only in the serialised form (``MessageIdData`` 7, PIP-107)."""
    data = MessageIdData.FromString(identity.serialize())
    columns = {
        "ledger": identity.ledger_id(),
        "entry": identity.entry_id(),
        "batch_index": identity.batch_index(),
        "partition": identity.partition(),
    }
    known: dict[str, Any] = {name: value for name, value in columns.items() if value >= 0}
    if data.HasField("first_chunk_message_id"):
        first = data.first_chunk_message_id
        known["first_chunk"] = [first.ledgerId, first.entryId]
    return known


class PythonAdapter:
    """Carries out requests. ``handle`` never blocks: slow calls run on threads and answer when they are done."""

    def __init__(self, channel: AdapterChannel) -> None:
        self._channel = channel
        self._clients: Handles[ClientHandle] = Handles()
        self._producers: Handles[ProducerHandle] = Handles()
        self._consumers: Handles[ConsumerHandle] = Handles()

    def handle(self, request: ask.AnyRequest) -> None:
        """Start one request; its answer is written when its outcome is known."""
        try:
            self._dispatch(request)
        except Refused as refusal:
            self._channel.fail(request.id, refusal.kind, refusal.message)
        except Exception as error:
            self._channel.fail(request.id, *python_errors.of_exception(error, at_once=True))

    def _dispatch(self, request: ask.AnyRequest) -> None:
        match request:
            case ask.Hello():
                self._hello(request)
            case ask.NewClient():
                self._client(request)
            case ask.NewProducer():
                self._producers.refuse_if_open(request.producer)
                self._spawn(request.id, lambda: self._producer(request))
            case ask.Send():
                producer = self._producers.get(request.producer)
                producer.calls.put(lambda: self._send(producer, request))
            case ask.Flush():
                producer = self._producers.get(request.producer)
                producer.calls.put(lambda: self._spawn(request.id, lambda: _nothing(producer.producer.flush())))
            case ask.NewConsumer():
                self._consumers.refuse_if_open(request.consumer)
                self._spawn(request.id, lambda: self._consumer(request))
            case ask.Receive():
                consumer = self._consumers.get(request.consumer)
                consumer.receives.put(lambda: self._run(request.id, lambda: self._receive(consumer, request)))
            case ask.Ack() | ask.AckCumulative() | ask.Nack():
                consumer = self._consumers.get(request.consumer)
                consumer.calls.put(lambda: self._run(request.id, lambda: self._settle(consumer, request), at_once=True))
            case ask.Seek():
                consumer = self._consumers.get(request.consumer)
                consumer.calls.put(lambda: self._spawn(request.id, lambda: self._seek(consumer, request)))
            case ask.Unsubscribe():
                consumer = self._consumers.get(request.consumer)
                consumer.calls.put(lambda: self._spawn(request.id, lambda: _nothing(consumer.consumer.unsubscribe())))
            case ask.Close():
                self._close(request)

    def _run(self, id: int, call: Callable[[], dict[str, Any]], *, at_once: bool = False) -> None:
        try:
            answer = call()
        except Refused as refusal:
            self._channel.fail(id, refusal.kind, refusal.message)
        except Exception as error:
            self._channel.fail(id, *python_errors.of_exception(error, at_once=at_once))
        else:
            self._channel.answer(id, answer)

    def _spawn(self, id: int, call: Callable[[], dict[str, Any]]) -> None:
        threading.Thread(target=self._run, args=(id, call), daemon=True).start()

    def _hello(self, request: ask.Hello) -> None:
        if request.contract != CONTRACT_VERSION:
            raise Refused("unsupported", f"this adapter speaks contract {CONTRACT_VERSION}")
        self._channel.answer(
            request.id,
            {
                "name": "python",
                "version": pulsar.__version__,
                "contract": CONTRACT_VERSION,
                "capabilities": sorted(CAPABILITIES - LACKS),
            },
        )

    def _client(self, request: ask.NewClient) -> None:
        self._clients.refuse_if_open(request.client)
        options: dict[str, Any] = {}
        if request.operation_timeout_ms is not None:
            # Whole seconds is all the package takes; never less than what was asked for.
            options["operation_timeout_seconds"] = max(1, -(-request.operation_timeout_ms // 1000))
        if request.auth is not None:
            options["authentication"] = _authentication(request.auth)
        client = pulsar.Client(
            request.url,
            io_threads=1,
            message_listener_threads=1,
            # Not a Python logger: the library would need the interpreter lock to log, from threads that hold its own.
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Info),
            **options,
        )
        self._clients.add(request.client, ClientHandle(client))
        self._channel.answer(request.id, {})

    def _producer(self, request: ask.NewProducer) -> dict[str, Any]:
        client = self._clients.get(request.client)
        options: dict[str, Any] = {"batching_enabled": False}
        if request.batching is not None:
            options["batching_enabled"] = True
            limits = {
                "batching_max_messages": request.batching.max_messages,
                "batching_max_allowed_size_in_bytes": request.batching.max_bytes,
                "batching_max_publish_delay_ms": request.batching.max_delay_ms,
            }
            options |= {name: value for name, value in limits.items() if value is not None}
        if request.compression is not None:
            options["compression_type"] = _COMPRESSION[request.compression]
        given = {
            "send_timeout_millis": request.send_timeout_ms,
            "initial_sequence_id": request.initial_sequence_id,
            "max_pending_messages": request.max_pending,
        }
        options |= {name: value for name, value in given.items() if value is not None}
        producer = client.client.create_producer(
            request.topic,
            producer_name=request.name,
            chunking_enabled=request.chunking,
            block_if_queue_full=request.block_if_full,
            **options,
        )
        last = producer.last_sequence_id()
        self._producers.add(request.producer, ProducerHandle(request.client, producer))
        return {"last_sequence_id": last if last >= 0 else None}

    def _send(self, producer: ProducerHandle, request: ask.Send) -> None:
        issuing = threading.get_ident()
        issued = False

        def reported(result: Any, identity: Any) -> None:
            # An exception that leaves this callback ends the process.
            try:
                if result != pulsar.Result.Ok:
                    at_once = not issued and threading.get_ident() == issuing
                    self._channel.fail(request.id, *python_errors.of_result(result, at_once=at_once))
                    return
                known = message_id(identity)
                answer: dict[str, Any] = {"message_id": known}
                if "ledger" not in known and "entry" not in known:
                    answer["duplicate"] = True
                self._channel.answer(request.id, answer)
            except Exception as error:
                self._channel.fail(request.id, "other", f"the adapter could not read the outcome: {error!r}")

        options: dict[str, Any] = {}
        if request.deliver_after_ms is not None:
            options["deliver_after"] = timedelta(milliseconds=request.deliver_after_ms)
        try:
            producer.producer.send_async(
                request.payload,
                reported,
                sequence_id=request.sequence_id,
                partition_key=request.key,
                properties=request.properties or None,
                **options,
            )
        except Exception as error:
            self._channel.fail(request.id, *python_errors.of_exception(error, at_once=True))
        finally:
            issued = True

    def _consumer(self, request: ask.NewConsumer) -> dict[str, Any]:
        client = self._clients.get(request.client)
        for option in ("expire_chunks_ms", "ack_group_ms"):
            if getattr(request, option) is not None:
                raise Refused("unsupported", f"pulsar-client {pulsar.__version__} has no option for {option}")
        given = {
            "receiver_queue_size": request.queue,
            "negative_ack_redelivery_delay_ms": request.nack_delay_ms,
            "unacked_messages_timeout_ms": request.ack_timeout_ms,
            "max_pending_chunked_message": request.max_pending_chunked,
            "auto_ack_oldest_chunked_message_on_queue_full": request.auto_ack_oldest_chunked,
            "batch_index_ack_enabled": request.batch_index_ack,
        }
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if request.initial_position is not None:
            options["initial_position"] = _POSITIONS[request.initial_position]
        if request.dead_letter is not None:
            options["dead_letter_policy"] = pulsar.ConsumerDeadLetterPolicy(
                request.dead_letter.max_redeliver, request.dead_letter.topic
            )
        consumer = client.client.subscribe(
            request.topic,
            request.subscription,
            consumer_name=request.name,
            consumer_type=_TYPES[request.type],
            **options,
        )
        self._consumers.add(request.consumer, ConsumerHandle(request.client, consumer))
        return {}

    def _receive(self, consumer: ConsumerHandle, request: ask.Receive) -> dict[str, Any]:
        try:
            message = consumer.consumer.receive(request.timeout_ms)
        except pulsar.Timeout:
            return {"message": None}
        except pulsar.AlreadyClosed as error:
            # Whenever it comes: no message was handed over, so nothing happened.
            raise Refused("already_closed", str(error)) from error
        ref = len(consumer.deliveries)
        consumer.deliveries.append(message)
        delivered: dict[str, Any] = {
            "ref": ref,
            "message_id": message_id(message.message_id()),
            "payload": message.data(),
            "redelivery_count": message.redelivery_count(),
            "properties": message.properties(),
        }
        if message.partition_key():
            delivered["key"] = message.partition_key()
        if message.producer_name():
            delivered["producer"] = message.producer_name()
        if message.publish_timestamp():
            delivered["publish_time"] = message.publish_timestamp()
        return {"message": delivered}

    def _settle(self, consumer: ConsumerHandle, request: ask.Ack | ask.AckCumulative | ask.Nack) -> dict[str, Any]:
        message = consumer.delivery(request.ref)
        match request:
            case ask.Ack():
                consumer.consumer.acknowledge(message)
            case ask.AckCumulative():
                consumer.consumer.acknowledge_cumulative(message)
            case ask.Nack():
                consumer.consumer.negative_acknowledge(message)
        return {"confirmed": False}

    def _seek(self, consumer: ConsumerHandle, request: ask.Seek) -> dict[str, Any]:
        if request.ref is not None:
            consumer.consumer.seek(consumer.delivery(request.ref).message_id())
        elif request.publish_time is not None:
            consumer.consumer.seek(request.publish_time)
        elif request.position is not None:
            consumer.consumer.seek(_PLACES[request.position])
        return {}

    def _close(self, request: ask.Close) -> None:
        if request.producer is not None:
            name = request.producer
            producer = self._producers.get(name)
            producer.calls.put(lambda: self._spawn(request.id, lambda: self._close_producer(name, producer)))
        elif request.consumer is not None:
            name = request.consumer
            consumer = self._consumers.get(name)
            consumer.calls.put(lambda: self._spawn(request.id, lambda: self._close_consumer(name, consumer)))
        elif request.client is not None:
            name = request.client
            client = self._clients.get(name)
            self._spawn(request.id, lambda: self._close_client(name, client))

    def _close_producer(self, name: str, producer: ProducerHandle) -> dict[str, Any]:
        producer.producer.close()
        self._producers.close(name)
        return {}

    def _close_consumer(self, name: str, consumer: ConsumerHandle) -> dict[str, Any]:
        consumer.consumer.close()
        self._consumers.close(name)
        return {}

    def _close_client(self, name: str, client: ClientHandle) -> dict[str, Any]:
        client.client.close()
        for producer_name, producer in self._producers.opened():
            if producer.client == name:
                self._producers.close(producer_name)
        for consumer_name, consumer in self._consumers.opened():
            if consumer.client == name:
                self._consumers.close(consumer_name)
        self._clients.close(name)
        return {}

    def finish(self) -> None:
        """Close every client, all at once and for a bounded time."""
        closing = [
            threading.Thread(target=_close_quietly, args=(handle.client,), daemon=True)
            for _, handle in self._clients.opened()
        ]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(CLOSE_PATIENCE_S)


def _authentication(auth: ask.Auth) -> pulsar.Authentication:
    if auth.data is not None:
        return pulsar.AuthenticationToken(auth.data)
    # Only the method's name is sent; the files would be opened by a connection through TLS.
    return pulsar.AuthenticationTLS("", "")


def _nothing(result: None) -> dict[str, Any]:
    return {}


def _close_quietly(client: pulsar.Client) -> None:
    try:
        client.close()
    except pulsar.PulsarException:
        # Nobody is left to be told; the process ends either way.
        return


def main() -> None:
    channel = AdapterChannel()
    adapter = PythonAdapter(channel)
    for request in channel.requests():
        adapter.handle(request)
    adapter.finish()
    # Not sys.exit: pulsar-client 3.13.0 sometimes aborts in its destructors at interpreter exit.
    os._exit(0)


if __name__ == "__main__":
    main()
