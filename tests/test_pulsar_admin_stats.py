"""Answers of real brokers, cut down to what is read, and answers of nobody."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.systems.admin import ConsumerStats, LedgerStats
from harness.systems.pulsar_admin_stats import (
    UnexpectedShape,
    deleted_ranges,
    internal_stats,
    terminated_at,
    topic_stats,
)
from harness.wire.message_id import Position

# 4.0.7: six entries, of which s1 has acked the second, third and fifth one by one; then the topic was unloaded.
INTERNAL = json.loads("""{
 "entriesAddedCounter": 1, "numberOfEntries": 7, "totalSize": 174, "currentLedgerEntries": 1, "currentLedgerSize": 24,
 "lastConfirmedEntry": "606:0", "state": "LedgerOpened",
 "ledgers": [{"ledgerId": 599, "entries": 6, "size": 150, "offloaded": false},
             {"ledgerId": 606, "entries": 0, "size": 0, "offloaded": false}],
 "cursors": {
  "pulsar.dedup": {"markDeletePosition": "599:-1", "readPosition": "599:6", "individuallyDeletedMessages": "[]"},
  "a%2Fb+c": {"markDeletePosition": "599:-1", "readPosition": "606:1",
              "individuallyDeletedMessages": "[(599:0..599:2],(599:3..599:4]]"},
  "s2": {"markDeletePosition": "606:-1", "readPosition": "606:1", "individuallyDeletedMessages": "[]"}}}""")

STATS = json.loads("""{"storageSize": 174, "deduplicationStatus": "Enabled", "subscriptions": {
 "s1": {"msgBacklog": 4, "unackedMessages": 3, "type": "Shared", "consumers": [
   {"consumerName": "k1", "availablePermits": -9, "unackedMessages": 3, "blockedConsumerOnUnackedMsgs": true}]},
 "s2": {"msgBacklog": 1, "unackedMessages": 0, "type": "None", "consumers": []}}}""")


def test_topic_stats():
    stats = topic_stats(STATS)
    assert stats.deduplication is True
    assert stats.storage_size == 174
    shared, unused = stats.subscriptions["s1"], stats.subscriptions["s2"]
    assert (shared.type, shared.backlog, shared.unacked) == ("shared", 4, 3)
    assert shared.consumers == (ConsumerStats(name="k1", permits=-9, unacked=3, blocked=True),)
    assert (unused.type, unused.consumers) == ("", ())


@pytest.mark.parametrize(
    ("status", "in_force"),
    [
        ("Enabled", True),
        ("Disabled", False),
        ("Initialized", False),
        ("Removing", None),
        ("Failed", None),
        (None, None),
    ],
)
def test_deduplication_is_known_or_not(status: str | None, in_force: bool | None):
    assert topic_stats({"deduplicationStatus": status}).deduplication is in_force
    assert topic_stats({}).deduplication is None


def test_internal_stats():
    internal = internal_stats(INTERNAL)
    assert internal.ledgers == (
        LedgerStats(ledger=599, entries=6, size=150),
        LedgerStats(ledger=606, entries=1, size=24),
    )
    assert internal.last_confirmed == Position(606, 0)
    assert (internal.entries, internal.state) == (7, "LedgerOpened")
    cursor = internal.cursors["a/b c"]
    assert cursor.mark_delete is None
    assert cursor.individually_deleted == ((599, 1, 2), (599, 4, 4))
    assert cursor.read_position == Position(606, 1)
    assert internal.cursors["s2"].mark_delete == Position(599, 5)


def test_a_closed_ledger_is_counted_in_the_list():
    terminated = {**INTERNAL, "state": "Terminated", "currentLedgerEntries": 0}
    terminated["ledgers"] = [{"ledgerId": 599, "entries": 6, "size": 150}, {"ledgerId": 606, "entries": 2, "size": 48}]
    assert internal_stats(terminated).ledgers[-1] == LedgerStats(ledger=606, entries=2, size=48)


def test_before_the_first_ledger_there_is_nothing():
    empty = {"ledgers": [{"ledgerId": 852, "entries": 0, "size": 0}], "currentLedgerEntries": 0, "currentLedgerSize": 0,
             "numberOfEntries": 0, "lastConfirmedEntry": "852:-1", "cursors": {}}  # fmt: skip
    assert internal_stats(empty).last_confirmed is None
    assert internal_stats({**empty, "lastConfirmedEntry": "-1:-1"}).last_confirmed is None
    assert internal_stats({}).ledgers == ()


def test_empty_ledgers_between_two_are_passed_over():
    body = {"ledgers": [{"ledgerId": 4, "entries": 3, "size": 9}, {"ledgerId": 7, "entries": 0, "size": 0},
                        {"ledgerId": 9, "entries": 0, "size": 0}], "lastConfirmedEntry": "9:-1"}  # fmt: skip
    assert internal_stats(body).last_confirmed == Position(4, 2)


def test_ranges_over_ledgers():
    ledgers = (LedgerStats(ledger=4, entries=6), LedgerStats(ledger=7, entries=3), LedgerStats(ledger=9, entries=5))
    assert deleted_ranges("[(4:3..9:1]]", ledgers) == [(4, 4, 5), (7, 0, 2), (9, 0, 1)]
    assert deleted_ranges("[(9:-1..9:0],(9:2\u20259:4]]", ledgers) == [(9, 0, 0), (9, 3, 4)]
    assert deleted_ranges("[[9:2..9:4)]", ledgers) == [(9, 2, 3)]
    assert deleted_ranges("[(4:5..9:-1]]", ledgers) == [(7, 0, 2)]
    assert deleted_ranges("[]", ledgers) == []


def test_the_position_of_a_termination():
    assert terminated_at({"ledgerId": 606, "entryId": 1, "partitionIndex": -1}) == Position(606, 1)
    assert terminated_at({"ledgerId": 606, "entryId": -1}) is None
    assert terminated_at("606:1:-1") == Position(606, 1)
    for odd in ("", "gone", {}, None, 5, [1]):
        with pytest.raises(UnexpectedShape):
            terminated_at(odd)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["5:-1", "[(1:2..3:4]]", "9" * 5000 + ":1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def spoiled(draw: st.DrawFn) -> Any:
    """A true answer with something else in one place."""
    body = json.loads(json.dumps(draw(st.sampled_from([STATS, INTERNAL]))))
    place: Any = body
    while True:
        name = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inner = place[name]
        if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
            place[name] = draw(JSON)
            return body
        place = inner


@given(JSON | spoiled())
def test_whatever_is_answered_is_read_or_refused(answer: Any):
    for reader in (topic_stats, internal_stats):
        with suppress(UnexpectedShape):
            reader(answer)
