"""What Pulsar's ``stats`` and ``internalStats`` answers mean, without any I/O.

Fields are those of ``TopicStats`` and ``PersistentTopicInternalStats`` of Pulsar 2.8 to 4.2; what a version does not
have, or has in another shape, is None here. A missing value never becomes -1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_plus

from harness.systems.admin import (
    ConsumerStats,
    CursorStats,
    InternalStats,
    LedgerStats,
    SubscriptionStats,
    TopicStats,
)
from harness.wire.message_id import Position

_POSITION = re.compile(r"\s*(-?\d{1,19}):(-?\d{1,19})(?!\d)")

_RANGE = re.compile(r"([(\[])(-?\d{1,19}):(-?\d{1,19})(?:\.\.|\u2025)(-?\d{1,19}):(-?\d{1,19})([)\]])")
"""``(12:6..12:8]``: without the first, with the last. Guava printed U+2025 between the two before its release 20."""

_IN_FORCE = {"Enabled": True, "Disabled": False, "Initialized": False}
"""``MessageDeduplication.Status``. While it is Recovering or Removing, and when it Failed, nobody can say."""


class UnexpectedShape(ValueError):
    """The answer is no statistics of a topic; the message says where it is not."""


def topic_stats(answer: Any) -> TopicStats:
    """Of ``stats`` or ``partitioned-stats``. Raises ``UnexpectedShape``."""
    body = _mapping(answer, "the answer")
    return TopicStats(
        subscriptions={
            str(name): _subscription(_mapping(value, f"subscription {name}"))
            for name, value in _mapping(body.get("subscriptions", {}), "subscriptions").items()
        },
        deduplication=_IN_FORCE.get(str(body.get("deduplicationStatus"))),
        storage_size=_count(body.get("storageSize")),
    )


def _subscription(body: Mapping[str, Any]) -> SubscriptionStats:
    kind = str(body.get("type") or "").lower()
    return SubscriptionStats(
        # A subscription that nobody has used since the topic was loaded has no type: absent, or "None" (4.0.7).
        type="" if kind == "none" else kind,
        backlog=_needed(body, "msgBacklog"),
        unacked=_number(body.get("unackedMessages")) or 0,
        consumers=tuple(_consumer(_mapping(value, "a consumer")) for value in _list(body.get("consumers"))),
    )


def _consumer(body: Mapping[str, Any]) -> ConsumerStats:
    return ConsumerStats(
        name=str(body.get("consumerName") or ""),
        permits=_needed(body, "availablePermits"),
        unacked=_number(body.get("unackedMessages")) or 0,
        blocked=body.get("blockedConsumerOnUnackedMsgs") is True,
    )


def internal_stats(answer: Any) -> InternalStats:
    """Of ``internalStats`` of one topic or partition. Raises ``UnexpectedShape``."""
    body = _mapping(answer, "the answer")
    ledgers = _ledgers(body)
    return InternalStats(
        ledgers=ledgers,
        last_confirmed=_resolved(body.get("lastConfirmedEntry"), ledgers),
        entries=_count(body.get("numberOfEntries")),
        state=str(body.get("state") or ""),
        cursors={
            # A cursor's name is its subscription's as java.net.URLEncoder writes it: `a/b c` is kept as `a%2Fb+c`.
            unquote_plus(str(name)): _cursor(_mapping(value, f"cursor {name}"), ledgers)
            for name, value in _mapping(body.get("cursors", {}), "cursors").items()
        },
    )


def _ledgers(body: Mapping[str, Any]) -> tuple[LedgerStats, ...]:
    found = [
        LedgerStats(
            ledger=_needed(_mapping(value, "a ledger"), "ledgerId"),
            entries=_count(value.get("entries")),
            size=_count(value.get("size")),
        )
        for value in _list(body.get("ledgers"))
    ]
    if found and not found[-1].entries:
        # The list counts a ledger when it is closed: of the one that is written it says 0, all the time.
        found[-1] = LedgerStats(
            ledger=found[-1].ledger,
            entries=_count(body.get("currentLedgerEntries")),
            size=_count(body.get("currentLedgerSize")),
        )
    return tuple(found)


def _cursor(body: Mapping[str, Any], ledgers: tuple[LedgerStats, ...]) -> CursorStats:
    read = _position(body.get("readPosition"))
    return CursorStats(
        mark_delete=_resolved(body.get("markDeletePosition"), ledgers),
        individually_deleted=tuple(deleted_ranges(str(body.get("individuallyDeletedMessages") or ""), ledgers)),
        read_position=None if read is None or read.is_sentinel else read,
    )


def deleted_ranges(text: str, ledgers: tuple[LedgerStats, ...]) -> list[tuple[int, int, int]]:
    """``[(12:6..12:8],(13:-1..13:0]]`` as inclusive ``(ledger, first, last)``: here (12, 7, 8) and (13, 0, 0).

    A range over several ledgers becomes one for each of them, as far as ``ledgers`` says how long they are.
    """
    found: list[tuple[int, int, int]] = []
    for opening, begin_ledger, begin, end_ledger, end, closing in _RANGE.findall(text):
        first = (int(begin_ledger), max(0, int(begin) + (opening == "(")))
        last = (int(end_ledger), int(end) - (closing == ")"))
        lengths = {one.ledger: one.entries or 0 for one in ledgers}
        inside = sorted({first[0], last[0], *(one for one in lengths if first[0] < one < last[0])})
        for ledger in inside:
            start = first[1] if ledger == first[0] else 0
            stop = last[1] if ledger == last[0] else lengths.get(ledger, 0) - 1
            if start <= stop:
                found.append((ledger, start, stop))
    return found


def _resolved(value: Any, ledgers: tuple[LedgerStats, ...]) -> Position | None:
    """``12:-1`` is the place before ledger 12: the last entry of the one before it that has any, or nothing."""
    position = _position(value)
    if position is None or position.ledger < 0:
        return None
    if position.entry >= 0:
        return position
    before = [one for one in ledgers if one.ledger < position.ledger and one.entries]
    return Position(before[-1].ledger, (before[-1].entries or 0) - 1) if before else None


def terminated_at(answer: Any) -> Position | None:
    """Of ``terminate``: an object (2.8 to 4.2), or the text ``12:5`` or ``12:5:-1``; None when nothing was stored."""
    if isinstance(answer, Mapping):
        ledger, entry = _number(answer.get("ledgerId")), _number(answer.get("entryId"))
        if ledger is None or entry is None:
            raise UnexpectedShape("the last position has no ledgerId and entryId")
        position = Position(ledger, entry)
    else:
        found = _POSITION.match(answer) if isinstance(answer, str) else None
        if found is None:
            raise UnexpectedShape(f"no position: {str(answer)[:80]!r}")
        position = Position(int(found[1]), int(found[2]))
    return None if position.is_sentinel else position


def _position(value: Any) -> Position | None:
    found = _POSITION.match(value) if isinstance(value, str) else None
    return Position(int(found[1]), int(found[2])) if found is not None else None


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UnexpectedShape(f"{what} is no object but {str(value)[:80]!r}")
    return value


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnexpectedShape(f"no list but {str(value)[:80]!r}")
    return value


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    """A number that is none when it is negative."""
    number = _number(value)
    return number if number is not None and number >= 0 else None


def _needed(body: Mapping[str, Any], field: str) -> int:
    number = _number(body.get(field))
    if number is None:
        raise UnexpectedShape(f"{field} is no number but {str(body.get(field))[:80]!r}")
    return number
