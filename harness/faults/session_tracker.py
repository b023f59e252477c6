"""One connection as events: which frames passed, and who they were about.

Frames name producers and consumers by numbers that mean something on one connection only. The tracker keeps what each
number stands for, so that every event carries names (``docs/history.md``, "Tap layers"). It has no clock and does no
I/O: taps, the simulated network and passive mode use the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from harness.faults.message_columns import message_columns, present, signed, text
from harness.history.event import Layer
from harness.wire import topic_name
from harness.wire.frame import Frame, WireError, command_name
from harness.wire.message import is_batch
from harness.wire.message_id import LATEST, Position, batch_index, stored_position
from harness.wire.pulsar_pb2 import BaseCommand, CommandSubscribe, FeatureFlags, MessageIdData
from harness.wire.unknown import enum_name

Direction: TypeAlias = Literal["to_broker", "to_client"]
Columns: TypeAlias = dict[str, Any]

_BODY_NAMES: Final = {
    number: BaseCommand.DESCRIPTOR.fields_by_number[number].name for number in BaseCommand.Type.values()
}


_LOOKUPS: Final = ("LOOKUP", "PARTITIONED_METADATA", "GET_TOPICS_OF_NAMESPACE", "GET_SCHEMA", "GET_OR_CREATE_SCHEMA")
_SUCCEED: Final = ("SUBSCRIBE", "UNSUBSCRIBE", "SEEK", "CLOSE_PRODUCER", "CLOSE_CONSUMER", "WATCH_TOPIC_LIST_CLOSE")
# Which requests an answer may answer. Lookups have error fields of their own, so ERROR is tried on them last.
_ANSWERS: Final[dict[str, tuple[str, ...]]] = {
    f"{request}_RESPONSE": (request,) for request in (*_LOOKUPS, "ACK", "GET_LAST_MESSAGE_ID", "CONSUMER_STATS")
} | {
    "PRODUCER_SUCCESS": ("PRODUCER",),
    "WATCH_TOPIC_LIST_SUCCESS": ("WATCH_TOPIC_LIST",),
    "SUCCESS": _SUCCEED,
    "ERROR": ("PRODUCER", *_SUCCEED, "GET_LAST_MESSAGE_ID", "CONSUMER_STATS", "WATCH_TOPIC_LIST", "ACK", *_LOOKUPS),
}


@dataclass(slots=True)
class _Registration:
    """What a producer id or consumer id stands for, or what a request was about.

    A PRODUCER request and its producer id share one, so that the name in the answer reaches both.
    """

    topic: str | None = None
    producer: str | None = None
    subscription: str | None = None
    consumer: str | None = None
    producer_id: int | None = None
    consumer_id: int | None = None

    def columns(self) -> Columns:
        return {
            "topic": self.topic,
            "partition": topic_name.partition(self.topic) if self.topic is not None else None,
            "producer": self.producer,
            "subscription": self.subscription,
            "consumer": self.consumer,
        }

    def ids(self) -> Columns:
        ids = {"producer_id": self.producer_id, "consumer_id": self.consumer_id}
        return {name: number for name, number in ids.items() if number is not None}


class SessionTracker:
    """Turns what happens on one connection into columns for ``Recorder.record``.

    ``connection`` is unique in the run (``client-7``). No frame that decodes makes it raise: an id that nobody
    registered leaves its columns null.
    """

    def __init__(self, connection: str, layer: Layer) -> None:
        self.connection = connection
        self.layer = layer
        self._producers: dict[int, _Registration] = {}
        self._consumers: dict[int, _Registration] = {}
        # Clients number their lookups apart from their other requests, so an id alone does not name a request.
        self._requests: dict[tuple[int, str], _Registration] = {}
        self._readers: dict[int, Callable[[BaseCommand, Frame], Columns]] = {
            BaseCommand.CONNECT: self._connect,
            BaseCommand.CONNECTED: self._connected,
            BaseCommand.PRODUCER: self._producer,
            BaseCommand.PRODUCER_SUCCESS: self._producer_success,
            BaseCommand.SEND: self._send,
            BaseCommand.SEND_RECEIPT: self._send_receipt,
            BaseCommand.SEND_ERROR: self._send_error,
            BaseCommand.SUBSCRIBE: self._subscribe,
            BaseCommand.FLOW: self._flow,
            BaseCommand.MESSAGE: self._message,
            BaseCommand.ACK: self._ack,
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: self._redeliver,
            BaseCommand.SEEK: self._seek,
            BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: self._last_message_id,
            BaseCommand.LOOKUP_RESPONSE: self._lookup_response,
            BaseCommand.TOPIC_MIGRATED: self._topic_migrated,
        }

    def opened(self) -> Columns:
        """Columns of ``CONNECTION_OPEN``."""
        return self._event("CONNECTION_OPEN", {}, {})

    def closed(self, by: Literal["client", "broker", "tap"]) -> Columns:
        """Columns of ``CONNECTION_CLOSED``; ``by`` is the side that ended the connection."""
        return self._event("CONNECTION_CLOSED", {}, {"by": by})

    def wire_error(self, error: WireError, direction: Direction) -> Columns:
        """Columns of ``WIRE_ERROR``: the bytes that came in ``direction`` are no frame."""
        return self._event("WIRE_ERROR", {"error": error.kind}, {"direction": direction, "message": error.message})

    def frame(self, frame: Frame, direction: Direction) -> Columns:
        """Columns of the event for ``frame``. Frames must come in the order in which they passed."""
        command = frame.command
        kind = command_name(command)
        extra: Columns = {"direction": direction}
        if not command.HasField("type"):
            return self._event(kind, {}, extra | {"unread_size": len(frame.payload)})
        body: Message = getattr(command, _BODY_NAMES[command.type])
        columns = self._who(body, command, direction, kind)
        extra |= columns.pop("extra")
        reader = self._readers.get(command.type, self._other)
        special = reader(command, frame)
        extra |= special.pop("extra", {})
        return self._event(kind, columns | special, extra)

    def _event(self, kind: str, columns: Columns, extra: Columns) -> Columns:
        return {
            "layer": self.layer,
            "kind": kind,
            "phase": "event",
            "connection": self.connection,
            **{name: value for name, value in columns.items() if value is not None},
            "extra": extra,
        }

    def _who(self, body: Message, command: BaseCommand, direction: Direction, kind: str) -> Columns:
        """Names behind the ids of ``body``; its request id, opened by a request and resolved by an answer."""
        extra: Columns = {}
        columns: Columns = {}
        found: _Registration | None = None
        fields = body.DESCRIPTOR.fields_by_name
        if command.type == BaseCommand.PRODUCER:
            found = self._register_producer(command)
        elif command.type == BaseCommand.SUBSCRIBE:
            found = self._register_consumer(command)
        elif "producer_id" in fields:
            number = _value(body, "producer_id")
            found = self._producers.get(number, _Registration(producer_id=signed(number)))
        elif "consumer_id" in fields:
            number = _value(body, "consumer_id")
            found = self._consumers.get(number, _Registration(consumer_id=signed(number)))
        elif "topic" in fields and not fields["topic"].is_repeated:
            found = _Registration(topic=_topic(_value(body, "topic")))
        if "request_id" in fields and body.HasField("request_id"):
            request_id = _value(body, "request_id")
            columns["request_id"] = present(request_id)
            if direction == "to_broker":
                self._requests[request_id, kind] = found or _Registration()
            elif (request := self._answered(command, kind, request_id)) is not None:
                extra["request"], asked = request
                found = found or asked
                if command.type == BaseCommand.PRODUCER_SUCCESS and asked.producer_id is not None:
                    asked.producer = text(command.producer_success.producer_name) or asked.producer
        if found is not None:
            columns |= found.columns()
            extra |= found.ids()
        return columns | {"extra": extra}

    def _answered(self, command: BaseCommand, kind: str, request_id: int) -> tuple[str, _Registration] | None:
        """Kind and subject of the request that a frame to the client answers; None when it answers none."""
        for asked in _ANSWERS.get(kind, ()):
            registration = self._requests.get((request_id, asked))
            if registration is not None:
                # A producer that has to wait gets another PRODUCER_SUCCESS for the same request later.
                if kind != "PRODUCER_SUCCESS" or command.producer_success.producer_ready:
                    del self._requests[request_id, asked]
                return asked, registration
        return None

    def _register_producer(self, command: BaseCommand) -> _Registration:
        body = command.producer
        registration = _Registration(
            topic=_topic(body.topic), producer=text(body.producer_name) or None, producer_id=signed(body.producer_id)
        )
        self._producers[body.producer_id] = registration
        return registration

    def _register_consumer(self, command: BaseCommand) -> _Registration:
        body = command.subscribe
        registration = _Registration(
            topic=_topic(body.topic),
            subscription=text(body.subscription),
            consumer=text(body.consumer_name) or None,
            consumer_id=signed(body.consumer_id),
        )
        self._consumers[body.consumer_id] = registration
        return registration

    def _connect(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.connect
        extra: Columns = {
            "client_version": text(body.client_version),
            "protocol_version": body.protocol_version,
            "features": _features(body.feature_flags),
        }
        if body.HasField("proxy_to_broker_url"):
            extra["proxy_to_broker_url"] = text(body.proxy_to_broker_url)
        return {"extra": extra}

    def _connected(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.connected
        extra: Columns = {
            "server_version": text(body.server_version),
            "protocol_version": body.protocol_version,
            "max_message_size": body.max_message_size if body.HasField("max_message_size") else None,
            "features": _features(body.feature_flags),
        }
        return {"extra": extra}

    def _producer(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.producer
        extra: Columns = {"epoch": signed(body.epoch)}
        if body.HasField("producer_access_mode"):
            extra["access_mode"] = _lower(enum_name(body, "producer_access_mode"))
        return {"extra": extra}

    def _producer_success(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.producer_success
        extra: Columns = {"last_sequence_id": present(body.last_sequence_id), "ready": body.producer_ready}
        return {"producer": text(body.producer_name) or None, "extra": extra}

    def _send(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.send
        columns = message_columns(frame)
        columns["extra"]["is_chunk"] = body.is_chunk
        return columns | {
            "sequence_id": present(body.sequence_id),
            "highest_sequence_id": present(body.highest_sequence_id) or None,
            "num_messages": body.num_messages,
        }

    def _send_receipt(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.send_receipt
        columns: Columns = {
            "sequence_id": present(body.sequence_id),
            "highest_sequence_id": present(body.highest_sequence_id) or None,
        }
        stored = stored_position(body.message_id) if body.HasField("message_id") else None
        if stored is not None:
            columns |= {"ledger_id": stored.ledger, "entry_id": stored.entry}
        columns["extra"] = {"duplicate": body.HasField("message_id") and stored is None}
        return columns

    def _send_error(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.send_error
        return {
            "sequence_id": present(body.sequence_id),
            "error": enum_name(body, "error"),
            "extra": {"message": text(body.message)},
        }

    def _subscribe(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.subscribe
        extra: Columns = {
            "type": _lower(enum_name(body, "subType")),
            "initial_position": CommandSubscribe.InitialPosition.Name(body.initialPosition).lower(),
            "durable": body.durable,
        }
        if body.HasField("start_message_id"):
            extra["start"] = _id_entry(body.start_message_id)
        if body.HasField("consumer_epoch"):
            extra["epoch"] = signed(body.consumer_epoch)
        return {"extra": extra}

    def _flow(self, command: BaseCommand, frame: Frame) -> Columns:
        return {"permits": command.flow.messagePermits}

    def _message(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.message
        columns = message_columns(frame) | _id_columns(body.message_id)
        columns |= {"redelivery_count": body.redelivery_count, "ack_set": list(body.ack_set) or None}
        if body.HasField("consumer_epoch"):
            columns["extra"]["epoch"] = signed(body.consumer_epoch)
        metadata = frame.metadata
        if metadata is not None:
            columns |= {
                "producer": text(metadata.producer_name),
                "sequence_id": present(metadata.sequence_id),
                "highest_sequence_id": present(metadata.highest_sequence_id) or None,
                "num_messages": metadata.num_messages_in_batch if is_batch(metadata) else 1,
            }
        return columns

    def _ack(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.ack
        columns: Columns = {
            "ack_type": _lower(enum_name(body, "ack_type")),
            "error": enum_name(body, "validation_error"),
            "extra": {"ids": [_id_entry(data) for data in body.message_id]},
        }
        if len(body.message_id) == 1:
            columns |= _id_columns(body.message_id[0])
        return columns

    def _redeliver(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.redeliverUnacknowledgedMessages
        return {"extra": {"ids": [_id_entry(data) for data in body.message_ids]}}

    def _seek(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.seek
        columns: Columns = {}
        extra: Columns = {}
        if body.HasField("message_id"):
            position = Position.read(body.message_id)
            if position.is_sentinel:
                extra["position"] = "earliest"
            elif position == LATEST:
                extra["position"] = "latest"
            else:
                columns = _id_columns(body.message_id)
        if body.HasField("message_publish_time"):
            extra["publish_time"] = signed(body.message_publish_time)
        return columns | {"extra": extra}

    def _last_message_id(self, command: BaseCommand, frame: Frame) -> Columns:
        return _id_columns(command.getLastMessageIdResponse.last_message_id)

    def _lookup_response(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.lookupTopicResponse
        return {
            "error": enum_name(body, "error"),
            "extra": _scalars(body) | {"response": _lower(enum_name(body, "response"))},
        }

    def _topic_migrated(self, command: BaseCommand, frame: Frame) -> Columns:
        body = command.topicMigrated
        is_producer = enum_name(body, "resource_type") == "Producer"
        known = (self._producers if is_producer else self._consumers).get(body.resource_id, _Registration())
        return known.columns() | {"extra": _scalars(body) | known.ids()}

    def _other(self, command: BaseCommand, frame: Frame) -> Columns:
        """A command without a reader of its own: its plain fields are its ``extra``, its error is the error."""
        body: Message = getattr(command, _BODY_NAMES[command.type])
        columns: Columns = {"extra": _scalars(body)}
        for name in ("error", "error_code"):
            if name in body.DESCRIPTOR.fields_by_name:
                columns["error"] = enum_name(body, name)
        return columns


_IN_COLUMNS: Final = frozenset({"request_id", "producer_id", "consumer_id", "topic", "error", "error_code"})
_SECRET: Final = frozenset({"original_auth_data"})
"""Texts that may be a token. A proxy sends along what its own client proved itself with."""


def _scalars(body: Message) -> Columns:
    """Numbers, flags, texts and enums of ``body`` that have no column; lists of texts too."""
    values: Columns = {}
    for field in body.DESCRIPTOR.fields:
        if field.name in _IN_COLUMNS or field.name in _SECRET:
            continue
        if field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_BYTES):
            continue
        if field.is_repeated:
            if field.type == FieldDescriptor.TYPE_STRING:
                values[field.name] = [text(item) for item in getattr(body, field.name)]
        elif field.type == FieldDescriptor.TYPE_ENUM:
            if (name := enum_name(body, field.name)) is not None:
                values[field.name] = name.lower()
        elif body.HasField(field.name):
            value = getattr(body, field.name)
            if field.type == FieldDescriptor.TYPE_STRING:
                values[field.name] = text(value)
            elif isinstance(value, int) and not isinstance(value, bool):
                values[field.name] = signed(value)
            else:
                values[field.name] = value
    return values


def _value(body: Message, field: str) -> Any:
    return getattr(body, field)


def _topic(name: str | bytes) -> str:
    return topic_name.complete(text(name))


def _lower(name: str | None) -> str | None:
    return None if name is None else name.lower()


def _features(flags: FeatureFlags) -> list[str]:
    return [field.name for field, value in flags.ListFields() if value is True]


def _id_columns(data: MessageIdData) -> Columns:
    stored = stored_position(data)
    columns: Columns = {"batch_index": batch_index(data), "ack_set": list(data.ack_set) or None}
    if stored is not None:
        columns |= {"ledger_id": stored.ledger, "entry_id": stored.entry}
    return columns


def _id_entry(data: MessageIdData) -> Columns:
    """An id inside a list of ids; what is absent is left out, ledger and entry are null for the sentinel."""
    stored = stored_position(data)
    entry: Columns = {
        "ledger": None if stored is None else stored.ledger,
        "entry": None if stored is None else stored.entry,
    }
    if (index := batch_index(data)) is not None:
        entry["batch_index"] = index
    if data.ack_set:
        entry["ack_set"] = list(data.ack_set)
    if data.HasField("batch_size"):
        entry["batch_size"] = data.batch_size
    if data.HasField("first_chunk_message_id"):
        first = Position.read(data.first_chunk_message_id)
        entry["first_chunk"] = [first.ledger, first.entry]
    return entry
