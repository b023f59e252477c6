"""Histories that break the event contract: from the damage on nobody is blamed, and what was proved before stands."""

from functools import cache

import msgspec
import pytest

from harness.history.event import Event
from harness.invariants.contract import damaged
from harness.invariants.engine import Judgement, judge_history
from harness.invariants.registry import all_invariants
from harness.worlds.simulated import SimulatedWorld
from properties.explore import directed_plans, run_plan
from properties.families import FAMILIES
from tests.history_builder import History

INVARIANTS = all_invariants()


@cache
def clean() -> list[list[Event]]:
    plans = [directed_plans(family)[0][1] for family in FAMILIES]
    return [run_plan(SimulatedWorld(), plan).history for plan in plans]


def judged(events: list[Event]) -> Judgement:
    return judge_history(events, INVARIANTS)


def test_what_our_own_worlds_record_keeps_the_contract() -> None:
    assert [event for history in clean() for event in history if damaged(event)] == []


@pytest.mark.parametrize(
    ("column", "layer", "kind"),
    [
        ("op", "api", "send"),
        ("topic", "api", "send"),
        ("payload_digest", "api", "send"),
        ("consumer", "api", "ack"),
        ("connection", "tap.broker", "SEND"),
        ("connection", "tap.client", "CONNECTED"),
        ("ledger_id", "tap.broker", "SEND_RECEIPT"),
        ("entry_id", "tap.client", "SEND_RECEIPT"),
        ("permits", "tap.broker", "FLOW"),
        ("topic", "log", "ENTRY"),
    ],
)
def test_a_missing_column_blames_nobody(column: str, layer: str, kind: str) -> None:
    blamed = []
    tried = 0
    for history in clean():
        for place, event in enumerate(history):
            lacks = (event.layer, event.kind) == (layer, kind) and event.phase in ("invoke", "event")
            if lacks and getattr(event, column) is not None:
                tried += 1
                bent = msgspec.structs.replace(event, **{column: None})
                blamed += judged([*history[:place], bent, *history[place + 1 :]]).anomalies
                break
    assert tried
    assert blamed == []


def twice_receipted(h: History) -> None:
    h.published(0, "a", (0, 0))
    h.receipt(0, (0, 0), side="broker")


def test_a_breach_after_the_damage_is_undecided_and_says_why() -> None:
    h = History()
    damage = h.add(layer="api", kind="send", phase="invoke", topic="t", producer="p", payload_digest="d")
    twice_receipted(h)
    result = judged(h.events).results["O1"]
    assert result.anomalies == []
    assert [question.reason for question in result.undecided] == [
        f"event {damage.index} (send) breaks the event contract; "
        "what is concluded from there on may be its recorder's doing"
    ]


def test_a_breach_before_the_damage_stands() -> None:
    h = History()
    twice_receipted(h)
    h.add(layer="api", kind="send", phase="invoke", topic="t", producer="p", payload_digest="d")
    assert [anomaly.name for anomaly in judged(h.events).results["O1"].anomalies] == ["answer-to-nothing"]


def test_a_frame_that_cannot_be_read_after_the_damage_proves_nothing() -> None:
    h = History()
    h.add(layer="api", kind="send", phase="invoke", topic="t", producer="p", payload_digest="d")
    h.add(layer="tap.broker", kind="WIRE_ERROR", connection="broker-1", error="size", extra={"direction": "to_client"})
    twice_receipted(h)
    assert judged(h.events).anomalies == []
