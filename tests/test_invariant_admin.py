"""What the admin service tells against what the frames showed: hand-made histories of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.invariants import admin
from tests.consumer_history import CONSUMER, SECOND, SUBSCRIPTION, TOPIC, ConsumerHistory
from tests.history_builder import judge, names

Position = tuple[int, int]


class AdminHistory(ConsumerHistory):
    """One topic, one subscription; a sample is asked for 2 ms before it is recorded unless ``asked`` says otherwise."""

    @property
    def now(self) -> int:
        return len(self.events) * 1_000_000 + self._waited

    def join(self, name: str = CONSUMER, kind: str = "shared", conn: int = 1, permits: int = 10) -> None:
        self._requests += 1
        extra = {"consumer_id": 1, "type": kind, "initial_position": "earliest", "durable": True}
        self.wire("SUBSCRIBE", name, conn, request_id=self._requests, extra=extra)
        self.confirmed(name, conn)
        if permits:
            self.flow(permits, name, conn)

    def confirmed(self, name: str = CONSUMER, conn: int = 1) -> None:
        """SUCCESS, with the names of what it answers, as taps record it."""
        self.frame("SUCCESS", to="client", conn=conn, consumer=name, subscription=SUBSCRIPTION,
                   request_id=self._requests)  # fmt: skip

    def told(self, kind: str, extra: dict[str, Any], asked: float = 2, **columns: Any) -> None:
        extra = {"asked_ns": int(self.now - asked * 1_000_000), **extra}
        self.add(layer="admin", kind=kind, topic=TOPIC, extra=extra, **columns)

    def stats(
        self, permits: int = 10, unacked: int = 0, *others: str, name: str | None = CONSUMER, asked: float = 2,
        blocked: bool = False,
    ) -> None:  # fmt: skip
        listed = [*([name] if name else []), *others]
        consumers = [{"name": one, "permits": permits, "unacked": unacked, "blocked": blocked} for one in listed]
        subscription = {"type": "shared", "backlog": 0, "unacked": unacked, "consumers": consumers}
        self.told("TOPIC_STATS", {"subscriptions": {SUBSCRIPTION: subscription}}, asked)

    def cursor(
        self, mark: Position | None, *ranges: tuple[int, int, int], backlog: int | None = None, asked: float = 2
    ) -> None:
        ledger, entry = mark or (None, None)
        extra = {"individually_deleted": [list(part) for part in ranges], "backlog": backlog}
        self.told("CURSOR", extra, asked, subscription=SUBSCRIPTION, ledger_id=ledger, entry_id=entry)

    def ledgers(
        self, last: Position | None, *rows: tuple[int, int | None], asked: float = 2, state: str = "LedgerOpened"
    ) -> None:
        ledger, entry = last or (None, None)
        extra = {"ledgers": [[one, count, None] for one, count in rows], "entries": None, "state": state}
        self.told("LEDGERS", extra, asked, ledger_id=ledger, entry_id=entry)

    def fault(self, kind: str, **columns: Any) -> None:
        self.add(layer="fault", kind=kind, **columns)

    def rest(self) -> None:
        self.wait(2 * SECOND)


Story = Callable[[AdminHistory], None]


def verdict(tell: Story) -> tuple[set[tuple[str, str]], dict[str, int]]:
    history = AdminHistory()
    tell(history)
    results = judge(history, *admin.INVARIANTS)
    return names(results), {clause: result.judged for clause, result in results.items()}


def sent(count: int, permits: int, unacked: int, **how: Any) -> Story:
    """That many messages to a consumer with ten permits, a rest, a sample."""

    def tell(history: AdminHistory) -> None:
        history.join()
        for entry in range(count):
            history.message(1, entry)
        history.rest()
        history.stats(permits, unacked, **how)

    return tell


def acked(*entries: int, unacked: int, twice: bool = False) -> Story:
    """Three messages, some acked, a rest, a sample."""

    def tell(history: AdminHistory) -> None:
        history.join()
        for entry in range(3):
            history.message(1, entry)
        for _ in range(1 + twice):
            history.ack(*((1, entry) for entry in entries))
        history.rest()
        history.stats(7, unacked)

    return tell


def closed(*listed: str) -> Story:
    def tell(history: AdminHistory) -> None:
        history.join()
        history.request("CLOSE_CONSUMER")
        history.confirmed()
        history.rest()
        history.stats(10, 0, *listed, name=None)

    return tell


def stored(history: AdminHistory, *positions: Position) -> None:
    for ledger, entry in positions:
        history.published(ledger, entry)


def read(history: AdminHistory, *positions: Position) -> None:
    history.rest()
    for ledger, entry in positions:
        history.entry(ledger, entry, f"{ledger}:{entry}")
    history.log_end()


FOUR = tuple((1, entry) for entry in range(4))


def holes(mark: Position | None, *ranges: tuple[int, int, int], backlog: int | None = None) -> Story:
    """Four entries, of which the first, third and fourth are acked one by one."""

    def tell(history: AdminHistory) -> None:
        history.join()
        stored(history, *FOUR)
        for position in FOUR:
            history.message(*position)
        history.ack((1, 0), (1, 2), (1, 3))
        history.rest()
        history.cursor(mark, *ranges, backlog=backlog)
        read(history, *FOUR)

    return tell


def listed(last: Position | None, *rows: tuple[int, int | None], state: str = "LedgerOpened") -> Story:
    """Three entries in ledger 1 and one in ledger 4."""
    places = ((1, 0), (1, 1), (1, 2), (4, 0))

    def tell(history: AdminHistory) -> None:
        stored(history, *places)
        history.rest()
        history.ledgers(last, *rows, state=state)
        read(history, *places)

    return tell


def limited(counts: dict[int, int], between: str = "", limit: str = '{"entries": 2}') -> Story:
    """A rollover every two entries from some moment on; ledger 1 is older. ``between`` happens before ledger 5."""

    def tell(history: AdminHistory) -> None:
        stored(history, *((1, entry) for entry in range(3)))
        history.fault("ledger_rollover", fault=f'{{"kind": "ledger_rollover", "attributes": {limit}}}')
        history.fault("broker_stop")
        history.fault("broker_ready")
        for ledger, count in counts.items():
            if ledger == 5 and between:
                history.fault(between)
            stored(history, *((ledger, entry) for entry in range(count)))
        read(history, *((1, entry) for entry in range(3)),
             *((ledger, entry) for ledger, count in counts.items() for entry in range(count)))  # fmt: skip

    return tell


CASES: dict[tuple[str, str], tuple[tuple[Story, ...], tuple[Story, ...]]] = {
    ("STAT-01", "permits-miscounted"): (
        (sent(3, 8, 3), sent(3, 6, 3), sent(0, 11, 0)),
        (sent(3, 7, 3), sent(0, 10, 0)),
    ),
    ("STAT-02", "unacked-miscounted"): (
        (sent(3, 7, 2), sent(3, 7, 4), acked(1, unacked=3), acked(1, unacked=1), acked(1, unacked=1, twice=True)),
        (sent(3, 7, 3), acked(1, unacked=2), acked(1, unacked=2, twice=True), acked(0, 1, 2, unacked=0)),
    ),
    ("STAT-03", "backlog-miscounted"): (
        (holes((1, 0), (1, 2, 3), backlog=3), holes((1, 0), (1, 2, 3), backlog=0)),
        (holes((1, 0), (1, 2, 3), backlog=1),),
    ),
    ("STAT-04", "closed-consumer-listed"): ((closed(CONSUMER),), (closed(), closed("another"))),
    ("STAT-04", "consumer-not-listed"): ((sent(0, 10, 0, name=None),), (sent(0, 10, 0),)),
    ("ACK-26", "unacked-below-zero"): ((sent(0, 10, -1),), (sent(0, 10, 0),)),
    ("MARKDEL-05", "unacked-entry-in-range"): (
        (holes((1, 0), (1, 1, 3)),),
        (holes((1, 0), (1, 2, 3)), holes((1, 0), (1, 2, 2), (1, 3, 3))),
    ),
    ("MARKDEL-05", "acked-entry-not-deleted"): (
        (holes((1, 0), (1, 3, 3)), holes((1, 0))),
        (holes((1, 0), (1, 2, 3)),),
    ),
    ("LEDGER-02", "ledger-not-left-when-full"): (
        (limited({3: 3, 5: 1}), limited({3: 1, 5: 1})),
        (limited({3: 2, 5: 2, 6: 1}), limited({3: 1, 5: 1}, "unload"), limited({3: 2, 5: 2}, "broker_kill")),
    ),
    ("LEDGER-05", "ledgers-miscounted"): (
        (
            listed((4, 0), (1, 3), (4, 2)),
            listed((4, 0), (1, 2), (4, 1)),
            listed((4, 0), (4, 1)),
            listed((1, 2), (1, 3), (4, 1)),
            listed((4, 1), (1, 3), (4, 1)),
            listed(None, (1, 3), (4, 1)),
            listed((4, 0), (1, 4), (4, 1), state="Terminated"),
        ),
        (
            listed((4, 0), (1, 3), (4, 1)),
            listed((4, 0), (1, 3), (4, 9), state="Terminated"),
            listed((4, 0), (1, 3), (4, None)),
            listed((4, 0), (1, 3), (4, 1), (6, 0)),
        ),
    ),
}


@pytest.mark.parametrize(("clause", "name"), sorted(CASES))
def test_a_breach_is_named(clause: str, name: str) -> None:
    for tell in CASES[(clause, name)][0]:
        found, judged = verdict(tell)
        assert (clause, name) in found
        assert {breach for breach in found if breach[0] == clause} == {(clause, name)}
        assert judged[clause] > 0


@pytest.mark.parametrize(("clause", "name"), sorted(CASES))
def test_a_clean_history_is_judged_and_passes(clause: str, name: str) -> None:
    for tell in CASES[(clause, name)][1]:
        found, judged = verdict(tell)
        assert found == set()
        assert judged[clause] > 0


def test_every_clause_has_a_breach() -> None:
    declared = {clause for invariant in admin.INVARIANTS for clause in invariant.clauses}
    assert declared == {clause for clause, _ in CASES}


# ---------------------------------------------------------------------------------------------------- permits


@pytest.mark.parametrize(("permits", "right"), [(10, True), (15, True), (20, True), (12, False), (25, False)])
def test_a_flow_that_the_broker_may_not_have_read_is_granted_or_not(permits: int, right: bool) -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        history.rest()
        history.flow(5)
        history.flow(5)
        history.stats(permits)

    assert (verdict(tell)[0] == set()) is right


@pytest.mark.parametrize(("permits", "right"), [(10, True), (9, True), (8, True), (7, False), (11, False)])
def test_a_message_on_its_way_to_the_tap_is_charged_or_not(permits: int, right: bool) -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        history.rest()
        history.stats(permits)
        history.message(1, 0)
        history.message(1, 1)
        history.rest()
        history.message(1, 2)

    assert (verdict(tell)[0] == set()) is right


@pytest.mark.parametrize(("permits", "right"), [(10 - 5, True), (10 - 2, True), (10 - 6, False), (10 - 1, False)])
def test_a_batch_of_which_some_are_acked_costs_the_rest_or_all(permits: int, right: bool) -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        history.message(1, 0, num_messages=5, ack_set=[0b11])
        history.rest()
        history.stats(permits, 2)

    assert (verdict(tell)[0] == set()) is right


def test_permits_of_a_blocked_consumer_are_parked() -> None:
    assert verdict(sent(3, 0, 3, blocked=True))[0] == set()


def nothing_to_judge(tell: Story, *clauses: str) -> bool:
    found, judged = verdict(tell)
    return found == set() and not any(judged[clause] for clause in clauses)


def test_a_consumer_id_that_was_used_before_on_the_connection_decides_nothing() -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        history.join()
        history.rest()
        history.stats(99)

    assert nothing_to_judge(tell, "STAT-01")


def test_a_grant_before_the_subscription_stood_decides_nothing() -> None:
    def tell(history: AdminHistory) -> None:
        history.wire("SUBSCRIBE", request_id=7, extra={"consumer_id": 1, "type": "shared"})
        history.flow(10)
        history.rest()
        history.stats(99)

    assert nothing_to_judge(tell, "STAT-01")


def test_two_consumers_of_one_name_decide_nothing() -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        history.join(conn=2)
        history.rest()
        history.stats(99, 0, CONSUMER)

    assert nothing_to_judge(tell, "STAT-01", "STAT-02")


@pytest.mark.parametrize("kind", ["broker_kill", "broker_stop", "broker_pause"])
def test_a_broker_that_is_away_decides_nothing(kind: str) -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        history.fault(kind)
        history.rest()
        history.stats(99)

    assert nothing_to_judge(tell, "STAT-01", "STAT-04")


def test_a_broker_that_has_just_come_back_decides_nothing_and_later_it_does() -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        history.fault("broker_pause")
        history.rest()
        history.fault("broker_resume")
        history.stats(99)

    def later(history: AdminHistory) -> None:
        tell(history)
        history.rest()
        history.stats(99)

    assert nothing_to_judge(tell, "STAT-01")
    assert verdict(later)[0] == {("STAT-01", "permits-miscounted")}


# ---------------------------------------------------------------------------------------------------- unacked


@pytest.mark.parametrize("unacked", [0, 1])
def test_what_was_given_back_may_count_or_not(unacked: int) -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        history.message(1, 0)
        history.redeliver((1, 0))
        history.rest()
        history.stats(9, unacked)

    assert verdict(tell)[0] == set()


def test_everything_given_back_is_what_was_sent_until_then() -> None:
    def tell(history: AdminHistory, unacked: int) -> None:
        history.join()
        history.message(1, 0)
        history.redeliver()
        history.message(1, 1)
        history.rest()
        history.stats(8, unacked)

    assert verdict(lambda history: tell(history, 1))[0] == set()
    assert verdict(lambda history: tell(history, 0))[0] == {("STAT-02", "unacked-miscounted")}


@pytest.mark.parametrize("unacked", [0, 1])
def test_an_ack_that_may_not_have_been_read_counts_or_not(unacked: int) -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        history.message(1, 0)
        history.rest()
        history.ack((1, 0))
        history.stats(9, unacked)

    assert verdict(tell)[0] == set()


def test_an_exclusive_consumer_owes_nothing() -> None:
    def tell(history: AdminHistory) -> None:
        history.join(kind="exclusive")
        history.message(1, 0)
        history.rest()
        history.stats(9, 0)

    found, judged = verdict(tell)
    assert found == set()
    assert judged["STAT-02"] == 0


# ---------------------------------------------------------------------------------------------------- who is there


def test_a_consumer_that_the_broker_is_closing_may_be_listed_or_not() -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        history.rest()
        history.stats(name=None)
        history.wire("CLOSE_CONSUMER", to="client")

    assert verdict(tell)[0] == set()


def test_a_close_that_was_not_confirmed_decides_nothing() -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        history.request("CLOSE_CONSUMER")
        history.rest()
        history.stats()

    assert nothing_to_judge(tell, "STAT-04")


# ---------------------------------------------------------------------------------------------------- cursors


def test_acks_about_the_time_of_a_sample_decide_neither_backlog_nor_what_is_missing() -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        stored(history, *FOUR)
        history.rest()
        history.ack((1, 2))
        history.cursor(None, backlog=9)
        read(history, *FOUR)

    assert nothing_to_judge(tell, "STAT-03", "MARKDEL-05")


def test_entries_stored_about_the_time_of_a_sample_count_or_not() -> None:
    def tell(history: AdminHistory, backlog: int) -> None:
        history.join()
        stored(history, (1, 0))
        history.rest()
        history.cursor(None, backlog=backlog)
        stored(history, (1, 1))
        history.rest()
        stored(history, (1, 2))
        read(history, (1, 0), (1, 1), (1, 2))

    for backlog, right in ((1, True), (2, True), (0, False), (3, False)):
        assert (verdict(lambda history, backlog=backlog: tell(history, backlog))[0] == set()) is right


@pytest.mark.parametrize("kind", ["delete_subscription", "backlog_quota"])
def test_a_cursor_that_an_administrator_may_have_moved_decides_nothing(kind: str) -> None:
    def tell(history: AdminHistory) -> None:
        history.fault(kind)
        holes((1, 0), (1, 1, 3), backlog=9)(history)

    assert nothing_to_judge(tell, "STAT-03", "MARKDEL-05")


def test_a_seek_moves_the_cursor() -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        history.request("SEEK")
        holes((1, 0), (1, 1, 3), backlog=9)(history)

    assert nothing_to_judge(tell, "STAT-03", "MARKDEL-05")


def test_a_crash_may_forget_acks_and_makes_up_none() -> None:
    def tell(history: AdminHistory, *ranges: tuple[int, int, int], backlog: int) -> None:
        history.join()
        stored(history, *FOUR)
        history.ack((1, 0), (1, 2), (1, 3))
        history.fault("broker_kill")
        history.fault("broker_ready")
        history.rest()
        history.cursor(None, *ranges, backlog=backlog)
        read(history, *FOUR)

    assert verdict(lambda history: tell(history, backlog=4))[0] == set()
    assert verdict(lambda history: tell(history, (1, 3, 3), backlog=3))[0] == set()
    assert verdict(lambda history: tell(history, (1, 1, 1), backlog=0))[0] == {
        ("MARKDEL-05", "unacked-entry-in-range"),
        ("STAT-03", "backlog-miscounted"),
    }


def test_an_ack_that_may_be_lost_with_its_connection_is_not_missed() -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        stored(history, *FOUR)
        history.ack((1, 2))
        history.closed(by="broker")
        history.rest()
        history.cursor(None, backlog=4)
        read(history, *FOUR)

    assert verdict(tell)[0] == set()


def test_no_mark_and_the_first_entry_acked_may_be_a_ledger_that_is_no_longer_listed() -> None:
    assert verdict(holes(None, backlog=1))[0] == set()


def test_a_final_read_that_is_not_complete_decides_no_backlog() -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        stored(history, *FOUR)
        history.rest()
        history.cursor(None, backlog=9)
        history.entry(1, 0, "1:0")

    assert nothing_to_judge(tell, "STAT-03", "LEDGER-05")


# ---------------------------------------------------------------------------------------------------- ledgers


def test_ledgers_are_not_counted_while_anything_is_sent() -> None:
    def tell(history: AdminHistory) -> None:
        stored(history, (1, 0))
        history.ledgers((1, 7), (1, 8))
        read(history, (1, 0))

    assert nothing_to_judge(tell, "LEDGER-05")


def test_a_list_of_ledgers_that_is_not_complete_decides_nothing() -> None:
    def tell(history: AdminHistory) -> None:
        stored(history, (1, 0))
        history.rest()
        history.told("LEDGERS", {"ledgers": [], "entries": 1}, ledger_id=1, entry_id=0)
        read(history, (1, 0))

    assert nothing_to_judge(tell, "LEDGER-05")


def test_a_limit_of_bytes_says_nothing_about_entries() -> None:
    assert nothing_to_judge(limited({3: 9, 5: 1}, limit='{"megabytes": 1}'), "LEDGER-02")


def test_without_a_limit_no_ledger_is_full() -> None:
    def tell(history: AdminHistory) -> None:
        stored(history, (1, 0), (2, 0))
        read(history, (1, 0), (2, 0))

    assert nothing_to_judge(tell, "LEDGER-02")


def test_a_ledger_that_an_unload_ends_may_have_begun_after_it_was_asked_for() -> None:
    def tell(history: AdminHistory) -> None:
        history.fault("ledger_rollover", fault='{"kind": "ledger_rollover", "attributes": {"entries": 2}}')
        history.fault("broker_ready")
        stored(history, (3, 0), (3, 1))
        history.fault("unload")
        stored(history, (4, 0), (5, 0))
        read(history, (3, 0), (3, 1), (4, 0), (5, 0))

    assert verdict(tell)[0] == set()


def test_a_topic_of_which_a_ledger_was_deleted_meanwhile_decides_nothing() -> None:
    def tell(history: AdminHistory) -> None:
        history.join()
        stored(history, (1, 0), (2, 0))
        history.rest()
        history.cursor(None, backlog=2)
        history.ledgers((2, 0), (1, 1), (2, 1))
        read(history, (2, 0))

    assert nothing_to_judge(tell, "STAT-03", "LEDGER-05")
