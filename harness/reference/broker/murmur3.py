"""MurmurHash3, 32 bits, as Pulsar hashes keys. Written from the public description of the algorithm."""

from __future__ import annotations

_MASK = 0xFFFFFFFF


def _mix(block: int) -> int:
    block = (block * 0xCC9E2D51) & _MASK
    block = (block << 15 | block >> 17) & _MASK
    return (block * 0x1B873593) & _MASK


def murmur3_32(data: bytes, seed: int = 0) -> int:
    """Unsigned 32-bit hash."""
    state = seed
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        state ^= _mix(int.from_bytes(data[at : at + 4], "little"))
        state = (state << 13 | state >> 19) & _MASK
        state = (state * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        state ^= _mix(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    state = ((state ^ state >> 16) * 0x85EBCA6B) & _MASK
    state = ((state ^ state >> 13) * 0xC2B2AE35) & _MASK
    return state ^ state >> 16


def sticky_slot(key: bytes) -> int:
    """Slot 0..65535 of a sticky key (KEYHASH-01). The sign bit is dropped before the division."""
    return (murmur3_32(key) & 0x7FFFFFFF) % 65536
