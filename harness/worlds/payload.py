"""The payload of a send: a pure function of the plan, so that a replay sends the same bytes."""

from __future__ import annotations

import hashlib


def digest(payload: bytes) -> str:
    """The ``payload_digest`` column: the first 16 hex digits of SHA-256."""
    return hashlib.sha256(payload).hexdigest()[:16]


def payload(position: int, tag: str, size: int, *, compressible: bool = False) -> bytes:
    """Bytes unique to the operation at ``position`` of a plan; at least a short header, else exactly ``size`` bytes.

    The filler is pseudo-random (SHAKE-128 of the header) unless ``compressible``: codecs must meet both kinds.
    """
    header = f"{position}:{tag};".encode()
    missing = size - len(header)
    if missing <= 0:
        return header
    if compressible:
        return header + (header * (missing // len(header) + 1))[:missing]
    return header + hashlib.shake_128(header).digest(missing)
