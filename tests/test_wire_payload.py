"""Payloads: batches, codecs, pieces, ids and topic names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.wire import codec, topic_name
from harness.wire.batch import SingleMessage, pack, unpack
from harness.wire.chunk import ChunkLabel, is_piece, split
from harness.wire.frame import Frame, WireError
from harness.wire.message import application_payload, batch_members, is_batch
from harness.wire.message_id import LATEST, SENTINEL, Position, batch_index, stored_position
from harness.wire.pulsar_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    BaseCommand,
    CommandSend,
    CompressionType,
    EncryptionKeys,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
)

KINDS = (NONE, LZ4, ZLIB, ZSTD, SNAPPY)
COMMAND = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=2))

payloads = st.binary(max_size=300) | st.builds(
    lambda piece, count: piece * count, st.binary(max_size=9), st.integers(0, 500)
)
members = st.builds(
    lambda key, number, payload: SingleMessage(
        SingleMessageMetadata(partition_key=key, sequence_id=number, payload_size=len(payload)), payload
    ),
    st.text(max_size=5),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=50),
)


def metadata(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=2, publish_time=3, **fields)  # type: ignore[arg-type]


@given(st.lists(members, min_size=1, max_size=8))
def test_a_batch_survives_packing(batch: list[SingleMessage]) -> None:
    assert unpack(pack(batch), len(batch)) == batch


@given(st.lists(members, min_size=1, max_size=4), st.integers(-2, 8), st.binary(max_size=3))
def test_a_batch_with_another_count_or_length_is_refused(batch: list[SingleMessage], count: int, rest: bytes) -> None:
    if count != len(batch) or rest:
        with pytest.raises(WireError, match="bad_batch"):
            unpack(pack(batch) + rest, count)


def test_a_negative_member_size_is_refused() -> None:
    header = SingleMessageMetadata(payload_size=-1).SerializeToString()
    with pytest.raises(WireError, match="bad_batch"):
        unpack(len(header).to_bytes(4, "big") + header + b"x", 1)


@given(st.sampled_from(KINDS), payloads)
def test_codecs_are_lossless(kind: CompressionType, data: bytes) -> None:
    assert codec.decompress(kind, codec.compress(kind, data), len(data)) == data


@given(st.sampled_from(KINDS[1:]), payloads, st.integers(0, 2**32 - 1))
def test_another_uncompressed_size_is_refused(kind: CompressionType, data: bytes, size: int) -> None:
    size = min(size, 2 * len(data) + 1) if size % 2 else size
    if size != len(data) and (size <= 10_000 or size > codec.MAX_UNCOMPRESSED_SIZE):
        with pytest.raises(WireError) as raised:
            codec.decompress(kind, codec.compress(kind, data), size)
        assert raised.value.kind in ("bad_compression", "uncompressed_size")


def test_a_small_bomb_does_not_explode() -> None:
    for kind in KINDS[1:]:
        bomb = codec.compress(kind, bytes(32 * 1024 * 1024))
        with pytest.raises(WireError):
            codec.decompress(kind, bomb, 100)


@given(st.binary(max_size=200), st.integers(1, 60))
def test_pieces_join_and_are_as_large_as_they_may(data: bytes, size: int) -> None:
    pieces = split(data, size)
    assert b"".join(pieces) == data
    assert len(pieces) == max(1, -(-len(data) // size))
    assert all(len(piece) == size for piece in pieces[:-1])
    assert len(pieces[-1]) <= size


def test_pieces_of_no_size_are_refused() -> None:
    with pytest.raises(ValueError, match="0 bytes"):
        split(b"x", 0)


@given(st.text(max_size=9), st.integers(-1, 5), st.integers(2, 9), st.integers(0, 2**31 - 1))
def test_a_chunk_label_survives_the_metadata(uuid: str, chunk: int, count: int, total: int) -> None:
    label = ChunkLabel(uuid, chunk, count, total)
    carrier = metadata()
    assert ChunkLabel.read(carrier) is None
    label.write(carrier)
    assert is_piece(carrier)
    assert ChunkLabel.read(MessageMetadata.FromString(carrier.SerializeToString())) == label


def test_one_piece_is_a_plain_message() -> None:
    carrier = metadata()
    ChunkLabel("u", 0, 1, 5).write(carrier)
    assert ChunkLabel.read(carrier) is None


@given(st.sampled_from(KINDS), payloads)
def test_application_payload_is_decompressed(kind: CompressionType, data: bytes) -> None:
    frame = Frame(COMMAND, metadata(compression=kind, uncompressed_size=len(data)), codec.compress(kind, data))
    assert application_payload(frame) == data


def test_application_payload_of_pieces_and_encrypted_messages_is_left_alone() -> None:
    piece = metadata(compression=LZ4, uncompressed_size=9)
    ChunkLabel("u", 0, 2, 5).write(piece)
    assert application_payload(Frame(COMMAND, piece, b"piece")) == b"piece"
    sealed = metadata(compression=LZ4, uncompressed_size=9, encryption_keys=[EncryptionKeys(key="k", value=b"v")])
    assert application_payload(Frame(COMMAND, sealed, b"sealed")) == b"sealed"


def test_members_of_a_compressed_batch() -> None:
    batch = [
        SingleMessage(SingleMessageMetadata(payload_size=1), b"a"),
        SingleMessage(SingleMessageMetadata(payload_size=0), b""),
    ]
    inside = pack(batch)
    carrier = metadata(compression=ZSTD, uncompressed_size=len(inside), num_messages_in_batch=2)
    assert is_batch(carrier)
    assert batch_members(Frame(COMMAND, carrier, codec.compress(ZSTD, inside))) == batch


def test_unknown_compression_and_missing_metadata_are_wire_errors() -> None:
    newer = MessageMetadata.FromString(metadata().SerializePartialToString() + b"\x40\x63")
    with pytest.raises(WireError, match="no compression type 99"):
        application_payload(Frame(COMMAND, newer, b"x"))
    with pytest.raises(WireError, match="bad_metadata"):
        application_payload(Frame(COMMAND, None, b"x", checksum_ok=False))


positions = st.builds(Position, st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1))


@given(positions, positions, positions)
def test_positions_are_in_one_order(one: Position, two: Position, three: Position) -> None:
    assert (one < two) + (one == two) + (one > two) == 1
    if one <= two <= three:
        assert one <= three
    assert SENTINEL <= one <= LATEST


@given(positions)
def test_a_position_survives_the_wire(position: Position) -> None:
    data = MessageIdData.FromString(position.write().SerializeToString())
    assert Position.read(data) == position
    assert stored_position(data) == (None if position.is_sentinel else position)


def test_sentinels() -> None:
    nothing = MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    assert Position.read(nothing) == SENTINEL
    assert SENTINEL.write() == nothing
    assert batch_index(nothing) is None
    assert batch_index(MessageIdData(ledgerId=1, entryId=1, batch_index=-1)) is None
    assert batch_index(SENTINEL.write(batch_index=0)) == 0
    assert SENTINEL.write(partition=3).partition == 3


@pytest.mark.parametrize(
    ("short", "complete", "partition"),
    [
        ("x", "persistent://public/default/x", None),
        ("a/b/x", "persistent://a/b/x", None),
        ("x-partition-0", "persistent://public/default/x-partition-0", 0),
        ("persistent://a/b/x-partition-12", "persistent://a/b/x-partition-12", 12),
        ("non-persistent://a/b/x-partition-", "non-persistent://a/b/x-partition-", None),
        ("x-partition-01", "persistent://public/default/x-partition-01", None),
        ("a/b/c/x", "a/b/c/x", None),
        ("", "", None),
    ],
)
def test_topic_names(short: str, complete: str, partition: int | None) -> None:
    assert topic_name.complete(short) == complete
    assert topic_name.complete(complete) == complete
    assert topic_name.partition(complete) == partition
