"""The requests of the adapter contract as types: what ``docs/adapter-contract.md`` lists, and nothing else.

Unknown fields are refused, because an option that an adapter silently ignores makes a test pass that never ran.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Compression = Literal["lz4", "zlib", "zstd", "snappy"]
SubscriptionType = Literal["exclusive", "failover", "shared", "key_shared"]
Position = Literal["earliest", "latest"]
AuthMethod = Literal["token", "tls"]


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    """One line on an adapter's stdin. ``id`` comes back in exactly one answer."""

    id: int


class Hello(Request, tag="hello"):
    contract: int


class Auth(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How the client says who it is: Pulsar's ``auth_method_name`` and ``auth_data``.

    ``tls`` has no data: the certificate is shown by whoever dials the broker, which is not the client. ``data`` is a
    secret, so that it is in no text made of this.
    """

    method: AuthMethod
    data: str | None = None

    def __post_init__(self) -> None:
        if (self.method == "token") != (self.data is not None):
            raise ValueError("auth has data for the method token, and only for that")

    def __repr__(self) -> str:
        return f"Auth(method={self.method!r})"


class NewClient(Request, tag="client"):
    client: str
    url: str
    operation_timeout_ms: int | None = None
    auth: Auth | None = None


class Batching(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """When a batch leaves. An absent limit is the client's own default."""

    max_messages: int | None = None
    max_bytes: int | None = None
    max_delay_ms: int | None = None


class NewProducer(Request, tag="producer"):
    client: str
    producer: str
    topic: str
    name: str
    batching: Batching | None = None
    chunking: bool = False
    compression: Compression | None = None
    send_timeout_ms: int | None = None
    initial_sequence_id: int | None = None
    max_pending: int | None = None
    block_if_full: bool = False


class Send(Request, tag="send"):
    """``payload`` travels as base64."""

    producer: str
    payload: bytes
    sequence_id: int | None = None
    key: str | None = None
    properties: dict[str, str] = {}
    deliver_after_ms: int | None = None


class Flush(Request, tag="flush"):
    producer: str


class DeadLetter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    max_redeliver: int
    topic: str


class NewConsumer(Request, tag="consumer"):
    client: str
    consumer: str
    topic: str
    subscription: str
    name: str
    type: SubscriptionType
    initial_position: Position | None = None
    queue: int | None = None
    nack_delay_ms: int | None = None
    ack_timeout_ms: int | None = None
    dead_letter: DeadLetter | None = None
    max_pending_chunked: int | None = None
    auto_ack_oldest_chunked: bool | None = None
    expire_chunks_ms: int | None = None
    ack_group_ms: int | None = None
    batch_index_ack: bool | None = None


class Receive(Request, tag="receive"):
    consumer: str
    timeout_ms: int


class Ack(Request, tag="ack"):
    consumer: str
    ref: int


class AckCumulative(Request, tag="ack_cumulative"):
    consumer: str
    ref: int


class Nack(Request, tag="nack"):
    consumer: str
    ref: int


class Seek(Request, tag="seek"):
    """Exactly one of ``ref``, ``publish_time`` (milliseconds since 1970) and ``position``."""

    consumer: str
    ref: int | None = None
    publish_time: int | None = None
    position: Position | None = None

    def __post_init__(self) -> None:
        if sum(target is not None for target in (self.ref, self.publish_time, self.position)) != 1:
            raise ValueError("seek takes exactly one of ref, publish_time and position")


class Unsubscribe(Request, tag="unsubscribe"):
    consumer: str


class Close(Request, tag="close"):
    """Exactly one of ``producer``, ``consumer`` and ``client``."""

    producer: str | None = None
    consumer: str | None = None
    client: str | None = None

    def __post_init__(self) -> None:
        if sum(target is not None for target in (self.producer, self.consumer, self.client)) != 1:
            raise ValueError("close takes exactly one of producer, consumer and client")


AnyRequest = (
    Hello
    | NewClient
    | NewProducer
    | Send
    | Flush
    | NewConsumer
    | Receive
    | Ack
    | AckCumulative
    | Nack
    | Seek
    | Unsubscribe
    | Close
)

_DECODER: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)


class MalformedRequest(ValueError):
    """A line that is no request of the contract. ``id`` is the request's where it could be read."""

    def __init__(self, id: int | None, message: str) -> None:
        super().__init__(message)
        self.id = id


def parse(line: bytes) -> AnyRequest:
    """The request in one line of JSON. Raises :class:`MalformedRequest`."""
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(_id_of(line), str(error)) from error


def _id_of(line: bytes) -> int | None:
    try:
        loose: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    identity = loose.get("id") if isinstance(loose, dict) else None
    return identity if type(identity) is int else None
