"""Deduplication: each clause is broken by a history and kept by another."""

import pytest

from harness.invariants.dedup import INVARIANTS
from tests.history_builder import History, digest, judge
from tests.invariant_cases import Cases

cases = Cases(INVARIANTS)
breaks, holds = cases.breaks, cases.holds


def dup_send(h: History, sequence_id: int, payload: str) -> None:
    """A send acknowledged as a duplicate, whose frames all passed."""
    h.published(sequence_id, payload, None)


@breaks("D1.1", "stored-twice")
@breaks("DEDUP-04", "stored-twice")
def _(h: History) -> None:
    h.dedup(True)
    h.published(0, "a", (0, 0))
    h.sent(0, "a", conn=2)
    h.entry(0, 0, "a", sequence_id=0)
    h.entry(0, 1, "a", sequence_id=0)
    h.log_end()


def test_ids_the_broker_was_never_told_are_no_breach_of_it():
    h = History()
    h.dedup(True)
    h.sent(0, ["a", "b"], highest_sequence_id=None)
    h.sent(1, "b", conn=2)
    for at, columns in (
        ((0, 0), h.send_columns(0, ["a", "b"], highest_sequence_id=None)),
        ((0, 1), h.send_columns(1, "b")),
    ):
        h.entry(*at, **columns)
    h.log_end()
    result = judge(h, *INVARIANTS)["D1.1"]
    assert (result.anomalies, len(result.undecided)) == ([], 1)


@breaks("D1.1", "stored-twice")
def _(h: History) -> None:
    h.dedup(True)
    h.sent(0, ["a", "b"])
    h.sent(1, "b", conn=2)
    h.entry(0, 0, **h.send_columns(0, ["a", "b"]))
    h.entry(0, 1, **h.send_columns(1, "b"))
    h.log_end()


@breaks("D1.1", "stored-twice")
def _(h: History) -> None:
    h.dedup(True)
    h.sent(0, ["a", "b"], highest_sequence_id=None)
    for entry in (0, 1):
        h.entry(0, entry, **h.send_columns(0, ["a", "b"], highest_sequence_id=None))
    h.log_end()


def fresh_beside_a_repeat(h: History, *first: str) -> None:
    """Ids 0.. are stored; then a batch that holds the last of them again and a fresh one is dropped whole."""
    last = len(first) - 1
    for place, payload in enumerate(first):
        h.published(place, payload, (0, place))
        h.entry(0, place, payload, sequence_id=place)
    invoked = h.invoke("send", producer="p", payload_digest=digest("fresh"), sequence_id=last + 1)
    h.sent(last, ["again", "fresh"], highest_sequence_id=None)
    h.receipt(last, None)
    h.acknowledged(invoked, None)
    h.log_end()


def test_a_fresh_id_in_a_batch_that_begins_with_a_repeat_is_dropped_by_right():
    h = History()
    h.dedup(True)
    fresh_beside_a_repeat(h, "a", "b")
    result = judge(h, *INVARIANTS)
    assert (result["D1.4"].anomalies, len(result["D1.4"].undecided)) == ([], 1)
    assert (result["DEDUP-05"].anomalies, result["DEDUP-05"].judged) == ([], 1)


@pytest.mark.parametrize(("last", "named"), [(0, "resumes-too-low"), (1, None), (2, None)])
def test_resuming_is_judged_by_what_was_announced(last, named):
    h = History()
    h.dedup(True)
    h.published(0, "a", (0, 0))
    invoked = [h.invoke("send", producer="p", payload_digest=digest(text)) for text in "bc"]
    h.sent(1, ["b", "c"], highest_sequence_id=None)
    h.receipt(1, (0, 1))
    for send in invoked:
        h.acknowledged(send, (0, 1))
    h.registered(conn=2, last=last)
    result = judge(h, *INVARIANTS)["D1.8"]
    assert {anomaly.name for anomaly in result.anomalies} == ({named} if named else set())
    assert bool(result.undecided) is (last == 1)


@holds("D1.1", "DEDUP-04", "D1.2", "D1.3", "D1.4", "D1.6", "DEDUP-01", "DEDUP-03")
def _(h: History) -> None:
    h.dedup(True)
    h.registered()
    h.published(0, "a", (0, 0))
    invoked = h.invoke("send", producer="p", payload_digest=digest("b"))
    h.sent(1, "b")
    h.receipt(1, (0, 1), side="broker")
    h.closed()
    h.registered(conn=2, last=1)
    h.sent(1, "b", conn=2)
    h.receipt(1, None, conn=2)
    h.acknowledged(invoked, None)
    h.quiescent()
    h.entry(0, 0, "a", sequence_id=0)
    h.entry(0, 1, "b", sequence_id=1)
    h.log_end()


@breaks("D1.2", "phantom")
def _(h: History) -> None:
    h.published(0, "a", (0, 0))
    h.entry(0, 0, "a", sequence_id=0)
    h.entry(0, 1, "never sent", sequence_id=1)


@breaks("D1.2", "stored-under-another-id")
def _(h: History) -> None:
    h.published(0, "a", (0, 0))
    h.entry(0, 0, "a", sequence_id=5)


@breaks("D1.3", "acknowledged-but-missing")
def _(h: History) -> None:
    h.dedup(True)
    h.published(0, "a", (0, 0))
    h.log_end()


@breaks("D1.3", "another-message-there")
def _(h: History) -> None:
    h.dedup(True)
    h.published(0, "a", (0, 0))
    h.entry(0, 0, "b", sequence_id=0)
    h.log_end()


@breaks("D1.3", "stored-more-than-once")
def _(h: History) -> None:
    h.dedup(True)
    h.published(0, "a", (0, 0))
    h.entry(0, 0, "a", sequence_id=0)
    h.entry(0, 1, "a", sequence_id=1)
    h.log_end()


@breaks("D1.4", "duplicate-of-nothing")
def _(h: History) -> None:
    h.dedup(True)
    dup_send(h, 0, "a")
    h.log_end()


@breaks("D1.4", "duplicate-of-another-message")
def _(h: History) -> None:
    h.dedup(True)
    h.published(0, "a", (0, 0))
    dup_send(h, 0, "b")
    h.entry(0, 0, "a", sequence_id=0)
    h.log_end()


def test_an_id_the_application_used_twice_is_nobodys_fault():
    h = History()
    h.dedup(True)
    h.send("a", at=(0, 0), sequence_id=7)
    h.send("b", duplicate=True, sequence_id=7)
    h.entry(0, 0, "a", sequence_id=7)
    h.log_end()
    result = judge(h, *INVARIANTS)["D1.4"]
    assert (result.anomalies, result.judged) == ([], 0)


def test_an_application_that_goes_back_is_dropped_by_right():
    h = History()
    h.dedup(True)
    h.send("a", at=(0, 0), sequence_id=50)
    h.send("b", duplicate=True, sequence_id=3)
    h.entry(0, 0, "a", sequence_id=50)
    h.log_end()
    assert judge(h, *INVARIANTS)["D1.4"].anomalies == []


@breaks("D1.5", "failed-but-stored")
def _(h: History) -> None:
    h.dedup(True)
    h.send("a", "fail", error="queue_full")
    h.entry(0, 0, "a", sequence_id=0)
    h.log_end()


@breaks("D1.5", "unknown-stored-twice")
def _(h: History) -> None:
    h.dedup(True)
    h.send("a", "unknown", error="timeout")
    h.entry(0, 0, "a", sequence_id=0)
    h.entry(0, 1, "a", sequence_id=1)
    h.log_end()


@breaks("D1.5", "acknowledged-but-missing")
def _(h: History) -> None:
    h.dedup(False)
    h.published(0, "a", (0, 0))
    h.log_end()


@breaks("D1.5", "more-copies-than-frames")
def _(h: History) -> None:
    h.dedup(False)
    h.published(0, "a", (0, 0))
    h.entry(0, 0, "a", sequence_id=0)
    h.entry(0, 1, "a", sequence_id=0)
    h.log_end()


@holds("D1.5")
def _(h: History) -> None:
    h.dedup(True)
    h.send("a", "fail", error="queue_full")
    h.send("b", "unknown", error="timeout")
    h.entry(0, 0, "b", sequence_id=0)
    h.log_end()


@holds("D1.5", "DEDUP-09")
def _(h: History) -> None:
    h.dedup(False)
    h.published(0, "a", (0, 0))
    h.sent(0, "a", conn=2)
    h.receipt(0, (0, 1), conn=2)
    h.entry(0, 0, "a", sequence_id=0)
    h.entry(0, 1, "a", sequence_id=0)
    h.log_end()


@breaks("D1.6", "stored-out-of-order")
def _(h: History) -> None:
    h.dedup(True)
    h.published(1, "b", (0, 0))
    h.published(0, "a", (0, 1))
    h.entry(0, 0, "b", sequence_id=1)
    h.entry(0, 1, "a", sequence_id=0)
    h.log_end()


def wedge(h: History, outcome: str) -> None:
    h.dedup(True)
    invoked = h.invoke("send", producer="p", payload_digest=digest("a"))
    h.sent(0, "a")
    h.refused(0, "PersistenceError")
    if outcome == "ok":
        h.sent(0, "a", conn=2)
        h.receipt(0, (0, 0), conn=2)
        h.acknowledged(invoked, (0, 0))
        h.entry(0, 0, "a", sequence_id=0)
    else:
        h.complete(invoked, "unknown", error="timeout", time_ns=30_000_000_000)
    h.quiescent()
    h.log_end()


@breaks("D1.7", "wedged")
def _(h: History) -> None:
    wedge(h, "unknown")


@holds("D1.7", "DEDUP-06")
def _(h: History) -> None:
    wedge(h, "ok")


def test_a_wedge_under_a_fault_is_undecided():
    h = History()
    h.add(layer="fault", kind="toxic", fault="{}")
    wedge(h, "unknown")
    result = judge(h, *INVARIANTS)["D1.7"]
    assert result.anomalies == []
    assert result.undecided


def resume(h: History, last: int | None) -> None:
    h.dedup(True)
    h.registered()
    h.published(0, "a", (0, 0))
    h.published(1, "b", (0, 1))
    h.closed()
    h.registered(conn=2, request_id=2, last=last)


@breaks("D1.8", "resumes-too-low")
@breaks("DEDUP-07", "resumes-too-low")
def _(h: History) -> None:
    resume(h, 0)


@breaks("D1.8", "resumes-too-high")
@breaks("DEDUP-07", "resumes-too-high")
def _(h: History) -> None:
    resume(h, 2)


@holds("D1.8", "DEDUP-07")
def _(h: History) -> None:
    resume(h, 1)


def hole(h: History, kept: tuple[str, ...]) -> None:
    h.dedup(True)
    h.published(0, "a", (0, 0))
    h.add(layer="fault", kind="cut", fault="{}")
    h.published(1, "b", (0, 1))
    for place, payload in enumerate(("a", "b")):
        if payload in kept:
            h.entry(0, place, payload, sequence_id=place)
    h.log_end()


@breaks("D1.9", "hole")
def _(h: History) -> None:
    hole(h, ("b",))


@holds("D1.9")
def _(h: History) -> None:
    hole(h, ("a", "b"))


def refused_duplicate(h: History) -> None:
    h.dedup(True)
    h.published(0, "a", (0, 0))
    h.sent(0, "a", conn=2)
    h.refused(0, "PersistenceError", conn=2)


@breaks("DEDUP-01", "duplicate-refused")
def _(h: History) -> None:
    refused_duplicate(h)


def test_a_broker_that_something_was_done_to_may_refuse_a_duplicate():
    h = History()
    h.add(layer="fault", kind="unload")
    refused_duplicate(h)
    result = judge(h, *INVARIANTS)["DEDUP-01"]
    assert result.anomalies == []
    assert result.undecided


@breaks("DEDUP-01", "duplicate-stored")
def _(h: History) -> None:
    h.dedup(True)
    h.published(0, "a", (0, 0))
    h.sent(0, "a", conn=2)
    h.receipt(0, (0, 1), conn=2)


def overtaken(h: History, copies: int) -> None:
    h.dedup(True)
    h.sent(0, "a")
    h.sent(0, "a", conn=2)
    h.receipt(0, None, conn=2)
    for place in range(copies):
        h.entry(0, place, "a", sequence_id=0)
    h.log_end()


@breaks("DEDUP-02", "acknowledged-and-lost")
def _(h: History) -> None:
    overtaken(h, 0)


@breaks("DEDUP-02", "stored-twice")
def _(h: History) -> None:
    overtaken(h, 2)


@holds("DEDUP-02")
def _(h: History) -> None:
    overtaken(h, 1)


@breaks("DEDUP-03", "fresh-id-dropped")
def _(h: History) -> None:
    h.dedup(True)
    h.published(1, "a", (0, 0))
    h.sent(9, "b")
    h.receipt(9, None)


def straddle(h: History, at: tuple[int, int] | None) -> None:
    h.dedup(True)
    h.published(0, "a", (0, 0))
    h.sent(0, ["a", "b"])
    h.receipt(0, at, highest_sequence_id=1)


@breaks("DEDUP-05", "duplicate-stored")
def _(h: History) -> None:
    straddle(h, (0, 1))


@holds("DEDUP-05")
def _(h: History) -> None:
    straddle(h, None)


@breaks("DEDUP-06", "acknowledged-and-lost")
def _(h: History) -> None:
    h.dedup(True)
    h.sent(0, "a")
    h.refused(0, "PersistenceError")
    h.sent(0, "a", conn=2)
    h.receipt(0, None, conn=2)
    h.log_end()


def pieces(h: History, first: tuple[int, int] | None) -> None:
    h.dedup(True)
    for number, at in ((0, first), (1, (0, 1))):
        h.sent(0, f"piece {number}", chunk_uuid="u", chunk_id=number, num_chunks=2)
        h.receipt(0, at)


def test_the_last_piece_may_be_answered_before_the_others():
    h = History()
    pieces(h, (0, 0))
    for number in range(2):
        h.sent(0, f"piece {number}", chunk_uuid="u", chunk_id=number, num_chunks=2)
    h.receipt(0, None)
    h.receipt(0, (0, 2))
    results = judge(h, *INVARIANTS)
    assert not [clause for clause, result in results.items() if result.anomalies]
    assert results["DEDUP-01"].judged == 1
    assert results["DEDUP-08"].judged == 2


@breaks("DEDUP-08", "chunk-taken-for-a-duplicate")
def _(h: History) -> None:
    pieces(h, None)


@breaks("DEDUP-08", "chunk-taken-for-a-duplicate")
def _(h: History) -> None:
    h.dedup(True)
    for number in range(2):
        h.sent(0, f"piece {number}", chunk_uuid="u", chunk_id=number, num_chunks=2)
    h.receipt(0, None)
    h.receipt(0, None)


@holds("DEDUP-08")
def _(h: History) -> None:
    pieces(h, (0, 0))


@breaks("DEDUP-09", "duplicate-without-deduplication")
def _(h: History) -> None:
    h.dedup(False)
    h.published(0, "a", (0, 0))
    h.sent(0, "a", conn=2)
    h.receipt(0, None, conn=2)


@pytest.mark.parametrize(("clause", "name", "build"), cases.breaking, ids=lambda value: str(value))
def test_broken(clause, name, build):
    cases.check_broken(clause, name, build)


@pytest.mark.parametrize(("clause", "build"), cases.holding, ids=lambda value: str(value))
def test_holds(clause, build):
    cases.check_holds(clause, build)


def test_every_clause_has_both_kinds_of_history():
    assert {clause for clause, *_ in cases.breaking} == cases.clauses
    assert {clause for clause, _ in cases.holding} == cases.clauses


def test_a_switch_in_the_middle_leaves_everything_undecided():
    h = History()
    h.dedup(True)
    h.published(0, "a", (0, 0))
    h.dedup(False)
    h.sent(0, "a", conn=2)
    h.receipt(0, (0, 1), conn=2)
    h.entry(0, 0, "a", sequence_id=0)
    h.entry(0, 1, "a", sequence_id=0)
    h.log_end()
    results = judge(h, *INVARIANTS)
    assert all(not result.anomalies for result in results.values())
    assert results["D1.1"].undecided
    assert results["DEDUP-01"].undecided


def test_nothing_is_concluded_from_an_incomplete_final_read():
    h = History()
    h.dedup(True)
    h.published(0, "a", (0, 0))
    h.log_end(complete=False)
    results = judge(h, *INVARIANTS)
    assert results["D1.3"].anomalies == []
    assert results["D1.3"].undecided


def test_a_history_without_taps_still_judges_outcomes():
    h = History()
    h.dedup(True)
    h.send("a", at=(0, 0))
    h.send("b", "unknown", error="timeout")
    h.entry(0, 0, "a", sequence_id=0)
    h.log_end()
    results = judge(h, *INVARIANTS)
    assert results["D1.3"].judged == 1
    assert results["D1.5"].judged == 1
    assert results["DEDUP-01"].judged == 0


def test_a_payload_sent_twice_blames_nobody():
    h = History()
    h.dedup(True)
    h.send("a", at=(0, 0))
    h.send("a", at=(0, 1))
    h.entry(0, 0, "a", sequence_id=0)
    h.log_end()
    result = judge(h, *INVARIANTS)["D1.3"]
    assert result.anomalies == []
    assert result.undecided_total == 2


def test_bystander_producers_are_not_phantoms():
    h = History()
    h.sent(0, "a")
    h.entry(0, 0, "a", sequence_id=0)
    h.log_end()
    result = judge(h, *INVARIANTS)["D1.2"]
    assert (result.judged, result.anomalies) == (0, [])
