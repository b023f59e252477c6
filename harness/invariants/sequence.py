"""Which sequence ids a SEND, MESSAGE or ENTRY covers, and which messages it carries.

Two ranges exist. The *announced* one is what the broker can know: ``sequence_id .. highest_sequence_id``. The *full*
one adds the members of a batch whose client leaves ``highest_sequence_id`` unset, as the C++ client does.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.history.event import Event


class Member(NamedTuple):
    """One application message inside a frame; ``digest`` is None where the frame does not tell it (a chunk)."""

    sequence_id: int | None
    digest: str | None


def is_chunk(event: Event) -> bool:
    """Whether this frame or entry is one piece of a message of several pieces."""
    return event.chunk_uuid is not None and (event.num_chunks or 1) > 1


def is_inner_chunk(event: Event) -> bool:
    """A piece that is not the last of its message: deduplication never judges it (DEDUP-08)."""
    return is_chunk(event) and (event.chunk_id or 0) < (event.num_chunks or 1) - 1


def is_batch(event: Event) -> bool:
    """Whether the payload holds single-message records."""
    return "messages" in event.extra or (event.num_messages or 1) > 1


def announced(event: Event) -> tuple[int, int] | None:
    """The range of sequence ids on the wire, None without an id."""
    if event.sequence_id is None:
        return None
    return event.sequence_id, max(event.sequence_id, event.highest_sequence_id or event.sequence_id)


def covered(event: Event) -> range:
    """Every sequence id of the frame, members of an unannounced batch included."""
    wire = announced(event)
    if wire is None:
        return range(0)
    last = max(wire[1], wire[0] + (event.num_messages or 1) - 1)
    last = max([last, *(member.sequence_id for member in members(event) if member.sequence_id is not None)])
    return range(wire[0], last + 1)


def members(event: Event) -> list[Member]:
    """The application messages of a frame in order; a chunk gives one member without a digest."""
    listed = event.extra.get("messages")
    if listed is None:
        digest = None if is_chunk(event) or (event.num_messages or 1) > 1 else event.payload_digest
        return [Member(event.sequence_id, digest)]
    first = event.sequence_id
    found = []
    for place, item in enumerate(listed):
        own = item.get("sequence_id")
        if own is None and first is not None:
            own = first + place
        found.append(Member(own, item.get("digest")))
    return found


def position(event: Event) -> tuple[int, int] | None:
    """(ledger, entry), None without a real id."""
    if event.ledger_id is None or event.entry_id is None:
        return None
    return event.ledger_id, event.entry_id
