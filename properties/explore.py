"""Runs a family in a world: directed plans, then what Hypothesis draws; every outcome is handed on, none raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import hypothesis
import msgspec
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from harness.fixture_files import fixture_directory
from harness.worlds.plan import Plan
from harness.worlds.world import Outcome, World, run_plan
from properties.families import FAMILIES
from properties.machine import bind

__all__ = ["Settings", "directed_plans", "explore", "run_plan"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How much to draw. ``seed`` None: the same examples in every run (derived from the machine itself)."""

    examples: int
    steps: int
    seed: int | None = None


def explore(family: str, world: World, settings: Settings, on_outcome: Callable[[Plan, Outcome], None]) -> None:
    """Carry out ``settings.examples`` drawn plans of a family; an error of the harness ends it by its own exception."""
    if settings.examples <= 0:
        return
    machine = bind(FAMILIES[family], world, on_outcome)
    if settings.seed is not None:
        machine = cast(Any, hypothesis.seed(settings.seed)(machine))
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


def directed_plans(family: str, profile: str = "nightly") -> list[tuple[str, Plan]]:
    """The committed plans of a family for a profile, by name: ``fixtures/plans/FAMILY-*.json``.

    Those in ``fixtures/plans/ci`` are for all profiles but ``smoke``: each aims at a defect that clients in wide use
    have, and would turn the quick look at a broker red for nothing new.
    """
    folders = [fixture_directory() / "plans"]
    if profile != "smoke":
        folders.append(folders[0] / "ci")
    files = [path for folder in folders for path in sorted(folder.glob(f"{family}-*.json"))]
    return [(path.stem, load_plan(path.read_bytes())) for path in files]


def load_plan(data: bytes) -> Plan:
    """A plan from its JSON. Raises msgspec.ValidationError naming the place."""
    return msgspec.json.decode(data, type=Plan)
