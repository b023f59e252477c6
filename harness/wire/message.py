"""What a SEND or MESSAGE frame carries for the application."""

from __future__ import annotations

from harness.wire import batch, codec
from harness.wire.chunk import is_piece
from harness.wire.frame import Frame, WireError
from harness.wire.pulsar_pb2 import CompressionType, MessageMetadata
from harness.wire.unknown import unknown_number


def is_batch(metadata: MessageMetadata) -> bool:
    """Whether the payload has the inside of a batch; a batch may hold one message (clause BATCH-02)."""
    return metadata.HasField("num_messages_in_batch")


def compression_of(metadata: MessageMetadata) -> CompressionType:
    """Compression type of the payload; ``WireError`` for one of a later revision."""
    number = unknown_number(metadata, MessageMetadata.COMPRESSION_FIELD_NUMBER)
    if number is not None:
        raise WireError("bad_compression", f"no compression type {number}")
    return metadata.compression


def application_payload(frame: Frame) -> bytes:
    """The payload decompressed: the application's bytes, or of a batch the members that ``batch.unpack`` reads.

    A piece of a chunked message and an encrypted message come back as they are stored, since neither can be
    decompressed by itself. Raises ``WireError`` when the payload cannot be read.
    """
    metadata = _metadata(frame)
    if is_piece(metadata) or metadata.encryption_keys:
        return frame.payload
    return codec.decompress(compression_of(metadata), frame.payload, metadata.uncompressed_size)


def batch_members(frame: Frame) -> list[batch.SingleMessage]:
    """Members of a batch, in order; ``WireError`` when they cannot be read."""
    return batch.unpack(application_payload(frame), _metadata(frame).num_messages_in_batch)


def _metadata(frame: Frame) -> MessageMetadata:
    if frame.metadata is None:
        raise WireError("bad_metadata", "the metadata cannot be read")
    return frame.metadata
