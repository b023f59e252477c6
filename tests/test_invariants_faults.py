"""What only process and admin faults decide: restarts, terminated topics, subscriptions that outlive their broker."""

from __future__ import annotations

from typing import Any

import pytest

from harness.history.event import Event
from harness.invariants.broker_acks import BrokerAcks
from harness.invariants.calm import Calm
from harness.invariants.connection import Connection
from harness.invariants.cursor_position import CursorPosition
from harness.invariants.dead_letter import Redelivery
from harness.invariants.dispatch import Completeness, SharedDispatch, SingleActiveDispatch
from harness.invariants.faults import DISTURBANCES, Interruptions, concerns
from harness.invariants.final_read import Surroundings
from harness.invariants.ledger import Ledger
from harness.invariants.receipts import Answering, ClientReceipts, Durable
from harness.invariants.subscription_kept import SubscriptionKept
from harness.invariants.termination import Termination
from tests.consumer_history import CONSUMER, SECOND, SUBSCRIPTION, TOPIC, ConsumerHistory
from tests.history_builder import History, digest, judge, names


def fault(history: History, kind: str, **columns: Any) -> Event:
    return history.add(layer="fault", kind=kind, **columns)


def restarted(history: History, down: str = "broker_kill") -> None:
    fault(history, down)
    history.closed()
    fault(history, "broker_ready")


# --- the vocabulary


@pytest.mark.parametrize(
    ("named", "topic", "concerned"),
    [
        (None, "t", True),
        ("t", "t", True),
        ("t", "t-partition-3", True),
        ("t", "t2", False),
        ("t-partition-1", "t", False),
    ],
)
def test_whom_a_fault_concerns(named: str | None, topic: str, concerned: bool) -> None:
    assert concerns(Event(layer="fault", kind="unload", topic=named), topic) is concerned


def test_time_counts_only_while_the_broker_works() -> None:
    work = Interruptions()
    for kind, at in (("broker_pause", 10), ("broker_resume", 20), ("broker_kill", 30), ("broker_ready", 50)):
        work.observe(Event(layer="fault", kind=kind, time_ns=at))
    assert work.worked(0, 60) == 30
    assert work.worked(12, 18) == 0
    assert work.worked(15, 35) == 10
    assert work.worked(60, 60) == work.worked(60, 50) == 0
    work.observe(Event(layer="fault", kind="broker_pause", time_ns=60))
    work.observe(Event(layer="fault", kind="broker_kill", time_ns=70))
    assert work.worked(50, 100) == 10
    work.observe(Event(layer="fault", kind="broker_ready", time_ns=90))
    assert work.worked(50, 100) == 20


def test_what_was_not_injected_disturbs_nothing() -> None:
    calm, around = Calm(), Surroundings("t")
    for event in (
        Event(layer="fault", kind="not_injected", index=1, extra={"fault": "unload"}),
        Event(layer="fault", kind="quiescent", index=2, extra={"drained": True}),
    ):
        calm.observe(event)
        around.take(event)
    assert calm.drained
    assert calm.last_fault == -1
    assert around.last_disturbance is None


@pytest.mark.parametrize("kind", sorted(DISTURBANCES - {"dedup"}))
def test_every_disturbance_takes_the_calm_away(kind: str) -> None:
    around = Surroundings("t")
    around.take(Event(layer="fault", kind=kind, index=1))
    assert not around.calm_since(0)
    calm = Calm()
    calm.observe(Event(layer="fault", kind=kind, index=1))
    assert calm.last_fault == 1


def test_a_start_that_is_part_of_the_healing_leaves_nothing_to_heal() -> None:
    calm = Calm()
    for kind in ("broker_kill", "healed", "broker_ready"):
        calm.observe(Event(layer="fault", kind=kind))
    assert calm.observe(Event(layer="fault", kind="quiescent", extra={"drained": True}))


def test_a_fault_on_another_topic_is_no_disturbance_of_this_one() -> None:
    around = Surroundings("t")
    around.take(Event(layer="fault", kind="unload", topic="another", index=1))
    assert around.calm_since(0)
    assert around.crashes == []


# --- receipts


@pytest.mark.parametrize("stored", [True, False])
def test_what_was_confirmed_before_a_kill_is_stored_after_it(stored: bool) -> None:
    history = History()
    history.published(0, "a", (1, 0))
    restarted(history)
    history.quiescent()
    if stored:
        history.entry(1, 0, "a", sequence_id=0)
    history.log_end()
    results = judge(history, Durable())
    assert names(results) == (set() if stored else {("RECEIPT-05", "receipted-but-missing")})
    assert results["RECEIPT-05"].judged == 1


def test_what_was_under_way_to_a_producer_that_the_broker_closed_need_not_be_answered() -> None:
    history = ConsumerHistory()
    history.registered()
    fault(history, "unload", topic=TOPIC)
    history.frame("CLOSE_PRODUCER", to="client", producer="p", extra={"producer_id": 0})
    history.sent(0, "a", side="broker")
    history.wait(9 * SECOND)
    history.quiescent()
    assert names(judge(history, Answering())) == set()


@pytest.mark.parametrize("sent", ["before", "after"])
def test_what_was_sent_before_an_unload_is_not_waited_for_on_the_same_connection(sent: str) -> None:
    """Two copies of each frame on one connection: the receipts are those of the second (seen with Pulsar 4.0.7).

    The first may also leave after the broker has closed the producer, before the client knows.
    """
    history = History()
    history.registered()
    sends = [history.invoke("send", producer="p", payload_digest=digest(text), actor="p0") for text in "abc"]
    for again in (False, True):
        if again is (sent == "before"):
            fault(history, "unload", topic=TOPIC)
            history.both("CLOSE_PRODUCER", to="client", producer="p", extra={"producer_id": 0})
        if again:
            history.registered(request_id=2)
        for number, text in enumerate("abc" if again else "ab"):
            history.sent(number, text)
    for number in range(3):
        history.receipt(number, (2, number))
    for number, invoked in enumerate(sends):
        history.acknowledged(invoked, (2, number))
    history.quiescent()
    history.add(layer="fault", kind="quiescent", extra={"drained": True}, time_ns=60_000_000_000)
    results = judge(history, Answering(), ClientReceipts())
    assert names(results) == set()
    assert not results["RECEIPT-01"].undecided


def test_a_broker_that_was_paused_has_its_time_afterwards() -> None:
    history = ConsumerHistory()
    history.registered()
    fault(history, "broker_pause")
    history.sent(0, "a", side="broker")
    history.wait(9 * SECOND)
    fault(history, "broker_resume")
    history.quiescent()
    results = judge(history, Answering())
    assert names(results) == set()
    assert results["RECEIPT-01"].undecided
    history.wait(9 * SECOND)
    history.quiescent()
    assert names(judge(history, Answering())) == {("RECEIPT-01", "unanswered")}


def closing(history: History, answer: str = "ERROR") -> None:
    history.frame("CLOSE_PRODUCER", producer="p", request_id=7, extra={"producer_id": 0})
    history.frame(answer, to="client", producer="p", request_id=7, error="UnknownError", extra={"producer_id": 0})


@pytest.mark.parametrize("excuse", ["closed", "refused", ""])
def test_a_close_may_be_refused_for_a_producer_that_is_none(excuse: str) -> None:
    history = History()
    history.registered()
    if excuse == "closed":
        history.frame("CLOSE_PRODUCER", to="client", producer="p", extra={"producer_id": 0})
    elif excuse == "refused":
        history.frame("PRODUCER", producer="p", request_id=6, extra={"producer_id": 0})
        extra = {"producer_id": 0, "request": "PRODUCER"}
        history.frame("ERROR", to="client", producer="p", request_id=6, error="ProducerBusy", extra=extra)
    closing(history)
    assert names(judge(history, Connection())) == (set() if excuse else {("PCLOSE-05", "close-refused")})


@pytest.mark.parametrize("lowered", [True, False])
def test_a_message_over_a_limit_that_was_lowered_decides_nothing(lowered: bool) -> None:
    history = History()
    if lowered:
        fault(history, "max_message_size")
    history.frame("CONNECTED", side="client", to="client", extra={"max_message_size": 5})
    history.sent(0, "a", side="client")
    results = judge(history, Connection())
    assert (("SEND-05", "message-over-the-limit") in names(results)) is not lowered
    assert bool(results["SEND-05"].undecided) is lowered


@pytest.mark.parametrize(("ledger", "found"), [(1, True), (2, False)])
def test_a_ledger_that_a_start_has_found_is_written_no_more(ledger: int, found: bool) -> None:
    history = History()
    history.published(0, "a", (1, 0))
    restarted(history)
    history.published(1, "b", (ledger, 1 if ledger == 1 else 0), conn=2)
    results = judge(history, Ledger())
    assert names(results) == ({("LEDGER-03", "old-ledger-after-a-restart")} if found else set())
    assert results["LEDGER-03"].judged == 1


def test_what_was_sent_before_the_start_was_over_says_nothing_of_ledgers() -> None:
    history = History()
    history.published(0, "a", (1, 0))
    fault(history, "broker_kill")
    history.published(1, "b", (1, 1))
    fault(history, "broker_ready")
    assert names(judge(history, Ledger())) == set()


# --- terminated topics


def terminated(history: History, refused: bool = False) -> None:
    fault(history, "terminate", topic=TOPIC)
    if refused:
        fault(history, "not_injected", topic=TOPIC, extra={"fault": "terminate"})


def told_of_the_end(history: History) -> None:
    history.frame("REACHED_END_OF_TOPIC", to="client", consumer=CONSUMER, subscription=SUBSCRIPTION)


@pytest.mark.parametrize("topic", [TOPIC, "another"])
def test_a_later_refusal_takes_no_earlier_termination_back(topic: str) -> None:
    history = History()
    terminated(history)
    fault(history, "terminate", topic=topic)
    fault(history, "not_injected", topic=topic, extra={"fault": "terminate"})
    told_of_the_end(history)
    results = judge(history, Termination())
    assert names(results) == set()
    assert results["CONS-11"].judged == 1


@pytest.mark.parametrize("times", [1, 2])
def test_a_termination_that_was_always_refused_is_none(times: int) -> None:
    history = History()
    for _ in range(times):
        terminated(history, refused=True)
    told_of_the_end(history)
    assert names(judge(history, Termination())) == {("CONS-11", "end-of-a-topic-that-goes-on")}


def test_a_refusal_that_names_no_topic_is_of_the_latest_request() -> None:
    history = History()
    terminated(history)
    fault(history, "terminate", topic="another")
    fault(history, "not_injected", extra={"fault": "terminate"})
    told_of_the_end(history)
    assert names(judge(history, Termination())) == set()


def test_a_terminated_topic_refuses() -> None:
    history = History()
    terminated(history)
    history.invoke("send", producer="p", payload_digest=digest("a"))
    history.sent(0, "a")
    history.refused(0, "TopicTerminatedError", extra={"producer_id": 0})
    results = judge(history, Termination())
    assert names(results) == set()
    assert results["ERR-05"].judged == 1


@pytest.mark.parametrize(("refused", "found"), [(False, True), (True, False)])
def test_a_terminated_topic_stores_nothing(refused: bool, found: bool) -> None:
    history = History()
    terminated(history, refused)
    history.published(0, "a", (1, 0))
    assert names(judge(history, Termination())) == ({("ERR-05", "stored-after-termination")} if found else set())


def test_what_is_on_its_way_when_a_topic_is_terminated_may_be_stored() -> None:
    history = History()
    invoked = history.invoke("send", producer="p", payload_digest=digest("a"))
    history.sent(0, "a")
    terminated(history)
    history.receipt(0, (1, 0))
    history.acknowledged(invoked, (1, 0))
    assert names(judge(history, Termination())) == set()


def test_what_was_answered_as_terminated_ends_the_topic_for_all_that_comes_later() -> None:
    history = History()
    history.invoke("send", producer="p", payload_digest=digest("a"))
    terminated(history)
    history.sent(0, "a")
    history.refused(0, "TopicTerminatedError", extra={"producer_id": 0})
    history.sent(1, "b")
    history.receipt(1, (1, 0))
    assert names(judge(history, Termination())) == {("ERR-05", "stored-after-termination")}


def test_nobody_terminated_the_topic() -> None:
    history = History()
    history.sent(0, "a")
    history.refused(0, "TopicTerminatedError", extra={"producer_id": 0})
    history.frame("REACHED_END_OF_TOPIC", to="client", consumer=CONSUMER, subscription=SUBSCRIPTION)
    assert names(judge(history, Termination())) == {
        ("ERR-05", "terminated-by-nobody"),
        ("CONS-11", "end-of-a-topic-that-goes-on"),
    }


def test_the_end_of_a_terminated_topic_is_told() -> None:
    history = History()
    terminated(history)
    history.frame("REACHED_END_OF_TOPIC", to="client", consumer=CONSUMER, subscription=SUBSCRIPTION)
    results = judge(history, Termination())
    assert names(results) == set()
    assert results["CONS-11"].judged == 1


def turned_away(history: History) -> None:
    columns: dict[str, Any] = {"producer": "p", "request_id": 5}
    history.both("PRODUCER", **columns, extra={"producer_id": 0})
    extra = {"producer_id": 0, "request": "PRODUCER"}
    history.both("ERROR", to="client", error="TopicTerminatedError", **columns, extra=extra)


@pytest.mark.parametrize(("asked", "found"), [(False, True), (True, False)])
def test_a_producer_of_a_terminated_topic_does_not_come_back(asked: bool, found: bool) -> None:
    history = History()
    terminated(history)
    turned_away(history)
    if asked:
        history.invoke("producer", producer="p", actor="p1")
    turned_away(history)
    results = judge(history, Termination())
    assert names(results) == ({("PROD-14", "registered-again-after-termination")} if found else set())
    assert results["PROD-14"].judged >= 1


# --- subscriptions


def subscribed(history: ConsumerHistory, conn: int, initial: str) -> None:
    extra = {"consumer_id": 1, "type": "shared", "initial_position": initial, "durable": True}
    history.wire("SUBSCRIBE", conn=conn, request_id=conn, extra=extra)
    history.frame(
        "SUCCESS", to="client", conn=conn, request_id=conn, subscription=SUBSCRIPTION, extra={"request": "SUBSCRIBE"}
    )
    history.flow(10, conn=conn)


def kept(
    *, sent_again: bool, again: str = "latest", deleted: bool = False, acked: bool = False
) -> set[tuple[str, str]]:
    history = ConsumerHistory()
    subscribed(history, 1, "latest")
    history.published(1, 0)
    if acked:
        history.ack((1, 0))
    history.request("CLOSE_CONSUMER")
    if deleted:
        fault(history, "delete_subscription", topic=TOPIC, subscription=SUBSCRIPTION)
    fault(history, "broker_kill")
    history.closed()
    fault(history, "broker_ready")
    subscribed(history, 2, again)
    if sent_again:
        history.message(1, 0, conn=2)
    history.end((1, 0))
    return names(judge(history, SubscriptionKept()))


def test_a_subscription_outlives_its_broker() -> None:
    begun_anew = {("COPT-03", "subscription-begun-anew")}
    assert kept(sent_again=False) == begun_anew
    assert kept(sent_again=True) == set()
    assert kept(sent_again=False, again="earliest") == set()
    assert kept(sent_again=False, deleted=True) == set()
    assert kept(sent_again=False, acked=True) == set()


@pytest.mark.parametrize("recorded", ["before", "after", "of another", ""])
def test_a_deletion_under_way_excuses_a_subscription_that_is_new(recorded: str) -> None:
    """It is recorded before it takes hold: the first SUBSCRIBE may come between the two."""
    history = ConsumerHistory()
    name = "another" if recorded == "of another" else SUBSCRIPTION
    if recorded in ("before", "of another"):
        fault(history, "delete_subscription", topic=TOPIC, subscription=name)
    subscribed(history, 1, "latest")
    history.published(1, 0)
    if recorded == "after":
        fault(history, "delete_subscription", topic=TOPIC, subscription=name)
    history.wire("CLOSE_CONSUMER", to="client", conn=1)
    subscribed(history, 2, "latest")
    fault(history, "healed")
    history.end((1, 0))
    found = set() if recorded in ("before", "after") else {("COPT-03", "subscription-begun-anew")}
    assert names(judge(history, SubscriptionKept())) == found


@pytest.mark.parametrize("recorded", ["before", ""])
def test_a_deletion_under_way_excuses_what_the_new_subscription_is_not_sent(recorded: str) -> None:
    history = ConsumerHistory()
    if recorded:
        fault(history, "delete_subscription", topic=TOPIC, subscription=SUBSCRIPTION)
    history.consumer()
    history.published(1, 0)
    history.wire("CLOSE_CONSUMER", to="client")
    history.subscribe(conn=2)
    history.flow(10, conn=2)
    fault(history, "healed")
    history.end((1, 0))
    found = set() if recorded else {("CONS-12", "never-dispatched")}
    assert names(judge(history, Completeness())) == found


@pytest.mark.parametrize("recorded", ["before", ""])
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_a_deletion_under_way_excuses_what_comes_again(kind: str, recorded: str) -> None:
    """What was acked before the deletion took hold may be sent again, and its entries begin anew."""
    history = ConsumerHistory()
    if recorded:
        fault(history, "delete_subscription", topic=TOPIC, subscription=SUBSCRIPTION)
    history.consumer(kind=kind)
    history.published(1, 0)
    history.message(1, 0)
    history.ack((1, 0))
    history.wait(2 * SECOND)
    history.wire("CLOSE_CONSUMER", to="client")
    history.consumer(kind=kind, conn=2)
    history.message(1, 0, conn=2)
    history.end((1, 0))
    assert (names(judge(history, BrokerAcks())) == set()) is bool(recorded)


@pytest.mark.parametrize(("recorded", "found"), [("before", set()), ("", {("C2", "mark-delete-went-back")})])
def test_a_deletion_under_way_excuses_a_cursor_that_begins_anew(recorded: str, found: set[tuple[str, str]]) -> None:
    history = ConsumerHistory()
    if recorded:
        fault(history, "delete_subscription", topic=TOPIC, subscription=SUBSCRIPTION)
    history.consumer()
    for at in (1, 0):
        history.add(layer="admin", kind="CURSOR", topic=TOPIC, subscription=SUBSCRIPTION, ledger_id=1, entry_id=at)
    assert names(judge(history, CursorPosition())) == found


def test_what_was_stored_before_a_subscription_is_not_owed_to_it() -> None:
    history = ConsumerHistory()
    history.published(1, 0)
    subscribed(history, 1, "latest")
    history.request("CLOSE_CONSUMER")
    subscribed(history, 2, "latest")
    history.end((1, 0))
    results = judge(history, SubscriptionKept())
    assert names(results) == set()
    assert results["COPT-03"].judged == 0


@pytest.mark.parametrize("kind", ["backlog_quota", "delete_subscription"])
def test_a_legal_loss_is_not_missed(kind: str) -> None:
    history = ConsumerHistory()
    history.consumer(kind="shared")
    fault(history, kind)
    history.published(1, 0)
    history.end((1, 0))
    assert names(judge(history, Completeness(), SharedDispatch())) == set()


@pytest.mark.parametrize("kind", ["unload", "unload_namespace", "broker_kill", "broker_stop"])
def test_a_reload_excuses_what_a_dispatcher_forgets(kind: str) -> None:
    for consumers, invariant in (("shared", SharedDispatch()), ("exclusive", SingleActiveDispatch())):
        history = ConsumerHistory()
        history.consumer(kind=consumers)
        history.message(1, 0)
        history.message(1, 1)
        fault(history, kind)
        history.message(1, 0)
        assert names(judge(history, invariant)) == set()
        elsewhere = ConsumerHistory()
        elsewhere.consumer(kind=consumers)
        elsewhere.message(1, 0)
        elsewhere.message(1, 1)
        fault(elsewhere, kind, topic="persistent://public/default/another")
        elsewhere.message(1, 0)
        assert names(judge(elsewhere, invariant))


# --- redelivery counts


def counted(after: int, *, ready: bool = True, asked: int = 0, left: bool = False) -> set[tuple[str, str]]:
    """An entry is asked for twice, the broker restarts, ``asked`` more times; ``after``: the count it comes with."""
    history = ConsumerHistory()
    history.consumer(kind="shared")
    history.message(1, 0)
    for count in (1, 2):
        history.redeliver((1, 0))
        history.message(1, 0, count=count)
    fault(history, "broker_kill")
    history.closed()
    if ready:
        fault(history, "broker_ready")
    history.subscribe(kind="shared", conn=2)
    history.flow(10, conn=2)
    for _ in range(asked):
        history.redeliver((1, 0), conn=2)
    if left:
        history.request("CLOSE_CONSUMER", conn=2)
        history.subscribe(kind="shared", conn=3)
        history.message(1, 0, conn=3, count=after)
    else:
        history.message(1, 0, conn=2, count=after)
    return names(judge(history, Redelivery()))


def test_redelivery_counts_begin_anew_with_the_broker() -> None:
    kept = {("Q1", "count-kept-over-a-restart")}
    assert counted(0) == set()
    assert counted(2) == kept
    assert counted(1, asked=1) == set()
    assert counted(2, asked=1) == kept
    assert counted(1, left=True) == set()
    assert counted(2, ready=False) == set()
