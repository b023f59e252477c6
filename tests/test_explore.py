"""Exploration hands an error on as it is, at once, without carrying the example out again."""

from __future__ import annotations

import pytest

from harness.worlds.broken import WorldStopped
from harness.worlds.plan import Fault, Operation, Plan
from harness.worlds.simulated import SimulatedWorld
from harness.worlds.world import Outcome, Session, World
from properties.explore import Settings, explore

SETTINGS = Settings(examples=5, steps=6, seed=1)


class StoppingSession:
    """Does as the real one until its third step."""

    def __init__(self, session: Session, steps: list[Operation | Fault]) -> None:
        self._session = session
        self._steps = steps

    def perform(self, step: Operation | Fault) -> None:
        self._steps.append(step)
        if len(self._steps) == 3:
            raise WorldStopped("stopped")
        self._session.perform(step)

    def finish(self) -> Outcome:
        return self._session.finish()


class StoppingWorld(SimulatedWorld):
    def __init__(self) -> None:
        super().__init__(keep_history=False)
        self.steps: list[Operation | Fault] = []

    def open(  # type: ignore[override]  # stands in for the session it wraps
        self, plan: Plan | None = None, *, alone: bool = False
    ) -> Session:
        return StoppingSession(super().open(plan, alone=alone), self.steps)


def test_an_error_of_the_world_ends_it_at_once() -> None:
    world = StoppingWorld()
    with pytest.raises(WorldStopped, match="stopped"):
        explore("dedup", world, SETTINGS, lambda plan, outcome: None)
    assert len(world.steps) == 3


def test_an_error_of_who_listens_ends_it_at_once() -> None:
    outcomes: list[Outcome] = []

    def listen(plan: Plan, outcome: Outcome) -> None:
        outcomes.append(outcome)
        raise KeyError("enough")

    world: World = SimulatedWorld(keep_history=False)
    with pytest.raises(KeyError, match="enough"):
        explore("receipts", world, SETTINGS, listen)
    assert len(outcomes) == 1
