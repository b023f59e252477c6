"""A message on its way from the broker to the application."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.wire.message_id import Position


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One hand-out of one message.

    ``position`` is its entry, of a chunked message the last piece; ``entries`` are all entries that an acknowledgement
    or a redelivery request must name (of a chunked message every piece, those that were superseded too).
    ``epoch`` counts the subscribes of the consumer; ``publish_time`` is milliseconds.
    """

    position: Position
    entries: tuple[Position, ...]
    payload: bytes
    epoch: int
    batch_index: int | None = None
    batch_size: int = 1
    first_chunk: Position | None = None
    key: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    producer: str = ""
    sequence_id: int = 0
    publish_time: int = 0
    redelivery_count: int = 0
