"""One entry of a topic: what one SEND left behind."""

from __future__ import annotations

from dataclasses import dataclass

from harness.wire.frame import Frame
from harness.wire.pulsar_pb2 import MessageMetadata


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """``body`` is everything after the command in the producer's frame; consumers get these bytes (DISPATCH-04).

    ``sequence_id`` is the lowest one of a batch, ``highest_sequence_id`` the highest when the producer told it.
    """

    ledger: int
    entry: int
    producer: str
    sequence_id: int
    highest_sequence_id: int | None
    num_messages: int
    metadata: MessageMetadata
    payload: bytes
    body: bytes

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id that this entry covers, as far as the broker knows."""
        if self.highest_sequence_id is None:
            return self.sequence_id
        return max(self.sequence_id, self.highest_sequence_id)

    @property
    def is_batch(self) -> bool:
        return self.metadata.HasField("num_messages_in_batch")

    @property
    def sticky_key(self) -> bytes:
        """What Key_Shared hashes: ordering key, else partition key, else what is unique to the message (KEYHASH-01)."""
        metadata = self.metadata
        if metadata.HasField("ordering_key"):
            return bytes(metadata.ordering_key)
        if metadata.HasField("partition_key"):
            key: str | bytes = metadata.partition_key  # bytes when it is not UTF-8
            return key if isinstance(key, bytes) else key.encode()
        return f"{self.producer}-{self.sequence_id}".encode()


def body_of(frame: Frame) -> bytes:
    """The bytes behind the command of a decoded SEND."""
    raw = frame.raw
    if raw is None:
        raise ValueError("only a frame that came from bytes has a body")
    return raw[8 + int.from_bytes(raw[4:8], "big") :]


def is_chunk_before_last(metadata: MessageMetadata) -> bool:
    """Whether ``metadata`` labels a piece of a chunked message other than its last (DEDUP-08)."""
    if not metadata.HasField("chunk_id") or not metadata.HasField("num_chunks_from_msg"):
        return False
    return metadata.chunk_id < metadata.num_chunks_from_msg - 1
