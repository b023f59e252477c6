"""The requests of the adapter contract (``docs/adapter-contract.md``), read strictly."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Compression = Literal["lz4", "zlib", "zstd", "snappy"]
SubscriptionType = Literal["exclusive", "failover", "shared", "key_shared"]


class Malformed(ValueError):
    """A request that is not of the contract; ``request_id`` is None when it cannot be read."""

    def __init__(self, message: str, request_id: int | None) -> None:
        super().__init__(message)
        self.request_id = request_id


class Request(msgspec.Struct, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """Every request has an id; times are milliseconds."""

    id: int


class Hello(Request, tag="hello"):
    """Who are you."""

    contract: int


class Client(Request, tag="client"):
    """Open a client handle."""

    client: str
    url: str
    operation_timeout_ms: int | None = None


class Batching(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Caps of a batch."""

    max_messages: int = 1000
    max_bytes: int = 128 * 1024
    max_delay_ms: float = 10


class Producer(Request, tag="producer"):
    """Create a producer."""

    client: str
    producer: str
    topic: str
    name: str
    batching: Batching | None = None
    chunking: bool = False
    compression: Compression | None = None
    send_timeout_ms: int = 30_000
    initial_sequence_id: int | None = None
    max_pending: int = 1000
    block_if_full: bool = False


class Send(Request, tag="send"):
    """Send one message; ``payload`` is base64 in JSON."""

    producer: str
    payload: bytes
    sequence_id: int | None = None
    key: str | None = None
    properties: dict[str, str] = {}
    deliver_after_ms: int | None = None


class Flush(Request, tag="flush"):
    """Push out and wait."""

    producer: str


class DeadLetterPolicy(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``topic`` None: ``<topic>-<subscription>-DLQ``."""

    max_redeliver: int
    topic: str | None = None


class Consumer(Request, tag="consumer"):
    """Subscribe."""

    client: str
    consumer: str
    topic: str
    subscription: str
    name: str
    type: SubscriptionType
    initial_position: Literal["earliest", "latest"] = "latest"
    queue: int = 1000
    nack_delay_ms: int = 60_000
    ack_timeout_ms: int = 0
    dead_letter: DeadLetterPolicy | None = None
    max_pending_chunked: int = 10
    auto_ack_oldest_chunked: bool = False
    expire_chunks_ms: int = 60_000
    ack_group_ms: int = 100
    batch_index_ack: bool = False
    ack_receipt: bool | None = None


class Receive(Request, tag="receive"):
    """Wait for the next message."""

    consumer: str
    timeout_ms: int


class Ack(Request, tag="ack"):
    """Acknowledge one delivery."""

    consumer: str
    ref: int


class AckCumulative(Request, tag="ack_cumulative"):
    """Acknowledge a delivery and all before it."""

    consumer: str
    ref: int


class Nack(Request, tag="nack"):
    """Ask for a delivery again, later."""

    consumer: str
    ref: int


class Seek(Request, tag="seek"):
    """Move the subscription; exactly one of the three targets."""

    consumer: str
    ref: int | None = None
    publish_time: int | None = None
    position: Literal["earliest", "latest"] | None = None


class Unsubscribe(Request, tag="unsubscribe"):
    """Delete the subscription."""

    consumer: str


class Close(Request, tag="close"):
    """Close exactly one handle."""

    producer: str | None = None
    consumer: str | None = None
    client: str | None = None


AnyRequest = (
    Hello
    | Client
    | Producer
    | Send
    | Flush
    | Consumer
    | Receive
    | Ack
    | AckCumulative
    | Nack
    | Seek
    | Unsubscribe
    | Close
)


def read_request(message: Any) -> AnyRequest:
    """The typed request; raises ``Malformed``."""
    request_id = message.get("id") if isinstance(message, dict) else None
    if isinstance(request_id, bool) or not isinstance(request_id, int):
        request_id = None
    try:
        request: AnyRequest = msgspec.convert(message, AnyRequest)
    except msgspec.ValidationError as error:
        raise Malformed(str(error), request_id) from None
    if isinstance(request, Seek) and not _exactly_one(request.ref, request.publish_time, request.position):
        raise Malformed("seek needs exactly one of ref, publish_time, position", request_id)
    if isinstance(request, Close) and not _exactly_one(request.producer, request.consumer, request.client):
        raise Malformed("close needs exactly one of producer, consumer, client", request_id)
    return request


def _exactly_one(*values: object) -> bool:
    return sum(value is not None for value in values) == 1
