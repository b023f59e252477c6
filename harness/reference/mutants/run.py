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
UNBROKEN = "(unbroken)"
DRAWN = "(drawn)"


class MutantRow(msgspec.Struct, frozen=True, kw_only=True):
    """How one mutant fared. ``examples`` and ``seconds`` count until detection, or in all when it survived.

    ``caught_by``: the expected clauses that objected. ``unexpected``: clauses that objected beside them in the plan
    that killed, or in any plan when the mutant survived; they kill nothing. ``error``: the machines broke or went in
    circles in some plan before detection; what such a run shows does not count. ``shown_by``: the name of the plan.
    """

    name: str
    family: str
    breaks: str
    expected: tuple[str, ...]
    killed: bool
    caught_by: tuple[str, ...]
    unexpected: tuple[str, ...]
    examples: int
    seconds: float
    shown_by: str | None = None
    plan: dict[str, Any] | None = None
    error: str | None = None

    @property
    def fares_well(self) -> bool:
        """A mutant is to be killed; the unbroken pair is to raise nothing."""
        return self.killed if self.name != UNBROKEN else not (self.unexpected or self.error)


def hunt(mutant: Mutant) -> MutantRow:
    """Directed plans of the family, then drawn ones, until one of the mutant's expected clauses objects."""
    world = world_of_mutant(mutant.name, keep_history=False)
    return _Hunt(mutant.name, mutant.family, mutant.breaks, mutant.expected).run(world, [mutant.family], EXAMPLES)


def unbroken() -> MutantRow:
    """The unbroken pair through every family: whatever objects to it is a false alarm, listed as unexpected."""
    world = SimulatedWorld(keep_history=False)
    return _Hunt(UNBROKEN, "all", "nothing", ()).run(world, list(FAMILIES), UNBROKEN_EXAMPLES)


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


class _Caught(Exception):
    """Ends a hunt."""


class _Hunt:
    """One mutant and what its plans have shown so far."""

    def __init__(self, name: str, family: str, breaks: str, expected: tuple[str, ...]) -> None:
        self.name = name
        self.family = family
        self.breaks = breaks
        self.expected = expected
        self.tried = 0
        self.caught_by: tuple[str, ...] = ()
        self.unexpected: set[str] = set()
        self.shown_by: str | None = None
        self.plan: Plan | None = None
        self.error: str | None = None

    def run(self, world: SimulatedWorld, families: list[str], examples: int) -> MutantRow:
        began = time.perf_counter()
        try:
            for family in families:
                for name, plan in directed_plans(family):
                    self._conclude(name, plan, run_plan(world, plan))
                explore(
                    family,
                    world,
                    Settings(examples=examples, steps=STEPS),
                    lambda plan, outcome: self._conclude(DRAWN, plan, outcome),
                )
        except _Caught:
            pass
        return MutantRow(
            name=self.name,
            family=self.family,
            breaks=self.breaks,
            expected=self.expected,
            killed=bool(self.caught_by),
            caught_by=self.caught_by,
            unexpected=tuple(sorted(self.unexpected)),
            examples=self.tried,
            seconds=time.perf_counter() - began,
            shown_by=self.shown_by,
            plan=None if self.plan is None else msgspec.to_builtins(self.plan),
            error=self.error,
        )

    def _conclude(self, name: str, plan: Plan, outcome: Outcome) -> None:
        self.tried += 1
        if outcome.error is not None:
            # A run in which the machines themselves broke proves nothing, whatever was judged before that.
            self.error = self.error or f"{name}: {outcome.error}"
            self.plan = self.plan or plan
            return
        objected = {anomaly.clause for anomaly in outcome.judgement.anomalies}
        caught = tuple(sorted(objected.intersection(self.expected)))
        if caught:
            self.caught_by, self.unexpected = caught, objected.difference(self.expected)
            self.shown_by, self.plan = name, plan
            raise _Caught
        if objected:
            self.unexpected |= objected
            self.plan = self.plan or plan
