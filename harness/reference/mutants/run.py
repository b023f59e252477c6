"""Hunts every mutant with the properties of its family, and the unbroken pair with those of all families."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from harness.reference.mutants.mutant import Mutant
from harness.reference.mutants.registry import MUTANTS, world_of_mutant
from harness.worlds.plan import Plan
from harness.worlds.simulated import SimulatedWorld
from harness.worlds.world import Outcome, run_plan
from properties.explore import Settings, directed_plans, explore
from properties.families import FAMILIES

EXAMPLES = 60
STEPS = 14
UNBROKEN_EXAMPLES = 25


class MutantRow(msgspec.Struct, frozen=True, kw_only=True):
    """How one mutant fared. ``examples`` and ``seconds`` count until detection, or in all when it survived.

    ``error``: the machines broke or went in circles in some plan, and no invariant objected in any.
    """

    name: str
    family: str
    breaks: str
    killed: bool
    caught_by: tuple[str, ...]
    examples: int
    seconds: float
    plan: dict[str, Any] | None = None
    error: str | None = None


class _Caught(Exception):
    """Ends a hunt: the clauses that caught the mutant, and the plan."""

    def __init__(self, clauses: tuple[str, ...], plan: Plan) -> None:
        super().__init__(clauses)
        self.clauses = clauses
        self.plan = plan


def hunt(mutant: Mutant) -> MutantRow:
    """Directed plans of the family, then drawn ones, until an invariant of any family objects."""
    world = world_of_mutant(mutant.name, keep_history=False)
    return _hunt(mutant.name, mutant.family, mutant.breaks, world, [mutant.family], EXAMPLES)


def unbroken() -> MutantRow:
    """The unbroken pair through every family: it must come out with ``killed`` False and no error."""
    world = SimulatedWorld(keep_history=False)
    return _hunt("(unbroken)", "all", "nothing", world, list(FAMILIES), UNBROKEN_EXAMPLES)


def run_mutants(
    report: Callable[[MutantRow], None], *, family: str | None = None, only: Iterable[str] = ()
) -> list[MutantRow]:
    """Hunt the mutants asked for (all by default), the unbroken pair first; each row is reported as it comes."""
    rows: list[MutantRow] = []
    for row in _rows(family, tuple(only)):
        report(row)
        rows.append(row)
    return rows


def _rows(family: str | None, only: tuple[str, ...]) -> Iterator[MutantRow]:
    yield unbroken()
    for mutant in MUTANTS.values():
        if (family is None or mutant.family == family) and (not only or mutant.name in only):
            yield hunt(mutant)


def _hunt(name: str, family: str, breaks: str, world: SimulatedWorld, families: list[str], examples: int) -> MutantRow:
    tried = 0
    broke: tuple[Plan, str] | None = None
    began = time.perf_counter()

    def conclude(plan: Plan, outcome: Outcome) -> None:
        nonlocal tried, broke
        tried += 1
        clauses = tuple(sorted({anomaly.clause for anomaly in outcome.judgement.anomalies}))
        if clauses:
            raise _Caught(clauses, plan)
        if outcome.error and broke is None:
            broke = (plan, outcome.error)

    caught: _Caught | None = None
    try:
        for each in families:
            for _, plan in directed_plans(each):
                conclude(plan, run_plan(world, plan))
            explore(each, world, Settings(examples=examples, steps=STEPS), conclude)
    except _Caught as found:
        caught = found
    return MutantRow(
        name=name,
        family=family,
        breaks=breaks,
        killed=bool(caught and caught.clauses),
        caught_by=caught.clauses if caught else (),
        examples=tried,
        seconds=time.perf_counter() - began,
        plan=msgspec.to_builtins(caught.plan if caught else broke[0]) if caught or broke else None,
        error=broke[1] if broke and not caught else None,
    )
