"""What the broker's admin service says of the topics of a run, as events of the admin layer.

An answer was true at some moment between its question (``extra.asked_ns``) and its record (``time_ns``), no one knows
when: whoever compares it with frames has to allow for both ends. Two questions about one topic are never under way
together, so that samples stand in the order in which they were true.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from harness.systems.admin import Admin, AdminMissing, AdminRefused, AdminUnreachable, InternalStats, TopicStats
from harness.wire.message_id import Position
from harness.worlds.audit import SUBSCRIPTION
from harness.worlds.record import Records, record_cursor


class Clocked(Records, Protocol):
    """A recorder that tells the time of its events, in ns."""

    def now(self) -> int: ...


async def observe(admin: Admin, recorder: Clocked, topics: Iterable[str]) -> None:
    """Ask about each topic and record the answers; a topic that does not exist is left out.

    Partitions are named one by one: a partitioned topic has no storage of its own. Never raises for what the service
    does: a refusal is one event ``ADMIN_REFUSED``; silence is one event ``ADMIN_UNREACHABLE`` and ends the round, as
    the others would run into the same time limit.
    """
    for topic in topics:
        asked_ns = recorder.now()
        try:
            stats = await admin.topic_stats(topic)
            internal = await admin.internal_stats(topic)
        except AdminMissing:
            continue
        except AdminRefused as error:
            _record_error(recorder, "ADMIN_REFUSED", topic, error, asked_ns)
        except AdminUnreachable as error:
            _record_error(recorder, "ADMIN_UNREACHABLE", topic, error, asked_ns)
            return
        else:
            record_observation(recorder, topic, stats, internal, asked_ns=asked_ns)


def record_observation(
    recorder: Records, topic: str, stats: TopicStats, internal: InternalStats, *, asked_ns: int
) -> None:
    """One ``TOPIC_STATS``, one ``LEDGERS``, and a ``CURSOR`` for each subscription but the auditor's."""
    recorder.record(layer="admin", kind="TOPIC_STATS", topic=topic, extra={**_told(stats), "asked_ns": asked_ns})
    last = internal.last_confirmed
    recorder.record(
        layer="admin",
        kind="LEDGERS",
        topic=topic,
        ledger_id=last.ledger if last else None,
        entry_id=last.entry if last else None,
        extra={
            "ledgers": [[one.ledger, one.entries, one.size] for one in internal.ledgers],
            "entries": internal.entries,
            "state": internal.state,
            "asked_ns": asked_ns,
        },
    )
    for name, subscription in sorted(stats.subscriptions.items()):
        # Brokers keep cursors that are no subscriptions (pulsar.dedup, __compaction): they move without any ACK.
        cursor = internal.cursors.get(name)
        if cursor is not None and name != SUBSCRIPTION:
            record_cursor(
                recorder,
                topic,
                name,
                msgspec.structs.replace(cursor, backlog=subscription.backlog),
                read_position=_pair(cursor.read_position),
                asked_ns=asked_ns,
            )


def _told(stats: TopicStats) -> dict[str, Any]:
    return {
        # As it is read back from a stored history: lists, no tuples.
        "subscriptions": msgspec.json.decode(msgspec.json.encode(stats.subscriptions)),
        "deduplication": stats.deduplication,
        "storage_size": stats.storage_size,
    }


def _pair(position: Position | None) -> list[int] | None:
    return None if position is None else [position.ledger, position.entry]


def _record_error(recorder: Records, kind: str, topic: str, error: Exception, asked_ns: int) -> None:
    recorder.record(layer="admin", kind=kind, topic=topic, extra={"message": str(error), "asked_ns": asked_ns})
