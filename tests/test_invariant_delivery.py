"""Each delivery rule with a history that breaks it, and only it, and one that puts it to test and keeps it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.invariants import delivery
from harness.invariants.subscription_kept import SubscriptionKept
from tests.consumer_history import SECOND, SUBSCRIPTION, ConsumerHistory, digest
from tests.history_builder import judge, names

Story = Callable[[ConsumerHistory], None]
CASES: dict[tuple[str, str], tuple[Story, Story]] = {}


def case(clause: str, name: str, good: Story) -> Callable[[Story], Story]:
    def register(bad: Story) -> Story:
        CASES[(clause, name)] = (bad, good)
        return bad

    return register


def plain(history: ConsumerHistory) -> None:
    """Three messages consumed one by one with refills, a calm end and a full read."""
    history.consumer(queue=2)
    for entry in range(3):
        history.published(1, entry)
        history.delivered(1, entry)
        history.flow(1)
    history.nothing()
    history.end((1, 0), (1, 1), (1, 2))


@case("FLOW-01", "push-before-flow", plain)
def _(history: ConsumerHistory) -> None:
    history.subscribe()
    history.message(1, 0)


@case("PERMIT-01", "push-beyond-credit", plain)
def _(history: ConsumerHistory) -> None:
    history.consumer(queue=1)
    history.message(1, 0)
    history.message(1, 1)


def batches(history: ConsumerHistory) -> None:
    history.consumer(queue=2)
    history.message(1, 0, num_messages=5)
    history.message(1, 1, num_messages=5)


@case("FLOW-02", "push-beyond-credit", batches)
def _(history: ConsumerHistory) -> None:
    batches(history)
    history.message(1, 2, num_messages=5)


@case("FLOW-03", "granted-beyond-queue", plain)
def _(history: ConsumerHistory) -> None:
    history.consumer(queue=10)
    history.delivered(1, 0)
    history.flow(5)


@case("PERMIT-02", "opening-grant", plain)
def _(history: ConsumerHistory) -> None:
    made = history.invoke(
        "consumer", consumer="c", subscription=SUBSCRIPTION, extra={"type": "exclusive", "options": {"queue": 10}}
    )
    history.subscribe()
    history.complete(made)
    history.flow(7)


@case("PERMIT-04", "refill-too-small", plain)
def _(history: ConsumerHistory) -> None:
    history.consumer(queue=10)
    history.delivered(1, 0)
    history.flow(1)


def leak(refill: bool) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer(queue=4)
        for entry in range(3):
            history.delivered(1, entry)
        if refill:
            history.flow(3)
        history.nothing()
        history.end((1, 0), (1, 1), (1, 2))

    return story


CASES[("PERMIT-05", "permits-leaked")] = (leak(False), leak(True))


def chunk_leak(refill: bool) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer(queue=2)
        history.message(1, 0, chunk_uuid="u", chunk_id=0, num_chunks=3)
        if refill:
            history.flow(1)
        history.nothing()
        history.end()

    return story


CASES[("FLOW-04", "permits-leaked")] = (chunk_leak(False), chunk_leak(True))


def reconnects(opening: int) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer(queue=10)
        history.delivered(1, 0)
        history.closed()
        history.subscribe(conn=2)
        history.flow(opening, conn=2)
        history.delivered(1, 0, conn=2)
        history.nothing()
        history.wait(10 * SECOND)
        history.end((1, 0))

    return story


CASES[("PERMIT-07", "opening-grant-changed")] = (reconnects(9), reconnects(10))


@case("PERMIT-11", "flow-without-permits", plain)
def _(history: ConsumerHistory) -> None:
    history.consumer(queue=10)
    history.flow(0)


def hoard(stop: int) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.add(
            layer="api",
            kind="consumer",
            phase="invoke",
            op=1,
            topic="persistent://public/default/t",
            consumer="c",
            subscription=SUBSCRIPTION,
            extra={"type": "exclusive", "options": {"queue": 2}},
        )
        history.subscribe()
        history.flow(2)
        for entry in range(stop):
            history.message(1, entry)
            history.flow(1)

    return story


CASES[("PERMIT-13", "unbounded-prefetch")] = (hoard(4), hoard(3))


def two_exclusive(late: bool) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer("a", conn=1)
        history.published(1, 0)
        history.message(1, 0, name="a")
        history.subscribe("b", conn=2)
        if late:
            history.flow(10, "b", conn=2)
        history.published(1, 1)
        history.message(1, 1, name="a")

    return story


CASES[("DISPATCH-01", "two-exclusive-consumers")] = (two_exclusive(True), two_exclusive(False))


def failover(turns: str) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer("a", "failover", conn=1)
        history.consumer("b", "failover", conn=2)
        for entry, name in enumerate(turns):
            history.published(1, entry)
            history.message(1, entry, name=name, conn=1 if name == "a" else 2)

    return story


CASES[("DISPATCH-01", "two-active-consumers")] = (failover("aba"), failover("aab"))


def order(*entries: int, asked: bool = False) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer()
        for entry in entries:
            if asked and entry == 0:
                history.redeliver()
            history.message(1, entry)

    return story


CASES[("DISPATCH-02", "dispatch-went-back")] = (order(0, 2, 1), order(0, 1, 0, 1, asked=True))


def rewind(*entries: int, cumulative: bool = False) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer()
        for entry in range(4):
            history.message(1, entry)
        history.ack((1, 0), cumulative=cumulative)
        history.closed()
        history.subscribe(conn=2)
        history.flow(10, conn=2)
        for entry in entries:
            history.message(1, entry, conn=2)

    return story


CASES[("DISPATCH-03", "unacked-entry-skipped")] = (rewind(2, 3), rewind(1, 2, 3))
CASES[("ACK-CUM-01", "unacked-entry-skipped")] = (rewind(1, 3, cumulative=True), rewind(1, 2, 3, cumulative=True))


def content(frame: str) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer()
        history.both("SEND", producer="p", sequence_id=4, payload_digest=digest("x"), extra={"frame_digest": "aa"})
        history.message(1, 0, "x", producer="p", sequence_id=4, extra={"frame_digest": frame})

    return story


CASES[("DISPATCH-04", "content-changed")] = (content("bb"), content("aa"))


def shared(again: str, asked: bool) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer("a", "shared", conn=1)
        history.consumer("b", "shared", conn=2)
        history.message(1, 0, name="a")
        if asked:
            history.redeliver((1, 0), name="a")
        history.message(1, 0, name=again, conn=1 if again == "a" else 2)

    return story


CASES[("DISP-02", "unasked-redelivery")] = (shared("b", False), shared("b", True))
CASES[("UNACK-01", "unasked-redelivery")] = (shared("a", False), shared("a", True))


def departed(again: bool) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer("a", "shared", conn=1)
        history.consumer("b", "shared", conn=2)
        history.message(1, 0, name="a")
        leave = history.invoke("close", consumer="a", subscription=SUBSCRIPTION)
        history.request("CLOSE_CONSUMER", "a")
        history.answer()
        history.complete(leave)
        if again:
            history.delivered(1, 0, name="b", conn=2)
        history.end((1, 0))

    return story


CASES[("UNACK-16", "stranded-with-a-departed-consumer")] = (departed(False), departed(True))


def keyed(first: int, name: str, acked: bool = False) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer("a", "key_shared", conn=1)
        history.consumer("b", "key_shared", conn=2)
        history.message(1, first, name="a", extra={"metadata": {"partition_key": "k"}})
        if acked:
            history.ack((1, first), name="a")
        history.message(1, 1, name=name, conn=1 if name == "a" else 2, extra={"metadata": {"partition_key": "k"}})

    return story


CASES[("KEYSHARED-01", "key-at-two-consumers")] = (keyed(0, "b"), keyed(0, "b", acked=True))
CASES[("KEYSHARED-01", "key-out-of-order")] = (keyed(2, "a"), keyed(0, "a"))


def complete(*seen: int, chunk: bool = False) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer()
        pieces = [{"chunk_uuid": "u", "chunk_id": entry, "num_chunks": 2} if chunk else {} for entry in range(2)]
        for entry in seen:
            history.message(1, entry, **pieces[entry])
        history.wait(3 * SECOND)
        history.quiescent()
        for entry in range(2):
            history.entry(1, entry, f"1:{entry}", **pieces[entry])
        history.log_end()

    return story


CASES[("CONS-12", "never-dispatched")] = (complete(0), complete(0, 1))
CASES[("K8", "never-dispatched")] = (complete(0, chunk=True), complete(0, 1, chunk=True))


@case("RECV-01", "handed-over-out-of-order", plain)
def _(history: ConsumerHistory) -> None:
    history.consumer()
    for entry in range(2):
        history.message(1, entry)
    history.receive(1, 1)
    history.receive(1, 0)


@case("RECV-02", "message-from-nowhere", plain)
def _(history: ConsumerHistory) -> None:
    history.consumer()
    history.delivered(1, 0)
    history.receive(1, 5)


@case("RECV-06", "redelivery-count-changed", plain)
def _(history: ConsumerHistory) -> None:
    history.consumer()
    history.message(1, 0)
    history.receive(1, 0, count=3)


def member(index: int) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer()
        history.message(1, 0, num_messages=2, ack_set=[0b10])
        history.receive(1, 0, "m", batch_index=index)

    return story


CASES[("BIDX-01", "acked-member-delivered")] = (member(0), member(1))


def damaged(handed: bool, error: str | None) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer()
        history.delivered(1, 0)
        history.message(1, 1, sides="broker")
        history.message(1, 1, sides="client", extra={"checksum_ok": False})
        if handed:
            history.receive(1, 1)
        if error is not None:
            history.ack((1, 1), error=error)
        history.end((1, 0), (1, 1))

    return story


mismatch = damaged(False, "ChecksumMismatch")
CASES[("CORR-01", "damaged-message-delivered")] = (damaged(True, "ChecksumMismatch"), mismatch)
CASES[("CHECKSUM-03", "damaged-message-not-discarded")] = (damaged(False, None), mismatch)
CASES[("CHECKSUM-03", "wrong-validation-error")] = (damaged(False, "DecompressionError"), mismatch)


@case("LEDGER-04", "two-messages-one-id", plain)
def _(history: ConsumerHistory) -> None:
    history.consumer()
    history.send("x", at=(1, 0))
    history.delivered(1, 0, "y")


def early(answered: bool) -> Story:
    def story(history: ConsumerHistory) -> None:
        extra = {"consumer_id": 1, "type": "exclusive"}
        history.wire("SUBSCRIBE", request_id=1, extra=extra)
        if answered:
            history._requests = 1
            history.answer()
        history.flow(10)

    return story


CASES[("ACK-27", "frame-before-subscribed")] = (early(False), early(True))


@case("CONS-01", "request-id-reused", plain)
def _(history: ConsumerHistory) -> None:
    history.consumer()
    history.wire("SEEK", request_id=1)


def farewell(kind: str, verb: str, message: bool = False, later: str | None = None) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer()
        history.message(1, 0)
        leave = history.invoke(verb, consumer="c", subscription=SUBSCRIPTION)
        history.request(kind)
        history.answer()
        if message:
            history.message(1, 1)
        history.complete(leave)
        if later is not None:
            history.wait(2 * SECOND)
            history.wire(later)

    return story


LATE = "REDELIVER_UNACKNOWLEDGED_MESSAGES"
for verb, kind, silent, quiet in (
    ("close", "CLOSE_CONSUMER", "CCLOSE-01", "CCLOSE-08"),
    ("unsubscribe", "UNSUBSCRIBE", "UNSUB-07", "UNSUB-06"),
):
    CASES[(silent, "message-after-farewell")] = (farewell(kind, verb, message=True), farewell(kind, verb))
    CASES[(quiet, "frames-after-farewell")] = (farewell(kind, verb, later=LATE), farewell(kind, verb))


def returns(back: bool, by_broker: bool) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer()
        history.delivered(1, 0)
        if by_broker:
            history.wire("CLOSE_CONSUMER", to="client")
        else:
            history.closed()
        if back:
            history.subscribe(conn=2)
            history.flow(10, conn=2)
        history.wait(20 * SECOND)
        # Nobody drains a consumer that is away: the run of a breach ends undrained.
        history.end((1, 0), drained=back)

    return story


CASES[("CONS-07", "not-back-after-connection-loss")] = (returns(False, False), returns(True, False))
CASES[("CONS-16", "not-back-after-broker-close")] = (returns(False, True), returns(True, True))


def sought(*after: int) -> Story:
    def story(history: ConsumerHistory) -> None:
        history.consumer()
        for entry in range(4):
            history.delivered(1, entry)
        history.request("SEEK")
        history.call("seek", (1, 1))
        for entry in after:
            history.delivered(1, entry)
        history.end((1, 0), (1, 1), (1, 2), (1, 3))

    return story


CASES[("SEEK-06", "message-from-before-the-seek")] = (sought(0, 1, 2, 3), sought(1, 2, 3))
CASES[("SEEK-04", "not-replayed-after-seek")] = (sought(1, 2), sought(2, 3))


def second_exclusive(answer: str | None, by: str = "broker", meanwhile: str | None = None) -> Story:
    def tell(history: ConsumerHistory) -> None:
        history.consumer()
        extra = {"consumer_id": 2, "type": "exclusive", "initial_position": "earliest", "durable": True}
        history.wire("SUBSCRIBE", "second", request_id=77, extra=extra)
        if meanwhile is not None:
            history.wire(meanwhile, extra={"ids": []})
        if answer is not None:
            history.wire("ERROR", "second", to="client", request_id=77, error=answer, extra={"consumer_id": 2})
        else:
            history.closed(by=by)

    return tell


def dropped_seek(answered: bool, entry: int | None = 0, by: str = "broker") -> Story:
    def tell(history: ConsumerHistory) -> None:
        history.consumer()
        history.delivered(1, 0)
        place = {"ledger_id": 1, "entry_id": entry} if entry is not None else {"extra": {"position": "earliest"}}
        history.wire("SEEK", request_id=77, **place)
        if answered:
            for side in ("broker", "client"):
                history.frame("SUCCESS", side=side, to="client", conn=1, topic=None, request_id=77)
        else:
            history.closed(by=by)

    return tell


CASES[("DISPATCH-01", "connection-dropped-instead-of-busy")] = (
    second_exclusive(None),
    second_exclusive("ConsumerBusy"),
)
CASES[("SEEK-03", "seek-dropped-the-connection")] = (dropped_seek(False), dropped_seek(True))


@pytest.mark.parametrize(
    "story",
    [
        second_exclusive(None, by="client"),
        second_exclusive(None, by="tap"),
        second_exclusive(None, meanwhile="REDELIVER_UNACKNOWLEDGED_MESSAGES"),
        dropped_seek(False, by="client"),
        dropped_seek(False, entry=7),
    ],
)
def test_a_connection_that_may_have_ended_for_another_reason_blames_nobody(story: Story) -> None:
    history = ConsumerHistory()
    story(history)
    assert names(judge(history, *delivery.INVARIANTS)) == set()


@pytest.mark.parametrize("kind", ["broker_kill", "unload"])
def test_a_connection_that_ended_with_its_broker_decides_nothing(kind: str) -> None:
    history = ConsumerHistory()
    dropped_seek(False, entry=None)(history)
    history.add(layer="fault", kind=kind, fault="{}")
    results = judge(history, *delivery.INVARIANTS)
    assert names(results) == set()
    assert results["SEEK-03"].undecided


@pytest.mark.parametrize(("clause", "name"), sorted(CASES))
def test_a_breach_is_named(clause: str, name: str) -> None:
    history = ConsumerHistory()
    CASES[(clause, name)][0](history)
    assert names(judge(history, *delivery.INVARIANTS)) == {(clause, name)}


@pytest.mark.parametrize(("clause", "name"), sorted(CASES))
def test_a_clean_history_is_judged_and_passes(clause: str, name: str) -> None:
    history = ConsumerHistory()
    CASES[(clause, name)][1](history)
    results = judge(history, *delivery.INVARIANTS)
    assert names(results) == set()
    assert results[clause].judged > 0


def test_every_clause_has_a_breach() -> None:
    declared = {clause for invariant in delivery.INVARIANTS for clause in invariant.clauses}
    # What a kept subscription owes has its histories in tests/test_invariants_faults.py.
    assert declared - set(SubscriptionKept.clauses) == {clause for clause, _ in CASES}


def test_a_redelivery_request_before_the_subscription_stands_harms_nobody() -> None:
    history = ConsumerHistory()
    history.subscribe()
    history.redeliver((1, 0))
    history.answer()
    assert names(judge(history, *delivery.INVARIANTS)) == set()


def test_permits_granted_before_the_subscription_stands_are_void() -> None:
    history = ConsumerHistory()
    history.consumer(queue=4)
    history.closed()
    history.wire("SUBSCRIBE", conn=2, request_id=90, extra={"type": "exclusive", "initial_position": "earliest"})
    history.flow(2, conn=2)
    for side in ("broker", "client"):
        history.frame("SUCCESS", side=side, to="client", conn=2, topic=None, request_id=90)
    history.flow(4, conn=2)
    assert names(judge(history, *delivery.INVARIANTS)) == {("ACK-27", "frame-before-subscribed")}


@pytest.mark.parametrize(("late", "found"), [(True, False), (False, True)])
def test_what_a_slow_link_brings_after_the_drain_is_owed_to_nobody(late: bool, found: bool) -> None:
    history = ConsumerHistory()
    history.consumer()
    history.published(1, 0)
    history.delivered(1, 0)
    if not late:
        history.published(1, 1)
    history.wait(3 * SECOND)
    history.quiescent()
    if late:
        history.published(1, 1)
    for entry in range(2):
        history.entry(1, entry, f"1:{entry}")
    history.log_end()
    assert (("CONS-12", "never-dispatched") in names(judge(history, *delivery.INVARIANTS))) is found


@pytest.mark.parametrize("refused", [False, True])
def test_attempts_that_the_broker_turns_down_prolong_the_back_off(refused: bool) -> None:
    history = ConsumerHistory()
    history.consumer()
    history.closed()
    history.wait(2 * SECOND)
    if refused:
        history.subscribe(conn=2)
        history.closed(conn=2, by="broker")
    else:
        history.wait(2 * SECOND)
    history.wait(6 * SECOND)
    history.end(drained=False)
    found = names(judge(history, *delivery.INVARIANTS))
    assert (("CONS-07", "not-back-after-connection-loss") in found) is not refused
