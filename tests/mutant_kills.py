"""What each mutant's own plan shows: one simulated run a mutant, judged by every invariant apart."""

from __future__ import annotations

from functools import cache

from harness.invariants.engine import judge_history
from harness.invariants.registry import all_invariants
from harness.reference.mutants.registry import MUTANTS, world_of_mutant
from harness.worlds.plan import Plan
from harness.worlds.world import run_plan
from properties.explore import directed_plans

Objections = dict[str, frozenset[str]]
"""Name of an invariant to the expected clauses of the mutant in which it objected."""


@cache
def plans(family: str) -> dict[str, Plan]:
    """The directed plans of a family by name."""
    return dict(directed_plans(family))


@cache
def objections(name: str) -> Objections:
    """Carries out ``shown_by`` of a mutant. A run in which the machines broke objects to nothing."""
    mutant = MUTANTS[name]
    world = world_of_mutant(name)
    world.invariants = ()
    outcome = run_plan(world, plans(mutant.family)[mutant.shown_by])
    if outcome.error is not None:
        return {}
    found: Objections = {}
    for invariant in all_invariants():
        if not set(invariant.clauses).intersection(mutant.expected):
            continue
        judgement = judge_history(outcome.history, [invariant])
        clauses = frozenset(anomaly.clause for anomaly in judgement.anomalies).intersection(mutant.expected)
        if clauses:
            found[invariant.name] = clauses
    return found
