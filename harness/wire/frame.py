"""Frames of the binary protocol: bytes to messages and back.

Layout (all sizes 4 bytes, big-endian; clauses META-01, META-02, SEND-01)::

    total size | command size | BaseCommand                                   a plain command
    ... | [0x0e02 | size | BrokerEntryMetadata] [0x0e01 | CRC32C]
        | metadata size | MessageMetadata | payload                           SEND and MESSAGE

The total size does not count itself; the checksum covers everything after itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import crc32c
from google.protobuf.message import DecodeError, Message

from harness.wire.pulsar_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata
from harness.wire.unknown import missing_fields, unknown_number

WireErrorKind: TypeAlias = Literal[
    "frame_too_large",
    "size_mismatch",
    "truncated",
    "bad_command",
    "bad_metadata",
    "bad_broker_metadata",
    "bad_batch",
    "bad_compression",
    "uncompressed_size",
]
CommandType: TypeAlias = BaseCommand.Type

MAGIC_CHECKSUM: Final = 0x0E01
MAGIC_BROKER_METADATA: Final = 0x0E02

#: A broker takes messages of 5 MiB and allows 10 KiB for everything around them (clause SEND-05).
DEFAULT_MAX_FRAME_SIZE: Final = 5 * 1024 * 1024 + 10 * 1024

_SIZE: Final = struct.Struct(">I")
_MAGIC: Final = struct.Struct(">H")
_BODIES: Final = {number: BaseCommand.DESCRIPTOR.fields_by_number[number].name for number in BaseCommand.Type.values()}
# Nothing is in them, so peers may leave them out.
_EMPTY_BODIES: Final = frozenset({BaseCommand.PING, BaseCommand.PONG})
_WITH_MESSAGE: Final = frozenset({BaseCommand.SEND, BaseCommand.MESSAGE})


class WireError(Exception):
    """Bytes that do not mean anything: no frame, or a payload (the last three kinds) that its metadata does not fit.

    ``frames`` are the good frames that the same ``feed`` completed before the bad bytes.
    """

    def __init__(self, kind: WireErrorKind, message: str, frames: tuple[Frame, ...] = ()) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind: WireErrorKind = kind
        self.message = message
        self.frames = frames


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame.

    ``checksum_ok`` is None without checksum. With a wrong one, ``metadata`` is None when the bytes cannot be read;
    ``payload`` then holds everything after the checksum. ``raw`` are the bytes the frame came from (None when it was
    built here); a relay forwards these. Two frames are equal when they say the same, whatever their ``raw``.
    """

    command: BaseCommand
    metadata: MessageMetadata | None = None
    payload: bytes = b""
    checksum_ok: bool | None = None
    broker_metadata: BrokerEntryMetadata | None = None
    raw: bytes | None = field(default=None, compare=False, repr=False)


def command_name(command: BaseCommand) -> str:
    """``SEND`` for the command; ``UNKNOWN_99`` for a type of a later revision."""
    if command.HasField("type"):
        return BaseCommand.Type.Name(command.type)
    return f"UNKNOWN_{unknown_number(command, BaseCommand.TYPE_FIELD_NUMBER)}"


def encode(frame: Frame, *, checksum: bool = True) -> bytes:
    """Bytes of ``frame``, built from its parts and not from ``raw``.

    ``checksum`` applies to frames with metadata; the checksum written is always right. Raises ``ValueError`` when a
    required field is missing, or when a payload has no metadata to go with.
    """
    command = _serialise(frame.command)
    parts = [command]
    if frame.metadata is not None:
        if frame.broker_metadata is not None:
            broker = _serialise(frame.broker_metadata)
            parts += [_MAGIC.pack(MAGIC_BROKER_METADATA), _SIZE.pack(len(broker)), broker]
        metadata = _serialise(frame.metadata)
        head = _SIZE.pack(len(metadata)) + metadata
        if checksum:
            parts += [_MAGIC.pack(MAGIC_CHECKSUM), _SIZE.pack(crc32c.crc32c(frame.payload, crc32c.crc32c(head)))]
        parts += [head, frame.payload]
    elif frame.payload or frame.broker_metadata is not None:
        raise ValueError("a frame with a payload needs metadata")
    total = _SIZE.size + sum(map(len, parts))
    return b"".join([_SIZE.pack(total), _SIZE.pack(len(command)), *parts])


def decode(raw: bytes) -> Frame:
    """The one frame that ``raw`` holds, from its total size to its last byte. Raises ``WireError``."""
    if len(raw) < 2 * _SIZE.size:
        raise WireError("truncated", f"{len(raw)} bytes cannot hold two sizes")
    total, command_size = _size(raw, 0), _size(raw, 4)
    if total != len(raw) - 4:
        raise WireError("size_mismatch", f"total size {total}, but {len(raw) - 4} bytes follow")
    if command_size > total - 4:
        raise WireError("size_mismatch", f"command of {command_size} bytes in a frame of {total}")
    at = 8 + command_size
    command = _parse_command(raw[8:at])
    if command.type not in _WITH_MESSAGE or not command.HasField("type"):
        if at != len(raw) and command.HasField("type"):
            raise WireError("size_mismatch", f"{len(raw) - at} bytes after {command_name(command)}")
        # Nothing is known of a later revision's command, so whatever follows it is kept as it came.
        return Frame(command, payload=raw[at:], raw=raw)
    broker_metadata: BrokerEntryMetadata | None = None
    if _magic(raw, at) == MAGIC_BROKER_METADATA:
        begin, at = _sized(raw, at + 2)
        broker_metadata = BrokerEntryMetadata()
        _parse(broker_metadata, raw[begin:at], "bad_broker_metadata")
    checksum_ok: bool | None = None
    if _magic(raw, at) == MAGIC_CHECKSUM:
        if at + 6 > len(raw):
            raise WireError("truncated", "the frame ends inside its checksum")
        expected, at = _size(raw, at + 2), at + 6
        checksum_ok = crc32c.crc32c(memoryview(raw)[at:]) == expected
    try:
        begin, end = _sized(raw, at)
        metadata = MessageMetadata()
        _parse(metadata, raw[begin:end], "bad_metadata")
    except WireError:
        if checksum_ok is not False:
            raise
        return Frame(command, None, raw[at:], False, broker_metadata, raw)
    return Frame(command, metadata, raw[end:], checksum_ok, broker_metadata, raw)


def entry_bytes(frame: Frame) -> bytes:
    """Metadata and payload of a SEND or MESSAGE exactly as they travel and are stored, without the size between them.

    They are equal for a SEND and every later MESSAGE of that entry. Of a frame whose metadata cannot be read it is
    everything after the checksum; of any other command it is empty.
    """
    if frame.metadata is None:
        return frame.payload
    if frame.raw is None:
        return frame.metadata.SerializePartialToString() + frame.payload
    # The metadata is read from the bytes, since a peer's encoder may order its fields otherwise than ours.
    at = 8 + _size(frame.raw, 4)
    if frame.broker_metadata is not None:
        _, at = _sized(frame.raw, at + 2)
    if frame.checksum_ok is not None:
        at += 6
    return frame.raw[at + 4 :]


class FrameDecoder:
    """Cuts a stream into frames, however the stream was split (clause META-01).

    ``max_frame_size``: bytes of the largest frame that is accepted, its total size field included. A larger one is
    refused as soon as its total size is read; nothing is allocated for it.
    """

    def __init__(self, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE) -> None:
        self.max_frame_size = max_frame_size
        self._buffer = bytearray()
        self._wanted = _SIZE.size
        self._failure: WireError | None = None

    @property
    def buffered(self) -> int:
        """Bytes received of a frame that is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that ``data`` completes, in order.

        Raises ``WireError`` for bytes that are no frame (its ``frames`` came before them); from then on every call
        raises that error again, because nothing says where the next frame would begin.
        """
        if self._failure is not None:
            raise WireError(self._failure.kind, self._failure.message)
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        at = 0
        try:
            # `_wanted` bytes must be there before the next step is possible: first the size, then the whole frame.
            while len(buffer) - at >= self._wanted:
                if self._wanted == _SIZE.size:
                    total = _size(buffer, at)
                    if total + _SIZE.size > self.max_frame_size:
                        raise WireError("frame_too_large", f"total size {total}, at most {self.max_frame_size - 4}")
                    if total < _SIZE.size:
                        raise WireError("size_mismatch", f"total size {total} leaves no room for a command size")
                    self._wanted = _SIZE.size + total
                else:
                    with memoryview(buffer) as view:
                        raw = bytes(view[at : at + self._wanted])
                    frames.append(decode(raw))
                    at += self._wanted
                    self._wanted = _SIZE.size
        except WireError as error:
            self._failure = error
            buffer.clear()
            raise WireError(error.kind, error.message, tuple(frames)) from None
        del buffer[:at]
        return frames


def _size(data: bytes | bytearray, at: int) -> int:
    return int(_SIZE.unpack_from(data, at)[0])


def _magic(raw: bytes, at: int) -> int | None:
    return int(_MAGIC.unpack_from(raw, at)[0]) if at + 2 <= len(raw) else None


def _sized(raw: bytes, at: int) -> tuple[int, int]:
    """Begin and end of the part whose size stands at ``at``."""
    if at + 4 > len(raw):
        raise WireError("truncated", "the frame ends where a size should stand")
    end = at + 4 + _size(raw, at)
    if end > len(raw):
        raise WireError("truncated", f"a part of {end - at - 4} bytes, but {len(raw) - at - 4} are left")
    return at + 4, end


def _parse(message: Message, data: bytes, kind: WireErrorKind) -> None:
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # the latter from protobuf's pure Python implementation only
        raise WireError(kind, str(error)) from None
    if missing := missing_fields(message):
        raise WireError(kind, f"missing {', '.join(missing)}")


def _parse_command(data: bytes) -> BaseCommand:
    command = BaseCommand()
    _parse(command, data, "bad_command")
    if command.HasField("type") and command.type not in _EMPTY_BODIES:
        body = _BODIES[command.type]
        if not command.HasField(body):
            raise WireError("bad_command", f"{command_name(command)} without its {body}")
    return command


def _serialise(message: Message) -> bytes:
    if missing := missing_fields(message):
        raise ValueError(f"{message.DESCRIPTOR.name} lacks {', '.join(missing)}")
    return message.SerializePartialToString()
