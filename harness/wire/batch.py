"""The inside of a batch (clause PACK-04): ``header size | SingleMessageMetadata | payload``, once for each message.

What is compressed is the whole of it, so pack before compressing and unpack after decompressing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from harness.wire.frame import WireError
from harness.wire.pulsar_pb2 import SingleMessageMetadata
from harness.wire.unknown import missing_fields

_SIZE: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class SingleMessage:
    """One message of a batch. ``metadata.payload_size`` is the size of ``payload`` once packed or unpacked."""

    metadata: SingleMessageMetadata
    payload: bytes


def pack(messages: Iterable[SingleMessage]) -> bytes:
    """The members one after the other; ``payload_size`` is written by this function."""
    parts: list[bytes] = []
    for message in messages:
        metadata = SingleMessageMetadata()
        metadata.CopyFrom(message.metadata)
        metadata.payload_size = len(message.payload)
        header = metadata.SerializeToString()
        parts += [_SIZE.pack(len(header)), header, message.payload]
    return b"".join(parts)


def unpack(payload: bytes, count: int) -> list[SingleMessage]:
    """Exactly ``count`` members (``num_messages_in_batch``), which must use up the payload.

    Raises ``WireError`` ``bad_batch`` when they do not.
    """
    if count < 1:
        raise WireError("bad_batch", f"a batch of {count}")
    messages: list[SingleMessage] = []
    at = 0
    for index in range(count):
        begin = at + _SIZE.size
        if begin > len(payload):
            raise WireError("bad_batch", f"ends before member {index} of {count}")
        end = begin + int(_SIZE.unpack_from(payload, at)[0])
        if end > len(payload):
            raise WireError("bad_batch", f"ends inside the header of member {index}")
        metadata = SingleMessageMetadata()
        try:
            metadata.ParseFromString(payload[begin:end])
        except (DecodeError, UnicodeDecodeError) as error:  # the latter from protobuf's pure Python implementation only
            raise WireError("bad_batch", f"header of member {index}: {error}") from None
        if missing := missing_fields(metadata):
            raise WireError("bad_batch", f"header of member {index} lacks {', '.join(missing)}")
        at = end + metadata.payload_size
        if metadata.payload_size < 0 or at > len(payload):
            raise WireError("bad_batch", f"member {index} claims {metadata.payload_size} of {len(payload) - end} bytes")
        messages.append(SingleMessage(metadata, payload[end:at]))
    if at != len(payload):
        raise WireError("bad_batch", f"{len(payload) - at} bytes after the last of {count} members")
    return messages
