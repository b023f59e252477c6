"""Bytes of a real client and a real broker decode, and encode to themselves."""

from __future__ import annotations

import random

import pytest

from harness.wire import codec
from harness.wire.chunk import ChunkLabel
from harness.wire.frame import Frame, FrameDecoder, command_name, encode, entry_bytes
from harness.wire.message import application_payload, batch_members
from harness.wire.pulsar_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, BaseCommand
from tests.golden_capture import CAPTURES, frames, streams

EXPECTED = {"assigned_name", "chunks", "codecs", "partitions", "plain", "redelivery"}


def of_type(name: str, kind: BaseCommand.Type) -> list[Frame]:
    return [frame for _, _, frame in frames(name) if frame.command.type == kind]


def test_all_captures_are_there() -> None:
    assert set(CAPTURES) == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_streams_encode_to_themselves(name: str) -> None:
    for stream in streams(name).values():
        decoder = FrameDecoder()
        decoded = decoder.feed(stream)
        assert decoder.buffered == 0
        assert b"".join(frame.raw or b"" for frame in decoded) == stream
        assert b"".join(encode(frame, checksum=frame.checksum_ok is not None) for frame in decoded) == stream


def test_client_writes_checksums_that_hold() -> None:
    assert {frame.checksum_ok for name in EXPECTED for frame in of_type(name, BaseCommand.SEND)} == {True}


def test_codecs_of_the_client_are_ours() -> None:
    sent = of_type("codecs", BaseCommand.SEND)
    seen = []
    for alone, together in zip(sent[::2], sent[1::2], strict=True):
        assert alone.metadata is not None
        name = alone.metadata.producer_name.removesuffix("-alone")
        seen.append(alone.metadata.compression)
        assert application_payload(alone) == name.encode() * 100
        members = batch_members(together)
        assert [member.payload for member in members] == [f"{name}-{number}".encode() * 50 for number in range(3)]
        assert [member.metadata.partition_key for member in members] == ["k0", "k1", "k2"]
        kind = alone.metadata.compression
        assert codec.decompress(kind, codec.compress(kind, name.encode() * 100), len(name) * 100) == name.encode() * 100
    assert seen == [NONE, LZ4, ZLIB, ZSTD, SNAPPY]


@pytest.mark.parametrize("kind", [BaseCommand.SEND, BaseCommand.MESSAGE])
def test_pieces_of_a_chunked_message_join(kind: BaseCommand.Type) -> None:
    pieces = of_type("chunks", kind)
    labels = [ChunkLabel.read(piece.metadata) for piece in pieces if piece.metadata is not None]
    total = 3 * 16 * 1024
    assert labels == [ChunkLabel("p-0", number, 4, total) for number in range(4)]
    assert b"".join(piece.payload for piece in pieces) == random.Random(7).randbytes(total)


@pytest.mark.parametrize("name", sorted(EXPECTED - {"redelivery"}))
def test_what_is_delivered_is_what_was_sent(name: str) -> None:
    sent = {entry_bytes(frame) for frame in of_type(name, BaseCommand.SEND)}
    delivered = {entry_bytes(frame) for frame in of_type(name, BaseCommand.MESSAGE)}
    assert sent
    assert delivered == (set() if name == "assigned_name" else sent)


def test_commands_of_an_ordinary_session() -> None:
    seen = {command_name(frame.command) for name in EXPECTED for _, _, frame in frames(name)}
    assert seen >= {
        "CONNECT",
        "CONNECTED",
        "LOOKUP",
        "SUBSCRIBE",
        "FLOW",
        "SEND",
        "SEND_RECEIPT",
        "MESSAGE",
        "ACK",
        "SEEK",
    }
    assert not any(kind.startswith("UNKNOWN") for kind in seen)
