"""Each acknowledgement rule with a history that breaks it, and only it, and one that puts it to test and keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.invariants import acks
from tests.consumer_history import SECOND, SUBSCRIPTION, TOPIC, ConsumerHistory
from tests.history_builder import judge, names

Story = Callable[[ConsumerHistory], None]
CASES: dict[tuple[str, str], tuple[Story, Story]] = {}


def story(*steps: Any, **options: Any) -> Story:
    """A consumer (with ``options``) and then the steps, each a function of the history."""

    def tell(history: ConsumerHistory) -> None:
        history.consumer(**options)
        for step in steps:
            step(history)

    return tell


def step(name: str, *arguments: Any, **columns: Any) -> Story:
    return lambda history: getattr(history, name)(*arguments, **columns)


def got(*entries: int, **columns: Any) -> Story:
    def tell(history: ConsumerHistory) -> None:
        for entry in entries:
            history.delivered(1, entry, **columns)

    return tell


def acked(*entries: int, verb: str = "ack", frame: bool = True, **columns: Any) -> Story:
    def tell(history: ConsumerHistory) -> None:
        for entry in entries:
            history.call(verb, (1, entry))
            if frame:
                history.ack((1, entry), cumulative=verb == "ack_cumulative", **columns)

    return tell


def end(*entries: int) -> Story:
    return step("end", *((1, entry) for entry in entries))


def again(*entries: int) -> Story:
    """The connection is lost after a while, the consumer comes back and is sent these entries."""

    def tell(history: ConsumerHistory) -> None:
        history.wait(2 * SECOND)
        history.closed()
        history.subscribe(conn=2)
        history.flow(10, conn=2)
        for entry in entries:
            history.delivered(1, entry, conn=2)

    return tell


up = {"verb": "ack_cumulative"}

CASES[("C1", "cumulative-acks-not-increasing")] = (
    story(
        got(0, 1, 2),
        step("call", "ack_cumulative", (1, 2)),
        step("ack", (1, 1), cumulative=True),
        step("ack", (1, 1), cumulative=True),
    ),
    story(got(0, 1, 2), acked(0, 2, **up)),
)
CASES[("ACK-CUM-02", "acked-beyond-the-call")] = (
    story(got(0, 1, 2), step("call", "ack_cumulative", (1, 1)), step("ack", (1, 2), cumulative=True)),
    story(got(0, 1, 2), acked(0, 2, **up)),
)


def inside_batch(frame_set: list[int] | None) -> Story:
    def tell(history: ConsumerHistory) -> None:
        history.consumer()
        history.message(1, 0, num_messages=3)
        history.receive(1, 0, "a", batch_index=0)
        history.call("ack_cumulative", (1, 0), batch_index=0)
        history.ack((1, 0), cumulative=True, ack_set=frame_set)

    return tell


CASES[("ACK-CUM-06", "acked-beyond-the-call")] = (inside_batch(None), inside_batch([0b110]))
CASES[("ACK-IND-03", "acked-without-being-asked")] = (
    story(got(0, 1), step("ack", (1, 1))),
    story(got(0, 1), acked(1)),
)


def batch_acks(*indices: int) -> Story:
    def tell(history: ConsumerHistory) -> None:
        history.consumer()
        history.message(1, 0, num_messages=3)
        for index in indices:
            history.receive(1, 0, f"m{index}", batch_index=index)
            history.call("ack", (1, 0), batch_index=index)
        history.ack((1, 0))

    return tell


CASES[("ACK-BATCH-02", "acked-without-being-asked")] = (batch_acks(0, 2), batch_acks(0, 2, 1))
CASES[("ACK-CUM-04", "cumulative-ack-on-shared")] = (
    story(got(0), step("call", "ack_cumulative", (1, 0)), step("ack", (1, 0), cumulative=True), kind="shared"),
    story(got(0), step("call", "ack_cumulative", (1, 0), outcome="fail"), kind="shared"),
)
CASES[("ACK-IND-01", "ack-never-sent")] = (
    story(got(0), acked(0, frame=False), end(0)),
    story(got(0), acked(0), end(0)),
)
CASES[("CCLOSE-02", "closed-before-acks")] = (
    story(got(0), acked(0, frame=False), step("request", "CLOSE_CONSUMER"), step("answer")),
    story(got(0), acked(0), step("request", "CLOSE_CONSUMER"), step("answer")),
)


@pytest.mark.parametrize("copies", [1, 2])
def test_members_acked_over_two_copies_of_a_batch_complete_none(copies: int) -> None:
    history = ConsumerHistory()
    history.consumer()
    for _ in range(copies):
        history.message(1, 0, num_messages=2)
    for index in range(2):
        history.receive(1, 0, f"m{index}", batch_index=index)
        history.call("ack", (1, 0), batch_index=index)
    history.request("CLOSE_CONSUMER")
    history.answer()
    found = names(judge(history, *acks.INVARIANTS))
    assert (("CCLOSE-02", "closed-before-acks") in found) is (copies == 1)


CASES[("ACK-25", "acked-message-came-back")] = (
    story(got(0, 1), acked(0), again(0, 1)),
    story(got(0, 1), acked(0), again(1)),
)
CASES[("ACK-IND-06", "acked-message-came-back")] = (
    story(got(0, 1), acked(0, 0), again(0, 1)),
    story(got(0, 1), acked(0, 0), again(1)),
)
CASES[("C5", "acked-message-came-back")] = (
    story(got(0, 1, 2), acked(1, **up), again(1, 2)),
    story(got(0, 1, 2), acked(1, **up), again(2)),
)


def crash(history: ConsumerHistory) -> None:
    history.add(layer="fault", kind="broker_kill", fault="{}")


long_ago = step("wait", 70 * SECOND)
CASES[("C6", "acked-message-came-back")] = (
    story(got(0, 1), acked(0), long_ago, crash, again(0, 1)),
    story(got(0, 1), acked(0), long_ago, crash, again(1)),
)


def fault(kind: str, **columns: Any) -> Story:
    return lambda history: history.add(layer="fault", kind=kind, fault="{}", **columns) and None


def unloaded(history: ConsumerHistory) -> None:
    """The topic is unloaded: its consumer is closed by the broker, and comes back on the same connection."""
    fault("unload", topic=TOPIC)(history)
    history.wire("CLOSE_CONSUMER", to="client", request_id=500)
    history.wait(2 * SECOND)
    history.subscribe()
    history.flow(10)


a_while = step("wait", 2 * SECOND)
CASES[("MARKDEL-04", "acked-message-came-back")] = (
    story(got(0, 1), acked(0), a_while, unloaded, got(0, 1)),
    story(got(0, 1), acked(0), a_while, unloaded, got(1)),
)


def members(*sets: int | None, frame: int | None = None) -> Story:
    def tell(history: ConsumerHistory) -> None:
        history.consumer("c", "shared")
        history.message(1, 0, num_messages=3)
        if frame is not None:
            history.ack((1, 0), ack_set=[frame])
        for left in sets:
            history.redeliver((1, 0))
            history.message(1, 0, num_messages=3, ack_set=None if left is None else [left])

    return tell


CASES[("C7", "acked-member-came-back")] = (members(0b110, 0b111, frame=0b110), members(0b110, 0b110, frame=0b110))
CASES[("ACK-BATCH-01", "member-acked-by-nobody")] = (members(0b100, frame=0b110), members(0b110, frame=0b110))


def receipts(*answers: int, late: bool = False) -> Story:
    def tell(history: ConsumerHistory) -> None:
        history.consumer()
        history.delivered(1, 0)
        history.call("ack", (1, 0), extra={"confirmed": True})
        history.ack((1, 0), request_id=77)
        for request in answers:
            history.wire("ACK_RESPONSE", to="client", request_id=request)
        if late:
            history.end((1, 0))

    return tell


CASES[("ACK-IND-04", "ack-answered-twice")] = (receipts(77, 77), receipts(77))
CASES[("ACK-IND-04", "answer-without-ack")] = (receipts(77, 78), receipts(77))
CASES[("ACK-IND-04", "ack-not-answered")] = (receipts(late=True), receipts(77, late=True))


def cursor(ledger: int | None, entry: int | None, **extra: Any) -> Story:
    return lambda history: (
        history.add(
            layer="admin",
            kind="CURSOR",
            topic=TOPIC,
            subscription=SUBSCRIPTION,
            ledger_id=ledger,
            entry_id=entry,
            extra=extra,
        )
        and None
    )


CASES[("C2", "mark-delete-went-back")] = (
    story(got(0, 1, 2), acked(0, 1), cursor(1, 1), cursor(1, 0)),
    story(got(0, 1, 2), acked(0), cursor(1, 0), acked(1), cursor(1, 1)),
)
stale = step("ack", (1, 0), cumulative=True, conn=1, sides="broker")
CASES[("ACK-CUM-03", "mark-delete-went-back")] = (
    story(got(0, 1, 2), acked(2, **up), cursor(1, 2), stale, cursor(1, 0)),
    story(got(0, 1, 2), acked(2, **up), cursor(1, 2), stale, cursor(1, 2)),
)
CASES[("C3", "crash-lost-too-much")] = (
    story(got(0, 1), acked(0, 1), cursor(1, 1), long_ago, crash, cursor(1, 0)),
    story(got(0, 1), acked(0, 1), cursor(1, 0), long_ago, cursor(1, 1), crash, cursor(1, 0)),
)
CASES[("C4", "unacked-entry-deleted")] = (
    story(got(0, 1), acked(0), cursor(1, 1), end(0, 1)),
    story(got(0, 1), acked(0, 1), cursor(1, 1), end(0, 1)),
)


def half_deleted(*sets: int) -> Story:
    def tell(history: ConsumerHistory) -> None:
        history.consumer()
        history.message(1, 0, num_messages=2)
        for index, left in enumerate(sets):
            history.receive(1, 0, f"m{index}", batch_index=index)
            history.call("ack", (1, 0), batch_index=index)
            history.ack((1, 0), ack_set=[left])
        cursor(1, 0)(history)
        history.wait(3 * SECOND)
        history.quiescent()
        history.entry(1, 0, num_messages=2)
        history.log_end()

    return tell


CASES[("MARKDEL-03", "unacked-entry-deleted")] = (half_deleted(0b10), half_deleted(0b10, 0b01))


def settled(mark: tuple[int, int], following: tuple[int, int], backlog: int | None = None) -> Story:
    """Two entries, both acked; the mark-delete position is sampled long after calm."""

    def tell(history: ConsumerHistory) -> None:
        history.consumer()
        for place in ((1, 0), following):
            history.delivered(*place)
            history.call("ack", place)
            history.ack(place)
        history.wait(3 * SECOND)
        history.quiescent()
        cursor(*mark, **({} if backlog is None else {"backlog": backlog}))(history)
        history.entry(1, 0)
        history.entry(*following)
        history.log_end()

    return tell


CASES[("MARKDEL-01", "mark-delete-behind")] = (settled((1, 0), (1, 1)), settled((1, 1), (1, 1)))
CASES[("MARKDEL-02", "mark-delete-behind")] = (settled((1, 0), (2, 0)), settled((2, 0), (2, 0)))
CASES[("C8", "backlog-after-all-acks")] = (settled((1, 1), (1, 1), 1), settled((1, 1), (1, 1), 0))


def lost_flush(resent: bool) -> Story:
    def tell(history: ConsumerHistory) -> None:
        history.consumer()
        for entry in range(2):
            history.delivered(1, entry)
        history.call("ack_cumulative", (1, 1))
        history.ack((1, 1), cumulative=True, sides="client")
        history.closed()
        history.subscribe(conn=2)
        history.flow(10, conn=2)
        history.message(1, 0, conn=2)
        history.message(1, 1, conn=2)
        if resent:
            history.ack((1, 1), cumulative=True, conn=2)
        history.end((1, 0), (1, 1))

    return tell


CASES[("ACK-CUM-05", "stranded-cumulative-ack")] = (lost_flush(False), lost_flush(True))


@pytest.mark.parametrize(("clause", "name"), sorted(CASES))
def test_a_breach_is_named(clause: str, name: str) -> None:
    history = ConsumerHistory()
    CASES[(clause, name)][0](history)
    assert names(judge(history, *acks.INVARIANTS)) == {(clause, name)}


@pytest.mark.parametrize(("clause", "name"), sorted(CASES))
def test_a_clean_history_is_judged_and_passes(clause: str, name: str) -> None:
    history = ConsumerHistory()
    CASES[(clause, name)][1](history)
    results = judge(history, *acks.INVARIANTS)
    assert names(results) == set()
    assert results[clause].judged > 0


def test_a_crash_soon_after_the_ack_decides_nothing() -> None:
    history = ConsumerHistory()
    story(got(0, 1), acked(0), crash, again(0, 1))(history)
    results = judge(history, *acks.INVARIANTS)
    assert names(results) == set()
    assert results["C6"].undecided


@pytest.mark.parametrize(
    ("between", "found"),
    [
        ((), False),
        ((step("wait", 2 * SECOND), acked(1)), True),
        ((step("wait", SECOND), acked(1)), False),
        ((step("wait", 2 * SECOND), acked(0)), False),
    ],
)
def test_an_ack_outlives_a_crash_when_the_cursor_was_written_since(between: tuple[Story, ...], found: bool) -> None:
    """At most one write a second: the first change a second later writes everything before it, too."""
    history = ConsumerHistory()
    story(got(0, 1, 2), acked(0), *between, step("wait", 2 * SECOND), crash, again(0, 1, 2))(history)
    results = judge(history, *acks.INVARIANTS)
    assert (("C6", "acked-message-came-back") in names(results)) is found
    assert bool(results["C6"].judged) is found
    assert results["C6"].undecided


def test_an_ack_that_a_paused_broker_cannot_have_read_is_not_settled() -> None:
    history = ConsumerHistory()
    paused, resumed = fault("broker_pause"), fault("broker_resume")
    story(got(0, 1), paused, acked(0), step("wait", 5 * SECOND), resumed)(history)
    history.closed()
    history.subscribe(conn=2)
    history.flow(10, conn=2)
    got(0, 1, conn=2)(history)
    assert names(judge(history, *acks.INVARIANTS)) == set()


def test_what_a_deleted_subscription_was_told_is_forgotten() -> None:
    history = ConsumerHistory()
    deleted = fault("delete_subscription", topic=TOPIC, subscription=SUBSCRIPTION)
    story(got(0, 1), acked(0), cursor(1, 0), a_while, deleted, again(0, 1), cursor(None, None))(history)
    assert names(judge(history, *acks.INVARIANTS)) == set()


def test_a_fault_on_another_topic_or_another_subscription_excuses_nothing() -> None:
    history = ConsumerHistory()
    elsewhere = fault("delete_subscription", topic="persistent://public/default/other")
    another = fault("delete_subscription", topic=TOPIC, subscription="another")
    story(got(0, 1), acked(0), a_while, elsewhere, another, again(0, 1))(history)
    assert names(judge(history, *acks.INVARIANTS)) == {("ACK-25", "acked-message-came-back")}


@pytest.mark.parametrize("kind", ["unload", "unload_namespace", "broker_stop"])
def test_the_mark_delete_position_is_kept_when_a_topic_is_given_up_in_good_order(kind: str) -> None:
    history = ConsumerHistory()
    story(got(0, 1), acked(0, 1), cursor(1, 1), fault(kind), fault("broker_ready"), cursor(1, 0))(history)
    assert names(judge(history, *acks.INVARIANTS)) == {
        ("C2", "mark-delete-went-back"),
        ("MARKDEL-04", "mark-delete-went-back"),
    }


def test_samples_whose_order_is_not_known_are_not_compared() -> None:
    """Two questions under way at once may have been answered in either order."""
    history = ConsumerHistory()
    story(got(0, 1), acked(0, 1))(history)
    asked = len(history.events) * 1_000_000
    cursor(1, 1)(history)
    cursor(1, 0, asked_ns=asked - 1)(history)
    assert names(judge(history, *acks.INVARIANTS)) == set()
    later = asked + 5_000_000
    history.wait(10)
    cursor(1, 0, asked_ns=later)(history)
    assert names(judge(history, *acks.INVARIANTS)) == {("C2", "mark-delete-went-back")}


def test_a_sample_that_a_crash_came_in_between_is_not_compared() -> None:
    history = ConsumerHistory()
    story(got(0, 1), acked(0, 1), long_ago, cursor(1, 1), long_ago)(history)
    asked = history.events[-1].time_ns + 1
    crash(history)
    cursor(1, 0, asked_ns=asked)(history)
    assert names(judge(history, *acks.INVARIANTS)) == set()


def test_a_position_seen_after_one_crash_outlives_the_next() -> None:
    history = ConsumerHistory()
    ready = fault("broker_ready")
    story(got(0, 1), acked(0, 1), crash, ready, cursor(1, 0), crash, ready, cursor(None, None))(history)
    assert names(judge(history, *acks.INVARIANTS)) == {("C3", "crash-lost-too-much")}


def test_a_position_that_was_acked_again_after_a_crash_may_be_lost_with_the_next() -> None:
    history = ConsumerHistory()
    ready = fault("broker_ready")
    story(got(0, 1), acked(0, 1), crash, ready)(history)
    history.closed()
    history.subscribe(conn=2)
    history.flow(10, conn=2)
    got(0, conn=2)(history)
    history.ack((1, 0), conn=2)
    cursor(1, 0)(history)
    crash(history)
    ready(history)
    cursor(None, None)(history)
    assert names(judge(history, *acks.INVARIANTS)) == set()


def test_an_ack_before_a_crash_need_not_move_the_mark_after_it() -> None:
    history = ConsumerHistory()
    story(got(0, 1), acked(0, 1), crash, fault("broker_ready"), step("wait", 3 * SECOND))(history)
    history.quiescent()
    cursor(1, 0, backlog=1)(history)
    history.entry(1, 0)
    history.entry(1, 1)
    history.log_end()
    assert names(judge(history, *acks.INVARIANTS)) == set()


def test_a_backlog_quota_may_skip_entries() -> None:
    history = ConsumerHistory()
    story(got(0, 1), acked(0), fault("backlog_quota"), cursor(1, 1), end(0, 1))(history)
    results = judge(history, *acks.INVARIANTS)
    assert names(results) == set()
    assert results["C4"].undecided


def test_an_ack_that_may_have_been_lost_with_its_connection_excuses_a_redelivery() -> None:
    history = ConsumerHistory()
    history.consumer()
    got(0, 1)(history)
    acked(0)(history)
    history.closed()
    history.subscribe(conn=2)
    history.flow(10, conn=2)
    got(0, 1, conn=2)(history)
    assert names(judge(history, *acks.INVARIANTS)) == set()


def test_an_ack_after_the_consumer_unsubscribed_is_remembered_by_nobody() -> None:
    history = ConsumerHistory()
    history.consumer()
    got(0, 1)(history)
    history.request("UNSUBSCRIBE")
    acked(0)(history)
    history.wait(2 * SECOND)
    history.subscribe("again", conn=2)
    history.flow(10, "again", conn=2)
    got(0, 1, conn=2, name="again")(history)
    assert names(judge(history, *acks.INVARIANTS)) == set()


@pytest.mark.parametrize(("also", "found"), [((2,), False), ((1, 2), False), ((), True), ((1,), True)])
def test_a_cumulative_ack_inside_a_batch_may_name_what_was_acked_one_by_one_behind_it(
    also: tuple[int, ...], found: bool
) -> None:
    history = ConsumerHistory()
    history.consumer()
    history.message(1, 0, num_messages=3)
    for index in range(3):
        history.receive(1, 0, f"m{index}", batch_index=index)
    for index in also:
        history.call("ack", (1, 0), batch_index=index)
    history.call("ack_cumulative", (1, 0), batch_index=0 if 1 in also else 1)
    history.ack((1, 0), cumulative=True)
    results = judge(history, *acks.INVARIANTS)
    assert (names(results) == {("ACK-CUM-06", "acked-beyond-the-call")}) is found
    assert results["ACK-CUM-06"].judged


@pytest.mark.parametrize(("shown", "found"), [(0b1100, False), (0b1000, True)])
def test_a_seek_into_a_batch_may_hide_the_members_before_its_target(shown: int, found: bool) -> None:
    history = ConsumerHistory()
    history.consumer()
    history.message(1, 0, num_messages=4)
    history.wire("SEEK", request_id=9, ledger_id=1, entry_id=0, ack_set=[0b1100])
    history.message(1, 0, num_messages=4, ack_set=[shown])
    assert (names(judge(history, *acks.INVARIANTS)) == {("ACK-BATCH-01", "member-acked-by-nobody")}) is found


def test_every_clause_has_a_breach() -> None:
    declared = {clause for invariant in acks.INVARIANTS for clause in invariant.clauses}
    assert declared == {clause for clause, _ in CASES}
