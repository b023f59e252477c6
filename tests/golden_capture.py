"""Reads the captures in ``fixtures/golden``; the format is described in ``tests/capture_golden.py``."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from harness.faults.session_tracker import Direction
from harness.wire.frame import Frame, FrameDecoder

GOLDEN: Final = Path(__file__).parent.parent / "fixtures" / "golden"
CAPTURES: Final = tuple(sorted(path.stem for path in GOLDEN.glob("*.bin")))

_RECORD: Final = struct.Struct(">BBI")
_DIRECTIONS: Final[tuple[Direction, Direction]] = ("to_broker", "to_client")


def records(name: str) -> Iterator[tuple[int, Direction, bytes]]:
    """Connection, direction and bytes of each read of the relay, in order."""
    data = (GOLDEN / f"{name}.bin").read_bytes()
    at = 0
    while at < len(data):
        connection, direction, size = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        yield connection, _DIRECTIONS[direction], data[at : at + size]
        at += size


def streams(name: str) -> dict[tuple[int, Direction], bytes]:
    """All bytes of each connection and direction."""
    joined: dict[tuple[int, Direction], bytes] = {}
    for connection, direction, data in records(name):
        joined[connection, direction] = joined.get((connection, direction), b"") + data
    return joined


def frames(name: str) -> Iterator[tuple[int, Direction, Frame]]:
    """Connection, direction and frame, in the order in which the frames were completed."""
    decoders: dict[tuple[int, Direction], FrameDecoder] = {}
    for connection, direction, data in records(name):
        decoder = decoders.setdefault((connection, direction), FrameDecoder())
        for frame in decoder.feed(data):
            yield connection, direction, frame
