"""How a message that is too large for one frame is cut (clauses CHUNK-02, CHUNK-03)."""

from __future__ import annotations

from harness.wire.chunk import ChunkLabel, split
from harness.wire.pulsar_pb2 import MessageMetadata

_LARGEST = 2**31 - 1


class ChunkSplitter:
    """Cuts the compressed payload; ``limit`` is what the broker takes for metadata and payload together, in bytes."""

    def pieces(self, metadata: MessageMetadata, payload: bytes, limit: int) -> list[tuple[MessageMetadata, bytes]]:
        """Metadata and bytes of each piece, in order; one unlabelled piece when everything fits.

        Raises ``ValueError`` when the metadata alone leaves no room for a piece.
        """
        size = self.piece_size(metadata, limit)
        if size < 1:
            raise ValueError(f"metadata of {metadata.ByteSize()} bytes leaves no room in {limit}")
        if len(payload) <= size:
            return [(metadata, payload)]
        parts = split(payload, size)
        uuid = self.uuid(metadata)
        labelled: list[tuple[MessageMetadata, bytes]] = []
        for chunk_id, part in enumerate(parts):
            piece = MessageMetadata()
            piece.CopyFrom(metadata)
            ChunkLabel(uuid, chunk_id, len(parts), len(payload)).write(piece)
            labelled.append((piece, part))
        return labelled

    def piece_size(self, metadata: MessageMetadata, limit: int) -> int:
        """Bytes of every piece but the last, equal for all: the limit less the largest metadata a piece may need."""
        widest = MessageMetadata()
        widest.CopyFrom(metadata)
        ChunkLabel(self.uuid(metadata), _LARGEST, _LARGEST, _LARGEST).write(widest)
        return limit - widest.ByteSize()

    def uuid(self, metadata: MessageMetadata) -> str:
        """Producer name and sequence id."""
        return f"{metadata.producer_name}-{metadata.sequence_id}"
