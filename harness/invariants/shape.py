"""What a fold may rely on: a value of ``extra`` has the type of the event contract, or it is not there.

Histories come from other tools too, and what was damaged on the wire is recorded as it was. An invariant must not break
over either; a value that is not what the contract says is read as missing.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

from harness.history.event import Event

MOST = 1 << 20
"""More members than any frame of the protocol can hold: 5 MiB, and a member takes at least six bytes."""

Number = int | None
Text = str | None
Small = Annotated[int, Meta(ge=0, le=MOST)] | None
Milliseconds = int | float | None
Pair = Annotated[list[int], Meta(min_length=2)] | None
Texts = dict[str, Text] | None


class _Id(TypedDict, total=False):
    ledger: Number
    entry: Number
    batch_index: Small
    ack_set: Annotated[list[int], Meta(max_length=MOST // 64)] | None
    batch_size: Small
    first_chunk: Pair


class _Message(TypedDict, total=False):
    digest: Text
    size: Number
    sequence_id: Number
    key: Text


class _Metadata(TypedDict, total=False):
    sequence_id: Number
    producer_name: Text
    publish_time: Number
    compression: str | int | None
    uncompressed_size: Number
    total_chunk_msg_size: Number
    deliver_at_time: Number
    num_messages_in_batch: Number
    partition_key: Text
    properties: Texts


class _DeadLetter(TypedDict, total=False):
    max_redeliver: Number
    topic: Text


class _Batching(TypedDict, total=False):
    max_messages: Number
    max_bytes: Number
    max_delay_ms: Milliseconds


class _Options(TypedDict, total=False):
    dead_letter: _DeadLetter | None
    batching: _Batching | None
    nack_delay_ms: Milliseconds
    ack_timeout_ms: Milliseconds
    ack_group_ms: Milliseconds
    expire_chunks_ms: Milliseconds
    max_pending_chunked: Number
    queue: Number
    initial_sequence_id: Number


class _Extra(TypedDict, total=False):
    ids: list[_Id] | None
    messages: list[_Message] | None
    metadata: _Metadata | None
    options: _Options | None
    properties: Texts
    key: Text
    first_chunk: Pair
    checksum_ok: bool | None
    complete: bool | None
    drained: bool | None
    duplicate: bool | None
    enabled: bool | None
    durable: bool | None
    ready: bool | None
    is_chunk: bool | None
    producer_id: Number
    consumer_id: Number
    last_sequence_id: Number
    max_message_size: Number
    protocol_version: Number
    stored_size: Number
    backlog: Number
    asked_ns: Number
    fault: Text
    frame_digest: Text
    client_version: Text
    request: Text
    type: Text
    by: Text
    direction: Text
    initial_position: Text
    payload_error: Text
    individually_deleted: list[list[int]] | None


def shaped(event: Event) -> Event:
    """The event itself, or a copy without the values that the contract does not allow."""
    changes: dict[str, Any] = {}
    if event.extra and not _fits(event.extra):
        changes["extra"] = {name: value for name, value in event.extra.items() if _fits({name: value})}
    number, index = event.num_messages, event.batch_index
    if number is not None and not 0 <= number <= MOST:
        changes["num_messages"] = None
    if index is not None and not 0 <= index <= MOST:
        changes["batch_index"] = None
    low, high = event.sequence_id, event.highest_sequence_id
    if low is not None and high is not None and high - low > MOST:
        changes["highest_sequence_id"] = None
    return msgspec.structs.replace(event, **changes) if changes else event


def _fits(extra: dict[str, Any]) -> bool:
    # All values at once: this is asked of every event.
    try:
        msgspec.convert(extra, _Extra)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True
