"""Each chunk rule with a history that breaks it, and only it, and one that puts it to test and keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.invariants import chunks
from harness.invariants.chunks import Piece, Scan
from tests.consumer_history import SECOND, ConsumerHistory, digest
from tests.history_builder import judge, names


class Chunks(ConsumerHistory):
    """Pieces of 10 bytes of messages that are named by their uuid; entry numbers are given."""

    def piece(self, uuid: str, number: int, count: int, entry: int, **columns: Any) -> None:
        """A piece delivered to the consumer."""
        self.message(1, entry, chunk_uuid=uuid, chunk_id=number, num_chunks=count, payload_size=10, **columns)

    def pieces(self, uuid: str, *numbers: int, count: int = 3, first: int = 0, every: int = 0, **columns: Any) -> None:
        for place, number in enumerate(numbers):
            if place:
                self.wait(every)
            self.piece(uuid, number, count, first + place, **columns)

    def sent(self, uuid: str) -> None:
        self.send(uuid, outcome="unknown")

    def got(self, uuid: str, entry: int, size: int = 30, first: list[int] | None = None) -> None:
        extra = {} if first is None else {"first_chunk": first}
        self.receive(1, entry, uuid, payload_size=size, extra=extra)

    def out(self, uuid: str, number: int, count: int = 3, size: int = 10, total: int = 30, **columns: Any) -> None:
        """A piece as it leaves the producer; ``text`` in place of the uuid makes another message of the same name."""
        text = columns.pop("text", uuid)
        extra = {"producer_id": 1, "is_chunk": True, "metadata": {"total_chunk_msg_size": total}}
        columns.setdefault("sequence_id", 0)
        self.both(
            "SEND",
            producer="p",
            payload_digest=digest(f"{text}{number}"),
            payload_size=size,
            num_messages=1,
            chunk_uuid=uuid,
            chunk_id=number,
            num_chunks=count,
            extra=extra,
            **columns,
        )

    def receipt(self, entry: int, side: str = "both") -> None:
        for name in ("broker", "client"):
            if side in ("both", name):
                self.frame(
                    "SEND_RECEIPT",
                    side=name,
                    to="client",
                    producer="p",
                    sequence_id=0,
                    ledger_id=1,
                    entry_id=entry,
                    extra={"producer_id": 1},
                )

    def stored(self, *entries: tuple[str, int, int]) -> None:
        for uuid, number, entry in entries:
            self.entry(1, entry, f"{uuid}{number}", chunk_uuid=uuid, chunk_id=number, num_chunks=3)
        self.log_end()


Story = Callable[[Chunks], None]
CASES: dict[tuple[str, str], tuple[Story, Story]] = {}


def script(*steps: tuple[Any, ...], **options: Any) -> Story:
    """A consumer with a queue of 100, then the steps; a dict at the end of a step holds keyword arguments."""

    def tell(history: Chunks) -> None:
        history.consumer(queue=100, **options)
        for name, *arguments in steps:
            keywords = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
            getattr(history, name)(*arguments, **keywords)

    return tell


END = (("wait", 3 * SECOND), ("nothing",), ("quiescent",))
WHOLE = (("sent", "u"), ("pieces", "u", 0, 1, 2))
good = script(*WHOLE, ("got", "u", 2), *END)

# --- reassembly ---------------------------------------------------------------------------------------------------

CASES[("K1", "delivered-without-all-pieces")] = (
    script(("sent", "u"), ("pieces", "u", 0, 1), ("got", "u", 1)),
    good,
)
CASES[("K1", "wrong-first-piece")] = (
    script(*WHOLE, ("got", "u", 2, {"first": [1, 1]})),
    script(*WHOLE, ("got", "u", 2, {"first": [1, 0]})),
)
CASES[("K2", "part-or-mixture")] = (script(("sent", "x"), ("pieces", "u", 0, 1, 2), ("got", "u", 2)), good)
CASES[("CHUNK-06", "wrong-length")] = (script(*WHOLE, ("got", "u", 2, 20)), good)
CASES[("K3", "delivered-twice")] = (script(*WHOLE, ("got", "u", 2), ("got", "u", 2)), good)
CASES[("K4", "complete-message-not-delivered")] = (script(*WHOLE, *END), good)
again = (("sent", "u"), ("pieces", "u", 0, 0, 1, 2))
CASES[("CHUNK-07", "complete-message-not-delivered")] = (
    script(*again, *END),
    script(*again, ("got", "u", 3), *END),
)
lone = (("sent", "u"), ("pieces", "x", 1), ("pieces", "u", 0, 1, 2, {"first": 1}))
CASES[("CHUNK-09", "complete-message-not-delivered")] = (script(*lone, *END), script(*lone, ("got", "u", 3), *END))
gaps = (
    *(("pieces", f"x{n}", 1, {"first": n}) for n in range(3)),
    ("sent", "u"),
    ("pieces", "u", 0, 1, 2, {"first": 3}),
)
CASES[("CHUNK-EXP-05", "complete-message-not-delivered")] = (
    script(*gaps, *END, max_pending_chunked=2),
    script(*gaps, ("got", "u", 5), *END, max_pending_chunked=2),
)
slow = (("sent", "u"), ("pieces", "u", 0, 1, 2, {"every": 400}))
CASES[("CHUNK-EXP-03", "complete-message-not-delivered")] = (
    script(*slow, *END, expire_chunks_ms=1000),
    script(*slow, ("got", "u", 2), *END, expire_chunks_ms=1000),
)

# --- expiry -------------------------------------------------------------------------------------------------------

orphan = (("pieces", "o", 0, 1, {"first": 10}), ("wait", 1500))
acked = (("ack", (1, 10), (1, 11)),)
watched = (("wait", 5 * SECOND), ("nothing",), ("quiescent",))
CASES[("CHUNK-EXP-01", "orphan-never-expired")] = (
    script(*orphan, *watched, expire_chunks_ms=1000),
    script(*orphan, *acked, *watched, expire_chunks_ms=1000),
)
before = (*WHOLE, ("got", "u", 2))
CASES[("CHUNK-EXP-02", "orphan-never-expired")] = (
    script(*before, *orphan, *watched, expire_chunks_ms=1000),
    script(*before, *orphan, *acked, *watched, expire_chunks_ms=1000),
)
CASES[("K5", "incomplete-message-acked-early")] = (
    script(("pieces", "o", 0, 1), ("ack", (1, 0)), expire_chunks_ms=1000),
    script(("pieces", "o", 0, 1), ("wait", 1500), ("ack", (1, 0), (1, 1)), expire_chunks_ms=1000),
)
crowd = tuple(("pieces", f"u{n}", 0, {"first": n}) for n in range(3))
CASES[("CHUNK-EXP-04", "evicted-message-acked")] = (
    script(*crowd, ("ack", (1, 0)), *END, max_pending_chunked=2),
    script(*crowd, *END, max_pending_chunked=2),
)
auto = {"max_pending_chunked": 2, "auto_ack_oldest_chunked": True}
CASES[("CHUNK-EXP-04", "evicted-message-not-acked")] = (
    script(*crowd, *END, **auto),
    script(*crowd, ("ack", (1, 0)), *END, **auto),
)

# --- acknowledgement ----------------------------------------------------------------------------------------------

taken = (*WHOLE, ("got", "u", 2), ("call", "ack", (1, 2)))
CASES[("CHUNK-10", "pieces-not-acked")] = (
    script(*taken, ("ack", (1, 2)), *END),
    script(*taken, ("ack", (1, 0), (1, 1), (1, 2)), *END),
)
nacked = (*WHOLE, ("got", "u", 2), ("call", "nack", (1, 2)))
CASES[("CHUNK-10", "only-part-asked-again")] = (
    script(*nacked, ("redeliver", (1, 2)), kind="shared"),
    script(*nacked, ("redeliver", (1, 0), (1, 1), (1, 2)), kind="shared"),
)
spare = (*again, ("got", "u", 3), ("call", "ack", (1, 3)))
CASES[("K7", "pieces-not-acked")] = (
    script(*spare, ("ack", (1, 1), (1, 2), (1, 3)), *END),
    script(*spare, ("ack", (1, 0), (1, 1), (1, 2), (1, 3)), *END),
)

# --- publishing ---------------------------------------------------------------------------------------------------


def publish(*steps: tuple[Any, ...]) -> Story:
    def tell(history: Chunks) -> None:
        for name, *arguments in steps:
            keywords = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
            getattr(history, name)(*arguments, **keywords)

    return tell


sends = tuple(("out", "u", number) for number in range(3))
CASES[("CHUNK-02", "wrong-piece-sizes")] = (
    publish(("out", "u", 0, {"size": 9}), ("out", "u", 1, {"size": 11}), ("out", "u", 2)),
    publish(*sends),
)
CASES[("CHUNK-03", "wrong-chunk-labels")] = (publish(("out", "u", 0), ("out", "u", 2)), publish(*sends))


@pytest.mark.parametrize(
    "steps",
    [
        (("out", "u", 0), ("out", "u", 1, {"sequence_id": 5})),
        (("out", "u", 0), ("out", "u", 1, {"total": 31})),
        (("out", "u", 0, {"count": 1}),),
        (("out", "u", 3),),
    ],
)
def test_wrong_labels_of_every_kind_are_named(steps: tuple[tuple[Any, ...], ...]) -> None:
    history = Chunks()
    publish(*steps)(history)
    assert names(judge(history, *chunks.INVARIANTS)) == {("CHUNK-03", "wrong-chunk-labels")}


def unlabelled(history: Chunks) -> None:
    history.both("SEND", producer="p", sequence_id=0, num_messages=1, extra={"is_chunk": True})


CASES[("CHUNK-03", "chunk-without-labels")] = (unlabelled, publish(*sends))
receipts = tuple(("receipt", entry) for entry in range(3))
CASES[("CHUNK-04", "piece-not-stored")] = (
    publish(*sends, *receipts, ("stored", ("u", 0, 0), ("u", 2, 2))),
    publish(*sends, *receipts, ("stored", ("u", 0, 0), ("u", 1, 1), ("u", 2, 2))),
)


def reported(entry: int, first: list[int] | None = None, receipts_seen: int = 3) -> Story:
    """A send of three pieces that is reported stored at ``entry``."""

    def tell(history: Chunks) -> None:
        call = history.invoke("send", producer="p", payload_digest=digest("u"))
        publish(*sends)(history)
        for place in range(3):
            history.receipt(place, "both" if place < receipts_seen else "broker")
        history.complete(call, ledger_id=1, entry_id=entry, extra={} if first is None else {"first_chunk": first})

    return tell


CASES[("CHUNK-05", "id-is-not-the-last-piece")] = (reported(1), reported(2))
CASES[("CHUNK-05", "first-is-not-the-first-piece")] = (reported(2, [1, 1]), reported(2, [1, 0]))
CASES[("K6", "completed-before-all-receipts")] = (reported(2, receipts_seen=2), reported(2))


# --- Shared subscriptions -------------------------------------------------------------------------------------------


def spread(second: str) -> Story:
    def tell(history: Chunks) -> None:
        history.consumer("a", "shared", conn=1)
        history.consumer("b", "shared", conn=2)
        history.piece("u", 0, 2, 0, name="a", conn=1)
        history.piece("u", 1, 2, 1, name=second, conn=1 if second == "a" else 2)

    return tell


CASES[("CHUNK-08", "pieces-at-two-consumers")] = (spread("b"), spread("a"))


def test_a_piece_stored_twice_may_go_elsewhere_once_its_message_is_complete() -> None:
    history = Chunks()
    spread("a")(history)
    history.piece("u", 1, 2, 2, name="b", conn=2)
    assert "CHUNK-08" not in {clause for clause, _ in names(judge(history, *chunks.INVARIANTS))}


@pytest.mark.parametrize(("clause", "name"), sorted(CASES))
def test_a_breach_is_named(clause: str, name: str) -> None:
    history = Chunks()
    CASES[(clause, name)][0](history)
    assert names(judge(history, *chunks.INVARIANTS)) == {(clause, name)}


@pytest.mark.parametrize(("clause", "name"), sorted(CASES))
def test_a_clean_history_is_judged_and_passes(clause: str, name: str) -> None:
    history = Chunks()
    CASES[(clause, name)][1](history)
    results = judge(history, *chunks.INVARIANTS)
    assert names(results) == set()
    assert results[clause].judged > 0


def test_every_clause_has_a_breach() -> None:
    declared = {clause for invariant in chunks.INVARIANTS for clause in invariant.clauses}
    assert declared == {clause for clause, _ in CASES}


def test_a_message_slower_than_the_expiry_time_may_be_lost() -> None:
    history = Chunks()
    script(("sent", "u"), ("pieces", "u", 0, 1, 2, {"every": 600}), *END, expire_chunks_ms=1000)(history)
    results = judge(history, *chunks.INVARIANTS)
    assert names(results) == set()
    assert results["CHUNK-EXP-03"].undecided


def test_a_message_pushed_out_by_too_many_others_may_be_late() -> None:
    history = Chunks()
    script(*crowd, ("pieces", "u0", 1, 2, {"first": 5}), *END, max_pending_chunked=2)(history)
    assert names(judge(history, *chunks.INVARIANTS)) == set()


def test_a_seek_excuses_missing_messages() -> None:
    history = Chunks()
    script(*WHOLE, ("call", "seek", (1, 2)), *END)(history)
    assert names(judge(history, *chunks.INVARIANTS)) == set()


def test_the_same_bytes_sent_twice_are_not_blamed() -> None:
    history = Chunks()
    script(("sent", "u"), *WHOLE, ("got", "u", 2), *END)(history)
    results = judge(history, *chunks.INVARIANTS)
    assert names(results) == set()
    assert results["K2"].undecided


@pytest.mark.parametrize(
    ("numbers", "done"),
    [
        ((0, 1, 2), 1),
        ((0, 1, 0, 1, 2), 1),
        ((0, 1, 1, 2), 1),
        ((0, 2), 0),
        ((0, 2, 1), 0),
        ((1, 2), 0),
        ((0, 1, 2, 2), 1),
        ((0, 1, 2, 0, 1, 2), 2),
    ],
)
def test_the_scan_accepts_exactly_the_complete_runs(numbers: tuple[int, ...], done: int) -> None:
    scan = Scan()
    for index, number in enumerate(numbers):
        scan.take("u", Piece((1, index), number, 3, index, index, 1))
    assert len(scan.done) == done


def test_a_message_complete_after_the_last_receive_is_owed_to_nobody() -> None:
    history = Chunks()
    script(("nothing",), *WHOLE, ("wait", 3 * SECOND), ("quiescent",))(history)
    assert names(judge(history, *chunks.INVARIANTS)) == set()


@pytest.mark.parametrize("renewed", [True, False])
def test_a_producer_made_anew_may_use_its_uuids_again(renewed: bool) -> None:
    """It counts from 0 again, and so do the uuids that clients build from its name and that number."""
    history = Chunks()
    for number in range(3):
        history.out("u", number)
    if renewed:
        history.invoke("producer", producer="p", actor="p0")
    for number in range(3):
        history.out("u", number, text="another" if number else "u", size=8 if number == 2 else 10, total=28)
    assert names(judge(history, *chunks.INVARIANTS)) == (set() if renewed else {("CHUNK-03", "wrong-chunk-labels")})
