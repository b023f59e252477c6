"""A message on its way from the application to the broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.reference.client.failure import Failure
from harness.wire.message_id import Position


@dataclass(slots=True, eq=False)
class Outgoing:
    """``number`` counts the sends of a producer in call order; exactly one of the two callbacks is called, once.

    ``publish_time`` and ``deliver_at`` are milliseconds, ``accepted_at`` nanoseconds. ``on_sent`` takes the ``ok``
    object of the contract's ``send``.
    """

    number: int
    payload: bytes
    on_sent: Callable[[dict[str, Any]], None]
    on_failed: Callable[[Failure], None]
    explicit_sequence_id: int | None = None
    key: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    deliver_after: int | None = None
    sequence_id: int = 0
    publish_time: int = 0
    deliver_at: int | None = None
    accepted_at: int = 0
    first_chunk: Position | None = None


@dataclass(slots=True, eq=False)
class PendingSend:
    """One SEND that waits for its answer. ``data`` is the whole frame: what is sent again is what was sent.

    ``highest_sequence_id`` equals ``sequence_id`` unless this is a batch. ``last_piece`` is False for every piece of a
    chunked message but the last, whose receipt completes the message.
    """

    sequence_id: int
    highest_sequence_id: int
    messages: list[Outgoing]
    data: bytes
    accepted_at: int
    is_chunk: bool = False
    last_piece: bool = True
    written: bool = False
    checksum_refusals: int = 0
    is_duplicate: bool = False
