"""When a consumer counts as drained: it was silent, and subscribed for the whole of that silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.history.recorder import Recorder
from harness.worlds.attachments import Attachments
from harness.worlds.driver import Answer, Driver, Script
from harness.worlds.plan import Operation

NAME = "run-c0.1"
EMPTY = Answer({"message": None})


def answer_all(script: Script, answer: Answer, meanwhile: Callable[[], None] = lambda: None) -> int:
    """Answer every request alike; how many there were. ``meanwhile`` happens while the first is open."""
    try:
        script.send(None)  # type: ignore[arg-type]  # the first send of a generator takes None
        meanwhile()
        asked = 1
        while True:
            script.send(answer)
            asked += 1
    except StopIteration:
        return asked


@pytest.mark.parametrize(
    ("meanwhile", "silences"),
    [("nothing", 1), ("comes back", 2), ("is lost and comes back", 2)],
)
def test_silence_counts_from_the_subscription_on(meanwhile: str, silences: int):
    attachments = Attachments()
    recorder = Recorder("run", clock=lambda: 0, observers=[attachments.observe])
    driver = Driver(recorder, "run", {"a": "pulsar://127.0.0.1:1"}, attachments)
    answer_all(driver.script(Operation(verb="consumer", handle="c0", params={"type": "failover"})), Answer({}))

    def subscribes(connection: str) -> None:
        extra = {"request": "SUBSCRIBE"}
        recorder.record(layer="tap.client", kind="SUCCESS", connection=connection, consumer=NAME, extra=extra)

    def happens() -> None:
        if meanwhile == "is lost and comes back":
            recorder.record(layer="tap.client", kind="CONNECTION_CLOSED", connection="client-1")
        if meanwhile != "nothing":
            subscribes("client-2")

    if meanwhile != "comes back":
        subscribes("client-1")
    assert answer_all(driver.drain("c0", 1_500, 6_000), EMPTY, happens) == silences
    assert driver.drained
