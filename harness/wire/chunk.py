"""Pieces of a message that is too large for one frame (clauses CHUNK-02, CHUNK-03)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.wire.pulsar_pb2 import MessageMetadata


def is_piece(metadata: MessageMetadata) -> bool:
    """Whether this is a piece of a message in several: the number of pieces alone decides, as it does in clients."""
    return metadata.num_chunks_from_msg > 1


@dataclass(frozen=True, slots=True)
class ChunkLabel:
    """What the metadata of a piece says. ``total_size``: bytes of all pieces together, after compression."""

    uuid: str
    chunk_id: int
    num_chunks: int
    total_size: int

    @classmethod
    def read(cls, metadata: MessageMetadata) -> ChunkLabel | None:
        """None for a message that is no piece; the numbers are given as they came, however odd."""
        if not is_piece(metadata):
            return None
        return cls(metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size)

    def write(self, metadata: MessageMetadata) -> None:
        """Sets fields 26-29 of ``metadata``."""
        metadata.uuid = self.uuid
        metadata.chunk_id = self.chunk_id
        metadata.num_chunks_from_msg = self.num_chunks
        metadata.total_chunk_msg_size = self.total_size


def split(data: bytes, size: int) -> list[bytes]:
    """Pieces of exactly ``size`` bytes, the last one with the rest; one (perhaps empty) piece at least."""
    if size < 1:
        raise ValueError(f"pieces of {size} bytes")
    return [data[at : at + size] for at in range(0, len(data), size)] or [b""]
