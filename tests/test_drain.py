"""When a consumer counts as drained: it was silent, and subscribed for the whole of that silence."""

from __future__ import annotations

import pytest

from harness.history.recorder import Recorder
from harness.worlds.attachments import Attachments
from harness.worlds.driver import Answer, Ask, Driver
from harness.worlds.plan import Operation

NAME = "run-c0.1"


def consumer_of(recorder: Recorder, attachments: Attachments) -> Driver:
    driver = Driver(recorder, "run", {"a": "pulsar://127.0.0.1:1"}, attachments)
    script = driver.script(Operation(verb="consumer", handle="c0", params={"type": "failover"}))
    with pytest.raises(StopIteration):
        script.send(None)  # type: ignore[arg-type]  # the first send of a generator takes None
        while True:
            script.send(Answer({}))
    return driver


def subscribe(recorder: Recorder, connection: str) -> None:
    recorder.record(
        layer="tap.client", kind="SUCCESS", connection=connection, consumer=NAME, extra={"request": "SUBSCRIBE"}
    )


@pytest.mark.parametrize(
    ("meanwhile", "silences"),
    [("nothing", 1), ("comes back", 2), ("is lost and comes back", 2)],
)
def test_silence_counts_from_the_subscription_on(meanwhile: str, silences: int):
    attachments = Attachments()
    recorder = Recorder("run", clock=lambda: 0, observers=[attachments.observe])
    driver = consumer_of(recorder, attachments)
    if meanwhile != "comes back":
        subscribe(recorder, "client-1")
    script = driver.drain("c0", 1_500, 6_000)
    need = script.send(None)  # type: ignore[arg-type]
    if meanwhile == "is lost and comes back":
        recorder.record(layer="tap.client", kind="CONNECTION_CLOSED", connection="client-1")
    if meanwhile != "nothing":
        subscribe(recorder, "client-2")
    waits = 0
    with pytest.raises(StopIteration):
        while True:
            assert isinstance(need, Ask)
            waits += 1
            need = script.send(Answer({"message": None}))
    assert waits == silences
    assert driver.drained
