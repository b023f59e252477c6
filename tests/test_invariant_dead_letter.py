"""Each dead-letter rule with a history that breaks it, and only it, and one that puts it to test and keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.invariants import dead_letter
from harness.invariants.dead_letter import origin, stem
from tests.consumer_history import SECOND, SUBSCRIPTION, TOPIC, ConsumerHistory, digest
from tests.history_builder import judge, names

Story = Callable[[ConsumerHistory], None]
CASES: dict[tuple[str, str], tuple[Story, Story]] = {}
DLQ = f"{TOPIC}-{SUBSCRIPTION}-DLQ"
POLICY = {"max_redeliver": 1, "topic": DLQ}


def counted(*counts: int, asked: bool = True) -> Story:
    def tell(history: ConsumerHistory) -> None:
        history.consumer("c", "shared")
        for place, count in enumerate(counts):
            if place and asked:
                history.redeliver((1, 0))
            history.message(1, 0, count=count)

    return tell


CASES[("Q1", "first-delivery-counted")] = (counted(1), counted(0))
CASES[("Q1", "count-too-high")] = (counted(0, 2), counted(0, 1))
CASES[("REDEL-02", "count-fell")] = (counted(0, 1, 0), counted(0, 1, 2))
CASES[("REDEL-02", "count-did-not-rise")] = (counted(0, 0), counted(0, 1))


def nack(delay: int, ask: bool = True, again: bool = True) -> Story:
    def tell(history: ConsumerHistory) -> None:
        history.consumer("c", "shared", nack_delay_ms=1000)
        history.delivered(1, 0)
        history.call("nack", (1, 0))
        history.wait(delay)
        if ask:
            history.redeliver((1, 0))
            if again:
                history.message(1, 0, count=1)
        history.wait(3 * SECOND)
        history.quiescent()

    return tell


CASES[("REDEL-01", "redelivery-too-early")] = (nack(300), nack(1000))
CASES[("REDEL-01", "nack-forgotten")] = (nack(1000, ask=False), nack(1000))
CASES[("REDEL-01", "redelivery-refused")] = (nack(1000, again=False), nack(1000))


class Letters(ConsumerHistory):
    """A consumer with a dead-letter policy of one redelivery, and its dead-letter topic."""

    def rounds(self, *counts: int, last_nack: bool = True, app: bool = True) -> None:
        for count in counts:
            self.message(1, 0, "poison", count=count)
            if app:
                self.take(count)
            if app and (last_nack or count != counts[-1]):
                self.call("nack", (1, 0))
                self.wait(1000)
            if count != counts[-1]:
                self.redeliver((1, 0))

    def take(self, count: int) -> None:
        made = self.invoke("receive", consumer="c", subscription=SUBSCRIPTION)
        self.complete(
            made,
            ledger_id=1,
            entry_id=0,
            redelivery_count=count,
            payload_digest=digest("poison"),
            extra={"properties": {"a": "b"}},
        )

    def copy(self, sequence: int = 0, receipt: bool = True, payload: str = "poison", **properties: str) -> None:
        given = {"a": "b", "ORIGIN_MESSAGE_ID": "(1,0,-1,-1)", "REAL_TOPIC": TOPIC} | properties
        kept = {name: value for name, value in given.items() if value}
        self.both(
            "SEND",
            topic=DLQ,
            producer="d",
            sequence_id=sequence,
            payload_digest=digest(payload),
            num_messages=1,
            extra={"producer_id": 9, "metadata": {"properties": kept}},
        )
        if receipt:
            self.both(
                "SEND_RECEIPT",
                to="client",
                topic=DLQ,
                producer="d",
                sequence_id=sequence,
                ledger_id=7,
                entry_id=sequence,
                extra={"producer_id": 9},
            )


def letters(tell: Callable[[Letters], Any]) -> Story:
    def story(history: ConsumerHistory) -> None:
        assert isinstance(history, Letters)
        history.consumer("c", "shared", nack_delay_ms=1000, dead_letter=POLICY)
        tell(history)

    return story


def script(*steps: tuple[Any, ...]) -> Story:
    """Each step: the name of a method, its arguments, perhaps a dict of keyword arguments last."""

    def tell(history: Letters) -> None:
        for name, *arguments in steps:
            keywords = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
            getattr(history, name)(*arguments, **keywords)

    return letters(tell)


ACKED = ("ack", (1, 0))
good = script(("rounds", 0, 1), ("copy",), ACKED)
CASES[("Q2", "delivered-beyond-the-limit")] = (
    script(
        ("rounds", 0),
        ("redeliver", (1, 0)),
        ("message", 1, 0, "poison", {"count": 1}),
        ("redeliver", (1, 0)),
        ("message", 1, 0, "poison", {"count": 2}),
        ("take", 2),
    ),
    good,
)
CASES[("DLQ-01", "delivered-too-often")] = (
    script(("rounds", 0, 1, {"last_nack": False}), ("take", 1)),
    good,
)
CASES[("Q3", "dead-lettered-too-soon")] = (script(("rounds", 0), ("copy",), ACKED), good)
CASES[("Q4", "neither-acked-nor-dead-lettered")] = (script(("rounds", 0, 1), ACKED), good)
CASES[("Q5", "source-acked-before-the-copy")] = (
    script(("rounds", 0, 1), ("copy", {"receipt": False}), ACKED),
    good,
)
CASES[("Q6", "dead-lettered-twice")] = (script(("rounds", 0, 1), ("copy", 0), ("copy", 1), ACKED), good)
CASES[("Q7", "copy-differs")] = (script(("rounds", 0, 1), ("copy", {"a": "c"}), ACKED), good)
CASES[("DLQ-02", "copy-without-origin")] = (script(("rounds", 0, 1), ("copy", {"REAL_TOPIC": ""}), ACKED), good)


def due(copied: bool) -> Story:
    steps: list[tuple[Any, ...]] = [("rounds", 0, 1)]
    if copied:
        steps += [("copy",), ACKED]
    return script(*steps, ("wait", 10 * SECOND), ("end",))


CASES[("Q8", "never-dead-lettered")] = (due(False), due(True))


def batch(copied: int, *, parted: bool = False, rejected: bool = False) -> Story:
    """A batch of two: member 0 is acked, member 1 nacked; one of them is dead-lettered.

    ``parted``: after a cut; ``rejected``: after member 0 came again and was nacked.
    """

    def tell(history: Letters) -> None:
        for count in (0, 1):
            messages = [{"digest": digest("m0")}, {"digest": digest("m1")}]
            history.message(1, 0, num_messages=2, count=count, extra={"messages": messages})
            for index in range(2):
                history.receive(1, 0, f"m{index}", count=count, batch_index=index)
            if count == 0:
                history.call("ack", (1, 0), batch_index=0)
            elif rejected:
                history.call("nack", (1, 0), batch_index=0)
            history.call("nack", (1, 0), batch_index=1)
            history.wait(1000)
            if count == 0:
                history.redeliver((1, 0))
            if parted:
                history.closed(conn=9)
        history.copy(payload=f"m{copied}", ORIGIN_MESSAGE_ID=f"(1,0,-1,{copied})", a="")
        if copied == 1:
            history.ack((1, 0))

    return letters(tell)


CASES[("DLQ-03", "acked-message-dead-lettered")] = (batch(0), batch(1))


@pytest.mark.parametrize(("clause", "name"), sorted(CASES))
def test_a_breach_is_named(clause: str, name: str) -> None:
    history = Letters()
    CASES[(clause, name)][0](history)
    assert names(judge(history, *dead_letter.INVARIANTS)) == {(clause, name)}


@pytest.mark.parametrize(("clause", "name"), sorted(CASES))
def test_a_clean_history_is_judged_and_passes(clause: str, name: str) -> None:
    history = Letters()
    CASES[(clause, name)][1](history)
    results = judge(history, *dead_letter.INVARIANTS)
    assert names(results) == set()
    assert results[clause].judged > 0


def test_a_dead_letter_topic_named_unlike_its_source_is_undecided() -> None:
    history = Letters()
    history.consumer("c", "shared", dead_letter={"max_redeliver": 1, "topic": "persistent://public/default/other"})
    history.message(1, 0, "poison")
    history.take(0)
    history.ack((1, 0))
    results = judge(history, *dead_letter.INVARIANTS)
    assert names(results) == set()
    assert results["Q4"].undecided


@pytest.mark.parametrize("why", ["parted", "rejected"])
def test_an_ack_does_not_bind_for_ever(why: str) -> None:
    """It may have been lost with its session, and a member given out once more may be rejected."""
    history = Letters()
    batch(0, **{why: True})(history)
    assert "DLQ-03" not in {clause for clause, _ in names(judge(history, *dead_letter.INVARIANTS))}


def test_every_clause_has_a_breach() -> None:
    declared = {clause for invariant in dead_letter.INVARIANTS for clause in invariant.clauses}
    assert declared == {clause for clause, _ in CASES}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(5,0,-1,-1)", ((5, 0), None)),
        ("(5,3,-1,2)", ((5, 3), 2)),
        ("5:3:-1", ((5, 3), None)),
        ("5:3:0:1", ((5, 3), 1)),
        ("nonsense", None),
        ("(-1,-1,-1,-1)", None),
    ],
)
def test_origin_ids_of_all_clients_are_read(text: str, found: object) -> None:
    assert origin(text) == found


def test_a_topic_and_its_dead_letter_topic_share_a_stem() -> None:
    assert stem("persistent://a/b/run-1-orders") == stem("persistent://a/b/run-1-orders-s-DLQ")
    assert stem("persistent://a/b/orders-partition-0") == stem("persistent://a/b/orders-partition-0-s-DLQ")


@pytest.mark.parametrize(
    ("verb", "at", "forgotten"),
    [
        ("ack_cumulative", (1, 3), False),
        ("ack_cumulative", (1, 2), False),
        ("ack_cumulative", (1, 1), True),
        ("ack", (1, 3), True),
        ("seek", (1, 3), False),
        ("unsubscribe", None, False),
        ("close", None, False),
    ],
)
def test_a_nack_binds_until_the_entry_is_settled_or_the_consumer_goes(
    verb: str, at: tuple[int, int] | None, forgotten: bool
) -> None:
    history = ConsumerHistory()
    history.consumer(nack_delay_ms=1000)
    for entry in range(4):
        history.delivered(1, entry)
    history.call("nack", (1, 2))
    history.call(verb, at)
    history.wait(5 * SECOND)
    history.quiescent()
    found = names(judge(history, *dead_letter.INVARIANTS))
    assert found == ({("REDEL-01", "nack-forgotten")} if forgotten else set())


@pytest.mark.parametrize(("pause", "found"), [(700, False), (100, True)])
def test_the_first_nack_of_an_entry_sets_its_delay(pause: int, found: bool) -> None:
    history = ConsumerHistory()
    history.consumer("c", "shared", nack_delay_ms=1000)
    history.message(1, 0, num_messages=2)
    history.call("nack", (1, 0), batch_index=0)
    history.wait(pause)
    history.call("nack", (1, 0), batch_index=1)
    history.wait(300)
    history.redeliver((1, 0))
    assert names(judge(history, *dead_letter.INVARIANTS)) == (
        {("REDEL-01", "redelivery-too-early")} if found else set()
    )


def test_the_member_of_a_batch_of_one_is_a_plain_message() -> None:
    history = Letters()
    history.consumer("c", "shared", nack_delay_ms=1000, dead_letter=POLICY)
    alone = [{"digest": digest("alone"), "size": 5, "sequence_id": 0, "key": None}]
    history.wire("MESSAGE", "c", to="client", ledger_id=1, entry_id=0, num_messages=1, extra={"messages": alone})
    history.call("ack", (1, 0), "c", batch_index=0)
    history.ack((1, 0), name="c")
    result = judge(history, *dead_letter.INVARIANTS)["Q4"]
    assert (result.anomalies, result.judged) == ([], 1)
