"""Receipts: each clause is broken by a history and kept by another."""

from typing import Any

import pytest

from harness.history.event import Event
from harness.invariants.receipts import INVARIANTS
from tests.history_builder import History, digest, judge
from tests.invariant_cases import Cases

cases = Cases(INVARIANTS)
breaks, holds = cases.breaks, cases.holds

LATER = 100_000_000_000


def begin(h: History, payload: str) -> Event:
    return h.invoke("send", producer="p", payload_digest=digest(payload), actor="p0")


def end_late(h: History) -> None:
    h.add(layer="fault", kind="quiescent", extra={"drained": True}, time_ns=LATER)


@holds("O1", "O2", "RECEIPT-01", "RECEIPT-02", "RECEIPT-05", "O4", "RCPT-01", "O5")
def _(h: History) -> None:
    for place, payload in enumerate(("a", "b", "c")):
        h.published(place, payload, (0, place))
        h.entry(0, place, payload, sequence_id=place)
    h.log_end()
    end_late(h)


@breaks("O1", "answer-to-nothing")
def _(h: History) -> None:
    h.published(0, "a", (0, 0))
    h.receipt(0, (0, 0))


def swapped(h: History) -> None:
    h.sent(0, "a")
    h.sent(1, "b")
    h.receipt(1, (0, 0))
    h.receipt(0, (0, 1))


@breaks("O2", "receipt-out-of-order")
@breaks("O3", "receipt-overtook")
def _(h: History) -> None:
    swapped(h)


@holds("O3")
def _(h: History) -> None:
    h.sent(5, "a")
    h.sent(1, "b")
    h.receipt(1, None)
    h.receipt(5, (0, 0))


@breaks("RECEIPT-02", "ids-not-increasing")
def _(h: History) -> None:
    h.published(0, "a", (0, 5))
    h.published(1, "b", (0, 4))


@breaks("RECEIPT-01", "unanswered")
def _(h: History) -> None:
    h.sent(0, "a")
    end_late(h)


@breaks("RECEIPT-01", "passed-over")
def _(h: History) -> None:
    h.sent(0, "a")
    h.sent(1, "b")
    h.receipt(1, (0, 1))
    h.closed()


@pytest.mark.parametrize("ending", ["closed", "producer closed", "too soon", "not drained"])
def test_a_send_that_may_stay_unanswered(ending):
    h = History()
    h.sent(0, "a")
    if ending == "closed":
        h.closed()
    elif ending == "producer closed":
        h.both("CLOSE_PRODUCER", producer="p", request_id=3)
    if ending == "too soon":
        h.quiescent()
    elif ending == "not drained":
        h.add(layer="fault", kind="quiescent", extra={"drained": False}, time_ns=LATER)
    else:
        end_late(h)
    result = judge(h, *INVARIANTS)["RECEIPT-01"]
    assert (result.judged, result.anomalies) == (0, [])
    assert bool(result.undecided) == (ending in ("too soon", "not drained"))


@breaks("RECEIPT-05", "receipted-but-missing")
def _(h: History) -> None:
    h.published(0, "a", (0, 0))
    h.log_end()


@breaks("RECEIPT-05", "other-content-stored")
def _(h: History) -> None:
    h.published(0, "a", (0, 0))
    h.entry(0, 0, "b", sequence_id=0)
    h.log_end()


def test_a_receipt_the_network_lost_is_not_the_brokers_fault():
    h = History()
    h.sent(0, "a")
    h.receipt(0, (0, 0), side="broker")
    h.closed()
    h.entry(0, 0, "a", sequence_id=0)
    h.log_end()
    end_late(h)
    results = judge(h, *INVARIANTS)
    assert not [clause for clause, result in results.items() if result.anomalies]
    assert results["RECEIPT-05"].judged == 1


def damaged(h: History) -> None:
    h.sent(0, "a", side="client")
    h.sent(0, "a", side="broker", extra={"checksum_ok": False})


@holds("CHECKSUM-01")
def _(h: History) -> None:
    damaged(h)
    h.refused(0, "ChecksumError")


@breaks("CHECKSUM-01", "damaged-frame-accepted")
def _(h: History) -> None:
    damaged(h)
    h.receipt(0, (0, 0))


@breaks("CHECKSUM-01", "damaged-frame-refused-as-something-else")
def _(h: History) -> None:
    damaged(h)
    h.refused(0, "UnknownError")


@breaks("CHECKSUM-01", "damaged-frame-closed-the-connection")
def _(h: History) -> None:
    damaged(h)
    h.closed(by="broker")


@breaks("O4", "resolved-twice")
def _(h: History) -> None:
    invoked = begin(h, "a")
    h.acknowledged(invoked, (0, 0))
    h.complete(invoked, "unknown", error="timeout")


@breaks("O4", "callbacks-out-of-order")
def _(h: History) -> None:
    first, second = begin(h, "a"), begin(h, "b")
    h.sent(0, "a")
    h.sent(1, "b")
    h.receipt(0, (0, 0))
    h.receipt(1, (0, 1))
    h.acknowledged(second, (0, 1))
    h.acknowledged(first, (0, 0))


def test_a_chunked_send_has_no_place_in_the_order_of_frames():
    h = History()
    whole = begin(h, "whole")
    for number in range(2):
        h.sent(0, f"piece {number}", chunk_uuid="u", chunk_id=number, num_chunks=2)
        h.receipt(0, (0, number))
    h.acknowledged(whole, (0, 1))
    h.published(1, "b", (0, 2))
    assert judge(h, *INVARIANTS)["O4"].anomalies == []


def test_a_handle_created_again_is_another_producer():
    h = History()
    late = begin(h, "late")
    h.sent(0, "late")
    h.complete(h.invoke("close", actor="p0", producer="p"))
    again = begin(h, "again")
    h.sent(1, "again")
    h.receipt(1, (0, 1))
    h.acknowledged(again, (0, 1))
    h.receipt(0, (0, 0))
    h.acknowledged(late, (0, 0))
    assert judge(h, *INVARIANTS)["O4"].anomalies == []


@pytest.mark.parametrize(("partitions", "found"), [((0, 1), False), ((1, 1), True)])
def test_each_partition_has_an_order_of_its_own(partitions: tuple[int, int], found: bool):
    h = History()
    first, second = begin(h, "a"), begin(h, "b")
    h.acknowledged(second, (0, 1), partition=partitions[1])
    h.acknowledged(first, (0, 0), partition=partitions[0])
    assert bool(judge(h, *INVARIANTS)["O4"].anomalies) is found


def test_an_order_of_calls_is_not_compared_with_one_of_frames():
    h = History()
    for _ in range(3):
        h.dedup(False)
    h.send("unseen", at=(0, 0), actor="p0")
    h.published(0, "seen", (0, 1))
    assert judge(h, *INVARIANTS)["O4"].anomalies == []


@breaks("O4", "never-resolved")
def _(h: History) -> None:
    invoked = begin(h, "a")
    h.add(layer="fault", kind="healed")
    h.complete(invoked, "unknown", error="unfinished", time_ns=LATER)


@breaks("O5", "id-below-an-earlier-one")
def _(h: History) -> None:
    h.send("a", at=(0, 5))
    h.send("b", at=(0, 4), producer="another")


def lost_answer(h: History, phase: str) -> None:
    invoked = begin(h, "a")
    h.sent(0, "a")
    h.closed()
    if phase == "ok":
        h.acknowledged(invoked, (0, 0))
    else:
        h.complete(invoked, phase, error="disconnected")


@breaks("O7", "certain-failure-after-sending")
def _(h: History) -> None:
    lost_answer(h, "fail")


@breaks("O7", "success-without-an-answer")
def _(h: History) -> None:
    lost_answer(h, "ok")


@holds("O7")
def _(h: History) -> None:
    lost_answer(h, "unknown")


@breaks("RCPT-01", "result-without-its-receipt")
def _(h: History) -> None:
    invoked = begin(h, "a")
    h.sent(0, "a")
    h.receipt(0, (0, 0))
    h.acknowledged(invoked, (0, 7))


def future(h: History) -> tuple[Event, Event]:
    first, second = begin(h, "a"), begin(h, "b")
    h.sent(0, "a")
    h.sent(1, "b")
    h.receipt(1, (0, 1), side="client")
    return first, second


@breaks("RCPT-02", "receipt-from-the-future-accepted")
def _(h: History) -> None:
    _first, second = future(h)
    h.acknowledged(second, (0, 1))


@breaks("RCPT-02", "kept-the-connection-after-a-gap")
def _(h: History) -> None:
    future(h)
    end_late(h)


@holds("RCPT-02")
def _(h: History) -> None:
    future(h)
    h.closed(by="client")


def stale(h: History) -> None:
    h.published(0, "a", (0, 0))
    h.receipt(0, (0, 0), side="client")


@breaks("RCPT-03", "stale-receipt-closed-the-connection")
def _(h: History) -> None:
    stale(h)
    h.closed(by="client", side="client")


@holds("RCPT-03")
def _(h: History) -> None:
    stale(h)
    h.published(1, "b", (0, 1))


def test_a_connection_closed_over_a_gap_is_not_closed_over_the_stale_receipt_before():
    h = History()
    stale(h)
    begin(h, "b")
    begin(h, "c")
    h.sent(1, "b")
    h.sent(2, "c")
    h.receipt(0, (0, 0), side="client")
    h.receipt(2, (0, 2), side="client")
    h.closed(by="client", side="client")
    assert judge(h, *INVARIANTS)["RCPT-03"].anomalies == []


def given_up(h: History, *payloads: str) -> None:
    """Sends whose calls ended unknown: only their client knows whether they are still pending in it."""
    for number, payload in enumerate(payloads):
        invoked = begin(h, payload)
        h.sent(number, payload)
        h.complete(invoked, "unknown", error="timeout")


def test_a_call_that_ended_unknown_may_still_be_pending():
    h = History()
    given_up(h, "a", "b")
    h.receipt(1, (0, 1), side="client")
    h.closed(by="client", side="client")
    assert judge(h, *INVARIANTS)["RCPT-03"].anomalies == []


def test_a_gap_is_not_forgotten_over_the_receipt_that_comes_late():
    h = History()
    given_up(h, "a", "b")
    h.receipt(1, (0, 1), side="client")
    h.receipt(0, (0, 0), side="client")
    h.closed(by="client", side="client")
    assert judge(h, *INVARIANTS)["RCPT-03"].anomalies == []


@pytest.mark.parametrize("receipts", [1, 2])
def test_a_late_receipt_of_a_call_that_ended_unknown_is_no_reason_to_close(receipts: int):
    h = History()
    given_up(h, "a", "b")
    begin(h, "c")
    h.sent(2, "c")
    for number in range(receipts):
        h.receipt(number, (0, number), side="client")
    h.closed(by="client", side="client")
    assert [anomaly.name for anomaly in judge(h, *INVARIANTS)["RCPT-03"].anomalies] == [
        "stale-receipt-closed-the-connection"
    ]


def test_the_receipt_of_a_call_that_is_open_is_not_stale():
    h = History()
    given_up(h, "a")
    begin(h, "b")
    h.sent(1, "b")
    h.receipt(0, (0, 0), side="client")
    h.receipt(1, (0, 1), side="client")
    h.closed(by="client", side="client")
    assert judge(h, *INVARIANTS)["RCPT-03"].anomalies == []


def test_a_client_that_is_closed_may_close_its_connection():
    h = History()
    stale(h)
    h.add(layer="api", kind="close", phase="invoke", op=99, extra={"client": "a"})
    h.closed(by="client", side="client")
    assert judge(h, *INVARIANTS)["RCPT-03"].anomalies == []


def duplicate_answer(h: History, phase: str, **how: Any) -> None:
    invoked = begin(h, "a")
    h.sent(0, "a")
    h.receipt(0, None)
    h.complete(invoked, phase, error="timeout" if phase != "ok" else None, extra={"duplicate": True}, **how)


@breaks("RCPT-05", "duplicate-receipt-not-a-success")
def _(h: History) -> None:
    duplicate_answer(h, "unknown", time_ns=LATER)


def test_a_send_that_timed_out_just_when_its_duplicate_receipt_came_proves_nothing():
    h = History()
    duplicate_answer(h, "unknown")
    result = judge(h, *INVARIANTS)["RCPT-05"]
    assert result.anomalies == []
    assert result.undecided


@holds("RCPT-05")
def _(h: History) -> None:
    duplicate_answer(h, "ok")


def refusal(h: History, error: str, retried: bool) -> None:
    invoked = begin(h, "a")
    h.sent(0, "a")
    h.refused(0, error)
    if retried:
        h.closed()
        h.sent(0, "a", conn=2)
        h.receipt(0, (0, 0), conn=2)
        h.acknowledged(invoked, (0, 0))
    else:
        h.complete(invoked, "unknown", error="broker_error")


@breaks("RECEIPT-06", "transient-error-given-to-the-application")
def _(h: History) -> None:
    refusal(h, "PersistenceError", retried=False)


@holds("RECEIPT-06")
def _(h: History) -> None:
    refusal(h, "PersistenceError", retried=True)


@breaks("CHECKSUM-02", "intact-message-given-up")
def _(h: History) -> None:
    refusal(h, "ChecksumError", retried=False)


@holds("CHECKSUM-02")
def _(h: History) -> None:
    invoked = begin(h, "a")
    damaged(h)
    h.refused(0, "ChecksumError")
    h.sent(0, "a")
    h.receipt(0, (0, 0))
    h.acknowledged(invoked, (0, 0))


@pytest.mark.parametrize(("clause", "name", "build"), cases.breaking, ids=lambda value: str(value))
def test_broken(clause, name, build):
    cases.check_broken(clause, name, build)


@pytest.mark.parametrize(("clause", "build"), cases.holding, ids=lambda value: str(value))
def test_holds(clause, build):
    cases.check_holds(clause, build)


def test_every_clause_has_both_kinds_of_history():
    assert {clause for clause, *_ in cases.breaking} == cases.clauses
    assert {clause for clause, _ in cases.holding} == cases.clauses
