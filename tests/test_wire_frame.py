"""Frames: any frame, any split of the stream, and what is refused."""

from __future__ import annotations

import struct
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.wire.frame import (
    DEFAULT_MAX_FRAME_SIZE,
    Frame,
    FrameDecoder,
    WireError,
    command_name,
    decode,
    encode,
    entry_bytes,
)
from harness.wire.pulsar_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    CommandError,
    CommandFlow,
    CommandMessage,
    CommandPing,
    CommandSend,
    CommandSuccess,
    KeyValue,
    MessageIdData,
    MessageMetadata,
    ServerError,
)
from harness.wire.unknown import enum_name

words = st.integers(0, 2**64 - 1)
texts = st.text(max_size=12)


@st.composite
def metadatas(draw: st.DrawFn) -> MessageMetadata:
    metadata = MessageMetadata(producer_name=draw(texts), sequence_id=draw(words), publish_time=draw(words))
    for name, values in (
        ("partition_key", texts),
        ("highest_sequence_id", words),
        ("num_messages_in_batch", st.integers(-5, 1000)),
        ("uuid", texts),
        ("chunk_id", st.integers(-1, 10)),
        ("deliver_at_time", st.integers(-(2**63), 2**63 - 1)),
        ("ordering_key", st.binary(max_size=5)),
    ):
        if draw(st.booleans()):
            setattr(metadata, name, draw(values))
    pairs = draw(st.lists(st.tuples(texts, texts), max_size=3))
    metadata.properties.extend(KeyValue(key=key, value=value) for key, value in pairs)
    return metadata


@st.composite
def frames_with_message(draw: st.DrawFn) -> Frame:
    if draw(st.booleans()):
        send = CommandSend(producer_id=draw(words), sequence_id=draw(words), num_messages=draw(st.integers(0, 9)))
        command = BaseCommand(type=BaseCommand.SEND, send=send)
    else:
        message = CommandMessage(consumer_id=draw(words), message_id=MessageIdData(ledgerId=draw(words), entryId=0))
        command = BaseCommand(type=BaseCommand.MESSAGE, message=message)
    broker = BrokerEntryMetadata(index=draw(words)) if draw(st.booleans()) else None
    checksum_ok = True if draw(st.booleans()) else None
    return Frame(command, draw(metadatas()), draw(st.binary(max_size=200)), checksum_ok, broker)


plain_frames = st.one_of(
    st.builds(
        lambda number: Frame(BaseCommand(type=BaseCommand.SUCCESS, success=CommandSuccess(request_id=number))), words
    ),
    st.builds(
        lambda consumer, permits: Frame(
            BaseCommand(type=BaseCommand.FLOW, flow=CommandFlow(consumer_id=consumer, messagePermits=permits))
        ),
        words,
        st.integers(0, 2**32 - 1),
    ),
    st.just(Frame(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))),
)
any_frames = plain_frames | frames_with_message()


def wire(frame: Frame) -> bytes:
    return encode(frame, checksum=frame.checksum_ok is not None)


def a_message(payload: bytes = b"payload") -> Frame:
    command = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=2))
    return Frame(command, MessageMetadata(producer_name="p", sequence_id=2, publish_time=3), payload, True)


def framed(command: bytes, rest: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(command) + len(rest), len(command)) + command + rest


@given(any_frames)
def test_a_frame_survives_encoding(frame: Frame) -> None:
    raw = wire(frame)
    decoded = decode(raw)
    assert decoded == frame
    assert decoded.raw == raw
    assert wire(replace(decoded, raw=None)) == raw


@given(st.lists(any_frames, max_size=6), st.data())
def test_the_split_of_a_stream_changes_nothing(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(map(wire, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8), label="cuts"))
    decoder = FrameDecoder()
    received: list[Frame] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[begin:end])
    assert received == sent
    assert decoder.buffered == 0


@given(frames_with_message(), st.data())
def test_a_flipped_bit_behind_the_checksum_is_seen(frame: Frame, data: st.DataObject) -> None:
    raw = bytearray(encode(frame))
    covered = (
        len(encode(frame)) - len(frame.payload) - len(frame.metadata.SerializeToString() if frame.metadata else b"")
    )
    at = data.draw(st.integers(covered - 4, len(raw) - 1), label="byte")
    raw[at] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    assert decode(bytes(raw)).checksum_ok is False


def test_wrong_checksum_with_unreadable_metadata_keeps_the_rest() -> None:
    raw = encode(a_message())
    size_at = raw.index(b"\x0e\x01") + 6
    damaged = raw[:size_at] + b"\xff\xff\xff\xff" + raw[size_at + 4 :]
    frame = decode(damaged)
    assert (frame.metadata, frame.checksum_ok) == (None, False)
    assert frame.payload == damaged[size_at:]
    assert entry_bytes(frame) == damaged[size_at:]


def test_entry_bytes_do_not_depend_on_what_travels_around_them() -> None:
    message = a_message()
    assert message.metadata is not None
    expected = message.metadata.SerializeToString() + b"payload"
    for broker in (None, BrokerEntryMetadata(index=1)):
        frame = replace(message, broker_metadata=broker)
        for checksum in (True, False):
            assert entry_bytes(decode(encode(frame, checksum=checksum))) == expected
        assert entry_bytes(frame) == expected


def test_metadata_of_another_encoder_keeps_its_bytes() -> None:
    # Fields in falling order: legal, and nothing our encoder would write.
    metadata = b"\x18\x03\x10\x02\x0a\x01p"
    command = a_message().command.SerializeToString()
    frame = decode(framed(command, struct.pack(">I", len(metadata)) + metadata + b"x"))
    assert frame.metadata == MessageMetadata(producer_name="p", sequence_id=2, publish_time=3)
    assert entry_bytes(frame) == metadata + b"x"


def test_fields_of_a_later_revision_survive() -> None:
    command = BaseCommand(type=BaseCommand.SUCCESS, success=CommandSuccess(request_id=1)).SerializeToString()
    raw = framed(command + b"\xfa\x3e\x03new")
    assert encode(decode(raw)) == raw


def test_commands_and_errors_of_a_later_revision_are_frames() -> None:
    raw = framed(b"\x08\x63\x9a\x06\x01x", b"whatever follows")
    frame = decode(raw)
    assert command_name(frame.command) == "UNKNOWN_99"
    assert frame.payload == b"whatever follows"
    error = BaseCommand(
        type=BaseCommand.ERROR, error=CommandError(request_id=1, error=ServerError.UnknownError, message="m")
    ).SerializeToString()
    newer = decode(framed(error.replace(b"\x10\x00", b"\x10\x63")))
    assert enum_name(newer.command.error, "error") == "unknown_99"


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"\x00\x00\x00\x03\x00\x00\x00\x00", "size_mismatch"),
        (struct.pack(">II", 4, 1), "size_mismatch"),
        (struct.pack(">I", 2**31) + b"\0", "frame_too_large"),
        (struct.pack(">I", 2**32 - 1), "frame_too_large"),
        (framed(b""), "bad_command"),
        (framed(b"\xff\xff"), "bad_command"),
        (framed(b"\x08\x06"), "bad_command"),
        (framed(b"\x08\x06\x32\x02\x08\x01"), "bad_command"),
        (framed(b"\x08\x12", b"x"), "size_mismatch"),
        (framed(a_message().command.SerializeToString()), "truncated"),
        (framed(a_message().command.SerializeToString(), b"\x0e\x01\0\0"), "truncated"),
        (framed(a_message().command.SerializeToString(), b"\x0e\x02\0\0\0\x09"), "truncated"),
        (framed(a_message().command.SerializeToString(), b"\x0e\x02\0\0\0\x01\xff"), "bad_broker_metadata"),
        (framed(a_message().command.SerializeToString(), b"\0\0\0\x01\xff"), "bad_metadata"),
        (framed(a_message().command.SerializeToString(), b"\0\0\0\x00"), "bad_metadata"),
        (framed(a_message().command.SerializeToString(), b"\0\0\0\x05x"), "truncated"),
    ],
)
def test_bytes_that_are_no_frame_are_refused(raw: bytes, kind: str) -> None:
    good = wire(Frame(BaseCommand(type=BaseCommand.PING, ping=CommandPing())))
    decoder = FrameDecoder()
    with pytest.raises(WireError) as first:
        decoder.feed(good + raw + good)
    assert first.value.kind == kind
    assert [command_name(frame.command) for frame in first.value.frames] == ["PING"]
    assert decoder.buffered == 0
    with pytest.raises(WireError) as second:
        decoder.feed(good)
    assert (second.value.kind, second.value.frames) == (kind, ())


@pytest.mark.parametrize(("spare", "accepted"), [(0, True), (-1, False)])
def test_largest_frame(spare: int, accepted: bool) -> None:
    raw = wire(a_message(b"x" * 1000))
    decoder = FrameDecoder(max_frame_size=len(raw) + spare)
    if accepted:
        assert len(decoder.feed(raw)) == 1
    else:
        with pytest.raises(WireError, match="frame_too_large"):
            decoder.feed(raw)


def test_default_largest_frame_is_a_brokers() -> None:
    assert DEFAULT_MAX_FRAME_SIZE == 5_253_120


def test_encode_refuses_what_no_frame_can_say() -> None:
    with pytest.raises(ValueError, match="sequence_id"):
        encode(Frame(BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1))))
    with pytest.raises(ValueError, match="needs metadata"):
        encode(replace(a_message(), metadata=None))


def test_feeding_byte_by_byte_is_linear() -> None:
    """A copy of the buffer for each byte would be 137 GB of copying here, far beyond the limit."""
    raw = wire(a_message(bytes(512 * 1024)))
    decoder = FrameDecoder()
    began = time.process_time()
    count = sum(len(decoder.feed(raw[at : at + 1])) for at in range(len(raw)))
    assert count == 1
    assert time.process_time() - began < 5
