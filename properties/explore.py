"""Runs a family in a world: directed plans, then what Hypothesis draws; every outcome is handed on, none raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import hypothesis
import msgspec
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from harness.fixture_files import fixture_directory
from harness.worlds.plan import Fault, Operation, Plan
from harness.worlds.world import Outcome, Session, World, run_plan
from properties.families import FAMILIES
from properties.machine import bind

T = TypeVar("T")

__all__ = ["Settings", "directed_plans", "explore", "run_plan"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How much to draw. ``seed`` None: the same examples in every run (derived from the machine itself)."""

    examples: int
    steps: int
    seed: int | None = None


class _Halt(BaseException):
    """Carries an error out of Hypothesis. Any ``Exception`` it would meet once more to see whether it is repeatable:
    the example would be carried out again, against parts that are gone, and end as *flaky*."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _HaltingSession:
    """A session whose first error ends the exploration."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._error: Exception | None = None

    def perform(self, step: Operation | Fault) -> None:
        self._or_halt(lambda: self._session.perform(step))

    def finish(self) -> Outcome:
        return self._or_halt(self._session.finish)

    def _or_halt(self, work: Callable[[], T]) -> T:
        if self._error is None:
            try:
                return work()
            except Exception as error:
                self._error = error
        raise _Halt(self._error)


class _HaltingWorld:
    """The parts of a world that the machines use."""

    def __init__(self, world: World) -> None:
        self.system, self.client, self.lanes = world.system, world.client, world.lanes
        self._world = world

    def open(self, plan: Plan | None = None, *, alone: bool = False) -> Session:
        try:
            return _HaltingSession(self._world.open(plan, alone=alone))
        except Exception as error:
            raise _Halt(error) from error


def explore(family: str, world: World, settings: Settings, on_outcome: Callable[[Plan, Outcome], None]) -> None:
    """Carry out ``settings.examples`` drawn plans of a family; an error of the harness ends it by its own exception."""
    if settings.examples <= 0:
        return

    def conclude(plan: Plan, outcome: Outcome) -> None:
        try:
            on_outcome(plan, outcome)
        except Exception as error:
            raise _Halt(error) from error

    machine = bind(FAMILIES[family], cast(World, _HaltingWorld(world)), conclude)
    if settings.seed is not None:
        machine = cast(Any, hypothesis.seed(settings.seed)(machine))
    try:
        run_state_machine_as_test(
            machine,
            settings=hypothesis.settings(
                max_examples=settings.examples,
                stateful_step_count=settings.steps,
                deadline=None,
                database=None,
                derandomize=settings.seed is None,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
                print_blob=False,
            ),
        )
    except _Halt as halt:
        raise halt.error from halt.error.__cause__


FURTHER_PLANS = {"ci": ("smoke",), "nightly": ("smoke", "ci")}
"""Folders of further plans, and the profiles that do without them."""


def directed_plans(family: str, profile: str = "ci") -> list[tuple[str, Plan]]:
    """The committed plans of a family for a profile, by name: ``fixtures/plans/FAMILY-*.json``.

    Those in ``fixtures/plans/ci`` are for all profiles but ``smoke``: each aims at a defect that clients in wide use
    have, and would turn the quick look at a broker red for nothing new, or takes the broker down. Those in
    ``fixtures/plans/nightly`` take minutes.
    """
    folders = [fixture_directory() / "plans"]
    for further, without in FURTHER_PLANS.items():
        if profile not in without:
            folders.append(folders[0] / further)
    files = [path for folder in folders for path in sorted(folder.glob(f"{family}-*.json"))]
    return [(path.stem, load_plan(path.read_bytes())) for path in files]


def load_plan(data: bytes) -> Plan:
    """A plan from its JSON. Raises msgspec.ValidationError naming the place."""
    return msgspec.json.decode(data, type=Plan)
