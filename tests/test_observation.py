"""What is recorded of a topic: the events of the admin layer, their times, and what becomes of errors."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from harness.history.event import Event
from harness.history.recorder import Recorder
from harness.systems.admin import (
    AdminError,
    AdminMissing,
    AdminRefused,
    AdminUnreachable,
    ConsumerStats,
    CursorStats,
    InternalStats,
    LedgerStats,
    SubscriptionStats,
    TopicStats,
)
from harness.wire.message_id import Position
from harness.worlds.observation import observe, record_observation

TOPIC = "persistent://public/default/t"

STATS = TopicStats(
    subscriptions={
        "s": SubscriptionStats(
            type="shared", backlog=3, unacked=2, consumers=(ConsumerStats(name="c", permits=7, unacked=2),)
        ),
        "starquake-audit": SubscriptionStats(type="exclusive", backlog=5, unacked=0),
    },
    deduplication=True,
    storage_size=90,
)
INTERNAL = InternalStats(
    ledgers=(LedgerStats(ledger=4, entries=3, size=60), LedgerStats(ledger=9, entries=2, size=30)),
    last_confirmed=Position(9, 1),
    entries=5,
    state="LedgerOpened",
    cursors={
        "s": CursorStats(mark_delete=Position(4, 1), individually_deleted=((9, 0, 0),), read_position=Position(9, 2)),
        "pulsar.dedup": CursorStats(mark_delete=Position(9, 1)),
        "starquake-audit": CursorStats(mark_delete=None),
    },
)


class FakeAdmin:
    """Answers what it was given; an error is raised."""

    def __init__(self, stats: TopicStats | AdminError, internal: InternalStats | AdminError = INTERNAL) -> None:
        self.stats, self.internal = stats, internal
        self.asked: list[str] = []

    async def topic_stats(self, topic: str) -> TopicStats:
        self.asked.append(topic)
        if isinstance(self.stats, AdminError):
            raise self.stats
        return self.stats

    async def internal_stats(self, topic: str) -> InternalStats:
        if isinstance(self.internal, AdminError):
            raise self.internal
        return self.internal


def recorded(admin: FakeAdmin, *topics: str) -> list[Event]:
    events: list[Event] = []
    ticks = count(100, 10)
    recorder = Recorder("r", lambda: next(ticks), [events.append])
    asyncio.run(observe(admin, recorder, topics))  # type: ignore[arg-type]  # only what observe asks
    return events


def test_an_observation_is_stats_then_ledgers_then_cursors():
    stats, ledgers, cursor = recorded(FakeAdmin(STATS), TOPIC)
    assert [event.kind for event in (stats, ledgers, cursor)] == ["TOPIC_STATS", "LEDGERS", "CURSOR"]
    assert all(event.layer == "admin" and event.topic == TOPIC for event in (stats, ledgers, cursor))
    assert stats.extra["deduplication"] is True
    assert stats.extra["storage_size"] == 90
    assert stats.extra["subscriptions"]["s"] == {
        "type": "shared", "backlog": 3, "unacked": 2,
        "consumers": [{"name": "c", "permits": 7, "unacked": 2, "blocked": False}],
    }  # fmt: skip
    assert (ledgers.ledger_id, ledgers.entry_id) == (9, 1)
    assert ledgers.extra["ledgers"] == [[4, 3, 60], [9, 2, 30]]
    assert ledgers.extra["entries"] == 5
    assert ledgers.extra["state"] == "LedgerOpened"
    assert (cursor.subscription, cursor.ledger_id, cursor.entry_id) == ("s", 4, 1)
    assert cursor.extra["individually_deleted"] == [[9, 0, 0]]
    assert cursor.extra["backlog"] == 3
    assert cursor.extra["read_position"] == [9, 2]


def test_every_event_says_when_its_question_left():
    events = recorded(FakeAdmin(STATS), TOPIC)
    assert {event.extra["asked_ns"] for event in events} == {100}
    assert all(event.time_ns > 100 for event in events)


def test_cursors_that_are_no_subscriptions_are_none_and_neither_is_the_auditors():
    assert [event.subscription for event in recorded(FakeAdmin(STATS), TOPIC) if event.kind == "CURSOR"] == ["s"]


def test_nothing_stored_and_nothing_acked_has_no_position():
    events: list[Event] = []
    empty = InternalStats(
        ledgers=(), last_confirmed=None, entries=0, state="", cursors={"s": CursorStats(mark_delete=None)}
    )
    record_observation(Recorder("r", lambda: 5, [events.append]), TOPIC, STATS, empty, asked_ns=5)
    assert [(event.ledger_id, event.entry_id) for event in events] == [(None, None)] * 3
    assert events[2].extra["read_position"] is None


@pytest.mark.parametrize(
    "admin", [FakeAdmin(AdminMissing("no")), FakeAdmin(STATS, AdminMissing("deleted between the two"))]
)
def test_a_topic_that_does_not_exist_is_left_out(admin: FakeAdmin):
    assert recorded(admin, TOPIC, TOPIC + "2") == []
    assert len(admin.asked) == 2


def test_a_refusal_is_an_event_and_the_others_are_asked():
    events = recorded(FakeAdmin(AdminRefused("not you")), TOPIC, TOPIC + "2")
    assert [(event.kind, event.topic, event.extra["message"]) for event in events] == [
        ("ADMIN_REFUSED", TOPIC, "not you"),
        ("ADMIN_REFUSED", TOPIC + "2", "not you"),
    ]


def test_silence_is_one_event_and_ends_the_round():
    admin = FakeAdmin(STATS, AdminUnreachable("nobody"))
    events = recorded(admin, TOPIC, TOPIC + "2")
    assert [(event.kind, event.topic) for event in events] == [("ADMIN_UNREACHABLE", TOPIC)]
    assert admin.asked == [TOPIC]
