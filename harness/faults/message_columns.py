"""Event columns of a stored message: what SEND, MESSAGE and ENTRY events have in common (``docs/history.md``)."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from harness.wire.chunk import is_piece
from harness.wire.frame import Frame, WireError, entry_bytes
from harness.wire.message import application_payload, batch_members, compression_of, is_batch
from harness.wire.pulsar_pb2 import NONE, CompressionType, MessageMetadata, SingleMessageMetadata

_DIGEST_CHARACTERS: Final = 16
_SIGN: Final = 1 << 63
_PLAIN_FIELDS: Final = ("publish_time", "event_time", "uncompressed_size", "total_chunk_msg_size", "deliver_at_time")


def digest(data: bytes) -> str:
    """First 16 hex digits of SHA-256."""
    return hashlib.sha256(data).hexdigest()[:_DIGEST_CHARACTERS]


def signed(number: int) -> int:
    """An unsigned number of the wire as the signed 64-bit number that a history holds."""
    return number - 2 * _SIGN if number >= _SIGN else number


def present(number: int) -> int | None:
    """The signed number, None for -1 and below: histories have no sentinels."""
    value = signed(number)
    return value if value >= 0 else None


def text(value: str | bytes) -> str:
    """A string field as text. Strings that are not UTF-8 come out of protobuf as bytes; each bad byte is escaped."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def message_columns(frame: Frame) -> dict[str, Any]:
    """Columns about payload, pieces and metadata of a SEND or MESSAGE frame, its ``extra`` among them.

    Of a frame whose checksum is wrong the columns say what its bytes say; what cannot be read stays absent, and
    ``extra.payload_error`` names the kind of wire error for a payload that does not fit its metadata.
    """
    extra: dict[str, Any] = {
        "checksum_ok": frame.checksum_ok,
        "frame_digest": digest(entry_bytes(frame)),
        "stored_size": len(frame.payload),
    }
    columns: dict[str, Any] = {"extra": extra}
    metadata = frame.metadata
    if metadata is None:
        return columns
    extra["metadata"] = _metadata_columns(metadata)
    if metadata.HasField("uuid"):
        columns["chunk_uuid"] = text(metadata.uuid)
    if metadata.HasField("chunk_id"):
        columns["chunk_id"] = metadata.chunk_id
    if metadata.HasField("num_chunks_from_msg"):
        columns["num_chunks"] = metadata.num_chunks_from_msg
    if frame.broker_metadata is not None:
        broker = frame.broker_metadata
        extra["broker_metadata"] = {
            name: signed(getattr(broker, name)) for name in ("broker_timestamp", "index") if broker.HasField(name)
        }
    try:
        if is_piece(metadata):
            columns |= {"payload_digest": digest(frame.payload), "payload_size": len(frame.payload)}
        elif metadata.encryption_keys:
            extra["encrypted"] = True
        elif is_batch(metadata):
            extra["messages"] = [_member_columns(member.metadata, member.payload) for member in batch_members(frame)]
        else:
            payload = application_payload(frame)
            columns |= {"payload_digest": digest(payload), "payload_size": len(payload)}
    except WireError as error:
        extra["payload_error"] = error.kind
    return columns


def _metadata_columns(metadata: MessageMetadata) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "producer_name": text(metadata.producer_name),
        "sequence_id": signed(metadata.sequence_id),
    }
    columns |= {name: signed(getattr(metadata, name)) for name in _PLAIN_FIELDS if metadata.HasField(name)}
    for name in ("highest_sequence_id", "num_messages_in_batch", "marker_type"):
        if metadata.HasField(name):
            columns[name] = signed(getattr(metadata, name))
    for name in ("partition_key", "replicated_from"):
        if metadata.HasField(name):
            columns[name] = text(getattr(metadata, name))
    if metadata.properties:
        columns["properties"] = {text(pair.key): text(pair.value) for pair in metadata.properties}
    try:
        compression = compression_of(metadata)
    except WireError:
        columns["compression"] = "unknown"
    else:
        if compression != NONE:
            columns["compression"] = CompressionType.Name(compression).lower()
    return columns


def _member_columns(metadata: SingleMessageMetadata, payload: bytes) -> dict[str, Any]:
    return {
        "digest": digest(payload),
        "size": len(payload),
        "sequence_id": signed(metadata.sequence_id) if metadata.HasField("sequence_id") else None,
        "key": text(metadata.partition_key) if metadata.HasField("partition_key") else None,
    }
