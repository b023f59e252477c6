"""Producer side of the wire: each clause is broken by a history and kept by another."""

from typing import Any

import pytest

from harness.history.event import Event
from harness.invariants.producer import INVARIANTS
from harness.invariants.termination import Termination
from tests.history_builder import CONSUMER, SUBSCRIPTION, TOPIC, History, digest, judge
from tests.invariant_cases import Cases

cases = Cases(INVARIANTS)
breaks, holds = cases.breaks, cases.holds

LATER = 100_000_000_000


def begin(h: History, payload: str, **columns: Any) -> Event:
    return h.invoke("send", producer="p", payload_digest=digest(payload), actor="p0", **columns)


def create(h: History, actor: str = "p0", **options: Any) -> None:
    invoked = h.invoke("producer", producer="p", actor=actor, extra={"options": options})
    h.complete(invoked)


def end_late(h: History, drained: bool = True) -> None:
    h.add(layer="fault", kind="quiescent", extra={"drained": drained}, time_ns=LATER)


@holds("SEND-01", "META-02", "META-04", "SEQ-01", "PROD-07", "META-01", "LEDGER-01", "LEDGER-04")
def _(h: History) -> None:
    create(h)
    h.registered()
    for place, payload in enumerate(("a", "b", "c")):
        h.published(place, payload, (0, place))
        h.entry(0, place, payload, sequence_id=place)
    h.log_end()


# --- shape of a frame -------------------------------------------------------------------------------------------


@breaks("SEND-01", "incomplete-send")
def _(h: History) -> None:
    h.sent(0, "a", side="client", extra={"producer_id": None})


@breaks("META-02", "no-valid-checksum")
def _(h: History) -> None:
    h.sent(0, "a", side="client", extra={"checksum_ok": None})


@breaks("META-04", "mandatory-metadata-missing")
def _(h: History) -> None:
    h.sent(0, "a", side="client", extra={"metadata": {"publish_time": None}})


@breaks("BATCH-01", "batch-over-its-limit")
def _(h: History) -> None:
    create(h, batching={"max_messages": 2, "max_bytes": 1000})
    h.sent(0, ["a", "b", "c"])


@holds("BATCH-01", "BATCH-02", "BATCH-06")
def _(h: History) -> None:
    create(h, batching={"max_messages": 3, "max_bytes": 1000})
    h.sent(0, ["a", "b", "c"])


@breaks("BATCH-01", "batch-over-its-limit")
def _(h: History) -> None:
    create(h, batching={"max_messages": 10, "max_bytes": 25})
    h.sent(0, ["a", "b", "c"])


@breaks("BATCH-02", "batch-describes-itself-wrongly")
def _(h: History) -> None:
    h.sent(0, ["a", "b"], num_messages=3)


@breaks("BATCH-02", "batch-describes-itself-wrongly")
def _(h: History) -> None:
    h.sent(4, ["a", "b"], highest_sequence_id=9)


@breaks("BATCH-02", "unreadable-batch")
def _(h: History) -> None:
    h.sent(0, "a", num_messages=2, payload_digest=None, extra={"payload_error": "bad_batch"})


@breaks("BATCH-06", "highest-id-not-announced")
def _(h: History) -> None:
    h.sent(0, ["a", "b"], highest_sequence_id=None)


@breaks("BATCH-05", "batched-what-travels-alone")
def _(h: History) -> None:
    h.sent(0, ["a", "b"], extra={"metadata": {"deliver_at_time": 9}})


@holds("BATCH-05")
def _(h: History) -> None:
    h.sent(0, "a", extra={"metadata": {"deliver_at_time": 9}})


def pieces(h: History, total: int) -> None:
    for number in range(2):
        h.sent(
            0, f"piece {number}", chunk_uuid="u", chunk_id=number, num_chunks=2, payload_size=10,
            extra={"metadata": {"total_chunk_msg_size": total}},
        )  # fmt: skip


@breaks("COMP-01", "total-size-not-that-of-the-pieces")
def _(h: History) -> None:
    pieces(h, 90)


@holds("COMP-01")
def _(h: History) -> None:
    pieces(h, 20)


def compressed(h: History, payload: str | list[str], **metadata: Any) -> None:
    begin(h, "a")
    begin(h, "b")
    h.sent(0, payload, extra={"metadata": {"compression": "lz4", "uncompressed_size": 10} | metadata})


@holds("META-05")
def _(h: History) -> None:
    compressed(h, "a")


@holds("COMP-02")
def _(h: History) -> None:
    compressed(h, ["a", "b"])


@breaks("META-05", "compression-not-reversible")
def _(h: History) -> None:
    compressed(h, "a", uncompressed_size=None)


@breaks("META-05", "compression-changed-the-payload")
def _(h: History) -> None:
    compressed(h, "garbage")


@breaks("COMP-02", "compression-changed-the-payload")
def _(h: History) -> None:
    compressed(h, ["a", "garbage"])


# --- order of transmission --------------------------------------------------------------------------------------


@breaks("SEQ-01", "two-sequence-ids")
def _(h: History) -> None:
    h.sent(0, "a", extra={"metadata": {"sequence_id": 1}})
    h.sent(1, "b")


@breaks("SEQ-01", "ids-not-ascending")
def _(h: History) -> None:
    h.sent(5, "a")
    h.sent(4, "b")


@breaks("SEQ-01", "application-id-changed")
def _(h: History) -> None:
    begin(h, "a", sequence_id=7)
    h.sent(0, "a")


@holds("SEQ-01")
def _(h: History) -> None:
    begin(h, "a", sequence_id=7)
    begin(h, "b", sequence_id=3)
    h.sent(7, "a")
    h.sent(3, "b")


def test_pieces_share_an_id_without_complaint():
    h = History()
    pieces(h, 20)
    h.sent(1, "b")
    result = judge(h, *INVARIANTS)["SEQ-01"]
    assert result.anomalies == []
    assert result.judged == 2


def cut_with_two_pending(h: History) -> None:
    create(h)
    begin(h, "a")
    begin(h, "b")
    h.registered()
    h.sent(0, "a")
    h.sent(1, "b")
    h.closed()
    h.registered(conn=2, request_id=2)


@holds("O6", "SEND-02", "PROD-05")
def _(h: History) -> None:
    cut_with_two_pending(h)
    h.sent(0, "a", conn=2)
    h.sent(1, "b", conn=2)
    h.published(2, "c", (0, 2), conn=2)


@breaks("O6", "sent-again-with-other-bytes")
def _(h: History) -> None:
    cut_with_two_pending(h)
    h.sent(0, "a", conn=2, extra={"frame_digest": "other publish time"})


@breaks("O6", "sent-again-in-other-batches")
def _(h: History) -> None:
    create(h)
    begin(h, "a")
    begin(h, "b")
    h.registered()
    h.sent(0, ["a", "b"])
    h.closed()
    h.registered(conn=2, request_id=2)
    h.sent(1, "b", conn=2)


@breaks("SEND-02", "older-after-newer")
def _(h: History) -> None:
    cut_with_two_pending(h)
    h.sent(1, "b", conn=2)
    h.sent(0, "a", conn=2)


@breaks("SEND-02", "pending-message-skipped")
def _(h: History) -> None:
    create(h)
    first = begin(h, "a")
    h.registered()
    h.sent(0, "a")
    h.closed()
    h.registered(conn=2, request_id=2)
    h.published(1, "b", (0, 1), conn=2)
    h.acknowledged(first, (0, 0))


@breaks("SEND-02", "pending-message-forgotten")
def _(h: History) -> None:
    create(h)
    first = begin(h, "a")
    h.registered()
    h.sent(0, "a")
    h.closed()
    h.registered(conn=2, request_id=2)
    h.complete(first, "unknown", error="timeout", time_ns=30_000_000_000)


@breaks("SEND-02", "never-sent")
def _(h: History) -> None:
    create(h)
    first = begin(h, "a")
    h.registered()
    h.published(1, "b", (0, 1))
    h.complete(first, "unknown", error="timeout", time_ns=30_000_000_000)


@breaks("SEQ-01", "ids-skipped")
def _(h: History) -> None:
    h.published(0, "a", (0, 0))
    h.published(2, "b", (0, 1))


def test_a_message_that_never_left_may_take_its_id_along():
    h = History()
    h.published(0, "a", (0, 0))
    h.complete(begin(h, "too big"), "fail", error="too_big")
    h.published(2, "b", (0, 1))
    assert judge(h, *INVARIANTS)["SEQ-01"].anomalies == []


def test_a_timed_out_message_may_be_left_out():
    h = History()
    create(h)
    first = begin(h, "a")
    h.registered()
    h.sent(0, "a")
    h.closed()
    h.registered(conn=2, request_id=2)
    h.published(1, "b", (0, 1), conn=2)
    h.complete(first, "unknown", error="timeout")
    assert judge(h, *INVARIANTS)["SEND-02"].anomalies == []


def test_a_second_cut_during_the_repetition():
    h = History()
    cut_with_two_pending(h)
    h.sent(0, "a", conn=2)
    h.closed(conn=2)
    h.registered(conn=3, request_id=3)
    h.sent(0, "a", conn=3)
    h.sent(1, "b", conn=3)
    results = judge(h, *INVARIANTS)
    assert not [clause for clause, result in results.items() if result.anomalies]
    assert results["O6"].judged == 3


@breaks("PROD-05", "sequence-id-reused")
def _(h: History) -> None:
    cut_with_two_pending(h)
    begin(h, "c")
    h.sent(0, "c", conn=2)


def test_an_application_may_reuse_its_own_ids():
    h = History()
    create(h)
    h.registered()
    for payload in ("a", "b"):
        begin(h, payload, sequence_id=7)
        h.sent(7, payload)
    assert not [clause for clause, result in judge(h, *INVARIANTS).items() if result.anomalies]


def test_a_new_producer_of_the_same_name_may_count_anew():
    h = History()
    for round_number in range(2):
        create(h, actor=f"p{round_number}")
        h.registered(request_id=round_number + 1)
        h.published(0, f"message {round_number}", (0, round_number))
        closing = h.invoke("close", producer="p", actor=f"p{round_number}")
        h.complete(closing)
    assert not [clause for clause, result in judge(h, *INVARIANTS).items() if result.anomalies]


@breaks("PROD-07", "sent-before-registration")
def _(h: History) -> None:
    h.both("PRODUCER", producer="p", request_id=1, extra={"producer_id": 0})
    h.sent(0, "a")


def test_a_rival_with_the_same_name_waits_without_stopping_the_owner():
    h = History()
    create(h, actor="p0")
    h.registered()
    rival = h.invoke("producer", producer="p", actor="p1")
    h.both("PRODUCER", producer="p", conn=2, request_id=1, extra={"producer_id": 0})
    h.published(0, "a", (0, 0))
    h.both("ERROR", to="client", conn=2, request_id=1, error="ProducerBusy")
    h.complete(rival, "unknown", error="broker_error")
    assert not [clause for clause, result in judge(h, *INVARIANTS).items() if result.anomalies]


@breaks("PCLOSE-04", "sent-after-close")
def _(h: History) -> None:
    h.registered()
    h.both("CLOSE_PRODUCER", producer="p", request_id=2, extra={"producer_id": 0})
    h.sent(0, "a")


@holds("PCLOSE-04", "PCLOSE-05")
def _(h: History) -> None:
    h.registered()
    h.published(0, "a", (0, 0))
    h.both("CLOSE_PRODUCER", producer="p", request_id=2, extra={"producer_id": 0})
    h.both("SUCCESS", to="client", request_id=2, producer="p")


def suspects(h: History, batch: list[str], first: int) -> None:
    begin(h, "x", sequence_id=10)
    h.sent(10, "x")
    h.sent(first, batch)


@breaks("BATCH-03", "suspect-batched-with-fresh")
def _(h: History) -> None:
    suspects(h, ["a", "b"], 10)


@holds("BATCH-03")
def _(h: History) -> None:
    suspects(h, ["a", "b"], 5)


# --- completion together ----------------------------------------------------------------------------------------


def batch_of_two(h: History) -> tuple[Event, Event]:
    first, second = begin(h, "a"), begin(h, "b")
    h.sent(0, ["a", "b"])
    h.receipt(0, (0, 0))
    return first, second


@holds("BATCH-04")
def _(h: History) -> None:
    for place, invoked in enumerate(batch_of_two(h)):
        h.acknowledged(invoked, (0, 0), batch_index=place)


@breaks("BATCH-04", "batch-ids-differ")
def _(h: History) -> None:
    for invoked in batch_of_two(h):
        h.acknowledged(invoked, (0, 0), batch_index=0)


@breaks("BATCH-04", "batch-split")
def _(h: History) -> None:
    first, second = batch_of_two(h)
    h.acknowledged(first, (0, 0), batch_index=0)
    h.complete(second, "unknown", error="timeout")


@breaks("SEND-03", "outlived-a-timeout")
def _(h: History) -> None:
    first, second = begin(h, "a"), begin(h, "b")
    h.complete(second, "unknown", error="timeout")
    h.acknowledged(first, (0, 0))


@holds("SEND-03")
def _(h: History) -> None:
    for invoked in (begin(h, "a"), begin(h, "b")):
        h.complete(invoked, "unknown", error="timeout")


# --- one connection ---------------------------------------------------------------------------------------------


def opened(h: History, **extra: Any) -> None:
    h.add(layer="tap.client", kind="CONNECTION_OPEN", connection="client-1")
    versions = {"client_version": "x", "protocol_version": 21}
    h.frame("CONNECT", side="client", topic=None, extra=versions | extra)


def connected(h: History, **extra: Any) -> None:
    opened(h)
    h.frame("CONNECTED", side="client", to="client", topic=None, extra=extra)


@holds("CONN-05", "CONN-06")
def _(h: History) -> None:
    connected(h)
    h.frame("LOOKUP", side="client", request_id=0)


@breaks("CONN-05", "overtook-the-handshake")
def _(h: History) -> None:
    opened(h)
    h.frame("LOOKUP", side="client", request_id=0)


@breaks("CONN-05", "connect-twice")
def _(h: History) -> None:
    connected(h)
    h.frame("CONNECT", side="client", topic=None)


@breaks("CONN-06", "connect-without-versions")
def _(h: History) -> None:
    opened(h, client_version="")


@breaks("META-01", "bytes-that-are-no-frame")
def _(h: History) -> None:
    h.frame("WIRE_ERROR", side="client", topic=None, error="bad_command")


def test_bytes_damaged_on_the_way_blame_nobody():
    h = History()
    h.frame("WIRE_ERROR", side="broker", topic=None, error="bad_command")
    h.frame("WIRE_ERROR", side="client", to="client", topic=None, error="bad_command")
    assert judge(h, *INVARIANTS)["META-01"].anomalies == []


@breaks("SEND-05", "message-over-the-limit")
def _(h: History) -> None:
    connected(h, max_message_size=100)
    h.sent(0, "a", extra={"stored_size": 101})


@holds("SEND-05")
def _(h: History) -> None:
    connected(h, max_message_size=100)
    h.sent(0, "a", extra={"stored_size": 100})


@breaks("PROD-03", "incomplete-registration")
def _(h: History) -> None:
    h.frame("PRODUCER", side="client", producer="p", extra={"producer_id": 0})


@holds("PROD-03", "PROD-04", "CLIENT-05")
def _(h: History) -> None:
    h.frame("LOOKUP", side="client", request_id=1)
    h.registered()


@breaks("PROD-04", "another-name")
def _(h: History) -> None:
    h.frame("PRODUCER", producer="p", request_id=1, extra={"producer_id": 0})
    h.frame("PRODUCER_SUCCESS", to="client", producer="q", request_id=1, extra={"ready": True})


@breaks("CLIENT-05", "request-id-reused")
def _(h: History) -> None:
    for _attempt in range(2):
        h.frame("LOOKUP", side="client", request_id=1)


@breaks("CLIENT-05", "producer-id-reused")
def _(h: History) -> None:
    for number, name in enumerate(("p", "q")):
        h.frame("PRODUCER", side="client", producer=name, request_id=number, extra={"producer_id": 0})


@holds("CLIENT-05")
def _(h: History) -> None:
    """A producer without a name comes again, on its connection, with the one it was given."""
    for number, name in enumerate((None, "standalone-1")):
        h.frame("PRODUCER", side="client", producer=name, request_id=number, extra={"producer_id": 0})


@holds("LOOKUP-14")
def _(h: History) -> None:
    h.both("LOOKUP", request_id=1)
    h.both("LOOKUP_RESPONSE", to="client", request_id=1)


@breaks("LOOKUP-14", "answer-to-nothing")
def _(h: History) -> None:
    h.both("LOOKUP_RESPONSE", to="client", request_id=1)


@breaks("LOOKUP-14", "unanswered")
def _(h: History) -> None:
    h.both("LOOKUP", request_id=1)
    end_late(h)


@holds("KEEP-02")
def _(h: History) -> None:
    h.both("PING", topic=None)
    h.both("PONG", to="client", topic=None)


@breaks("KEEP-02", "unanswered")
def _(h: History) -> None:
    h.frame("PING", side="client", to="client", topic=None)
    end_late(h)


@breaks("PCLOSE-05", "close-refused")
def _(h: History) -> None:
    h.frame("CLOSE_PRODUCER", producer="p", request_id=2)
    h.frame("ERROR", to="client", request_id=2, error="UnknownError")


@pytest.mark.parametrize("kind", ["LOOKUP", "PING", "CLOSE_PRODUCER"])
def test_an_unanswered_request_of_a_closed_connection_proves_nothing(kind):
    h = History()
    h.both(kind, request_id=None if kind == "PING" else 1)
    h.closed()
    end_late(h)
    assert not [clause for clause, result in judge(h, *INVARIANTS).items() if result.anomalies or result.undecided]


# --- where it is stored -----------------------------------------------------------------------------------------


@breaks("LEDGER-01", "entry-ids-not-dense")
def _(h: History) -> None:
    h.entry(0, 0, "a")
    h.entry(0, 2, "b")
    h.log_end()


@breaks("LEDGER-03", "entry-ids-not-dense")
def _(h: History) -> None:
    h.entry(0, 0, "a")
    h.entry(3, 1, "b")
    h.log_end()


@holds("LEDGER-03")
def _(h: History) -> None:
    h.entry(0, 0, "a")
    h.entry(3, 0, "b")
    h.log_end()


@breaks("LEDGER-04", "two-contents-at-one-id")
def _(h: History) -> None:
    h.published(0, "a", (0, 0))
    h.frame("MESSAGE", to="client", ledger_id=0, entry_id=0, **h.send_columns(0, "b"))


@breaks("LEDGER-04", "application-told-another-id")
def _(h: History) -> None:
    h.frame("MESSAGE", to="client", ledger_id=0, entry_id=0, **h.send_columns(0, "a"))
    invoked = h.invoke("receive", consumer=CONSUMER, subscription=SUBSCRIPTION)
    h.complete(invoked, "ok", ledger_id=0, entry_id=0, payload_digest=digest("b"))


def test_a_chunked_message_is_not_compared_with_its_last_piece():
    h = History()
    invoked = begin(h, "whole")
    pieces(h, 20)
    h.receipt(0, (0, 0))
    h.receipt(0, (0, 1))
    h.complete(invoked, "ok", ledger_id=0, entry_id=1, extra={"first_chunk": [0, 0]})
    assert judge(h, *INVARIANTS)["LEDGER-04"].anomalies == []


@pytest.mark.parametrize(("clause", "name", "build"), cases.breaking, ids=lambda value: str(value))
def test_broken(clause, name, build):
    cases.check_broken(clause, name, build)


@pytest.mark.parametrize(("clause", "build"), cases.holding, ids=lambda value: str(value))
def test_holds(clause, build):
    cases.check_holds(clause, build)


def test_every_clause_has_both_kinds_of_history():
    # Those of a terminated topic have theirs in tests/test_invariants_faults.py.
    here = cases.clauses - set(Termination.clauses)
    assert {clause for clause, *_ in cases.breaking} == here
    assert {clause for clause, _ in cases.holding} == here


def test_keys_are_separate_topics():
    h = History()
    h.sent(5, "a")
    h.sent(4, "b", topic=TOPIC + "-2")
    assert judge(h, *INVARIANTS)["SEQ-01"].anomalies == []
