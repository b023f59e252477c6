"""A tap that met bytes which are no frame saw nothing after them: nobody is blamed for what it missed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.history.event import Event
from harness.invariants.engine import UNREADABLE, judge_history
from harness.invariants.registry import all_invariants
from tests.history_builder import History
from tests.test_invariants_never_raise import REAL, real_history


def blinded(events: tuple[Event, ...], at: Event) -> list[Event]:
    """The history as it would be if the bytes of ``at`` had been unreadable at its tap."""
    direction = at.extra["direction"]
    error = Event(
        time_ns=at.time_ns, layer=at.layer, kind="WIRE_ERROR", connection=at.connection, error="bad_command",
        extra={"direction": direction},
    )  # fmt: skip
    seen = [
        event
        for event in events
        if event.index < at.index
        or (event.connection, event.layer, event.extra.get("direction")) != (at.connection, at.layer, direction)
    ]
    seen.insert(sum(event.index < at.index for event in seen), error)
    return [msgspec.structs.replace(event, index=place) for place, event in enumerate(seen)]


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_only_the_unreadable_bytes_themselves_are_held_against_anybody(name: str, data: st.DataObject) -> None:
    events = real_history(name)
    frames = [event for event in events if event.layer.startswith("tap") and "direction" in event.extra]
    judgement = judge_history(blinded(events, data.draw(st.sampled_from(frames))), all_invariants())
    assert {anomaly.clause for anomaly in judgement.anomalies} <= {"META-01"}


def wrong_receipt(*, error_first: bool) -> History:
    history = History()
    history.registered()
    if error_first:
        history.frame("WIRE_ERROR", side="broker", to="broker", conn=9, topic=None, error="bad_command")
    history.receipt(5, (0, 0))
    if not error_first:
        history.frame("WIRE_ERROR", side="broker", to="broker", conn=9, topic=None, error="bad_command")
    history.frame("WIRE_ERROR", side="broker", to="client", conn=8, topic=None, error="bad_command")
    return history


@pytest.mark.parametrize("error_first", [False, True])
def test_what_was_proved_before_stands_and_so_does_every_wire_error(error_first: bool) -> None:
    results = judge_history(wrong_receipt(error_first=error_first).events, all_invariants()).results
    assert bool(results["O1"].anomalies) is not error_first
    assert any(question.reason == UNREADABLE for question in results["O1"].undecided) is error_first
    assert [anomaly.name for anomaly in results["META-01"].anomalies] == ["bytes-that-are-no-frame"]
