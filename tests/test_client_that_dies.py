"""A client whose process ends in the middle of a run: who is told so, and what goes on."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.clients.adapter_process import AdapterProcess
from harness.systems.resolve import resolve
from harness.worlds.broken import WorldBroken
from harness.worlds.plan import Operation, Plan
from harness.worlds.real import CLIENT_ENDS, RealWorld
from harness.worlds.world import run_plan

TOY = Path(__file__).with_name("toy_adapter.py")
PRODUCER = Operation(verb="producer", handle="p0")
DEADLY = Plan(operations=[PRODUCER, Operation(verb="send", handle="p0", params={"tag": "a"})])
HARMLESS = Plan(operations=[PRODUCER])


@contextmanager
def world_of(way: str) -> Iterator[RealWorld]:
    client = AdapterProcess([sys.executable, str(TOY), way], name="toy", grace=1.0)
    world = RealWorld(resolve("reference"), client)
    world.lanes = 2
    world.start()
    try:
        yield world
    finally:
        world.stop()


@pytest.mark.parametrize(
    ("way", "how"), [("segfaults", "ended by signal 11 (SIGSEGV)"), ("dies", "ended (exit status 3)")]
)
def test_the_plan_is_an_error_and_a_fresh_process_carries_out_the_next(way: str, how: str) -> None:
    with world_of(way) as world:
        killed = run_plan(world, DEADLY)
        assert killed.error is not None
        assert how in killed.error
        assert killed.client_ended
        if way == "segfaults":
            assert "the core lost a pointer" in killed.error
        following = run_plan(world, HARMLESS)
        assert (following.error, following.client_ended) == (None, False)


def test_a_plan_that_rested_meanwhile_is_an_error_too_and_tells_the_same() -> None:
    with world_of("segfaults") as world:
        bystander = world.open(HARMLESS)
        bystander.perform(PRODUCER)
        killed = run_plan(world, DEADLY)
        assert run_plan(world, HARMLESS).error is None
        # Its handles died with the process; the fresh one knows none of them.
        bystander.perform(Operation(verb="flush", handle="p0"))
        outcome = bystander.finish()
        assert (outcome.error, outcome.client_ended) == (killed.error, True)


def test_a_client_that_goes_on_ending_is_given_up() -> None:
    with world_of("segfaults") as world:
        for _ in range(CLIENT_ENDS):
            assert run_plan(world, DEADLY).client_ended
        with pytest.raises(WorldBroken, match=f"ended {CLIENT_ENDS} times"):
            world.open(HARMLESS)
        with pytest.raises(WorldBroken):
            world.open(HARMLESS)


def test_many_that_ask_for_a_session_at_once_start_one_process() -> None:
    with world_of("dies") as world:
        run_plan(world, DEADLY)
        errors: list[str | None] = []
        threads = [threading.Thread(target=lambda: errors.append(run_plan(world, HARMLESS).error)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == [None] * 4
        assert run_plan(world, DEADLY).client_ended  # the second end of three: one more process comes
        assert run_plan(world, HARMLESS).error is None


def test_a_client_that_writes_garbage_is_given_up_at_once() -> None:
    with world_of("garbage") as world:
        outcome = run_plan(world, DEADLY)
        assert outcome.error is not None
        assert not outcome.client_ended
        with pytest.raises(WorldBroken, match="no answer"):
            world.open(HARMLESS)
