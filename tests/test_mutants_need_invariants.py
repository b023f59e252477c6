"""No invariant is there for nothing: without it, and with all the others, some mutant survives.

A mutant survives without an invariant when that one alone objects in the clauses the mutant breaks. What a mutant is
expected to break is written down with it, so an alarm that happens to ring too does not save an invariant.
"""

import pytest
from mutant_kills import objections, plans

from harness.clauses.catalogue import load
from harness.invariants.registry import all_invariants
from harness.reference.mutants.registry import MUTANTS
from harness.reference.mutants.run import hunt
from properties.families import FAMILIES

INVARIANTS = {invariant.name: invariant for invariant in all_invariants()}


def survivors_without(invariant: str) -> list[str]:
    """Mutants that no other invariant kills."""
    return [name for name in MUTANTS if set(objections(name)) == {invariant}]


@pytest.mark.parametrize("name", sorted(INVARIANTS))
def test_without_an_invariant_a_mutant_survives(name: str) -> None:
    assert survivors_without(name)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_has_invariants_and_mutants_of_its_own(family: str) -> None:
    own = [name for name, invariant in INVARIANTS.items() if invariant.family == family]
    assert own
    for name in own:
        assert any(MUTANTS[mutant].family == family for mutant in survivors_without(name))


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_is_killed_by_its_own_plan(name: str) -> None:
    assert objections(name)


def test_expected_clauses_are_of_the_catalogue() -> None:
    catalogue = load()
    for mutant in MUTANTS.values():
        assert mutant.expected
        assert all(clause in catalogue for clause in mutant.expected), mutant.name


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("dedup", "broker-stores-twice"),
        ("receipts", "broker-answers-twice"),
        ("chunks", "broker-spreads-pieces"),
        ("acks", "broker-acks-one-too-few"),
        ("dead_letter", "client-gives-up-too-late"),
    ],
)
def test_a_hunt_without_its_invariant_lets_the_mutant_live(monkeypatch, family: str, name: str) -> None:
    """The same by breaking the invariant itself: it returns early, all the others stay."""
    (guardian,) = objections(name)
    broken = type(INVARIANTS[guardian])
    monkeypatch.setattr(broken, "step", lambda *_: ())
    monkeypatch.setattr(broken, "finish", lambda *_: ())
    monkeypatch.setattr("harness.reference.mutants.run.EXAMPLES", 0)
    monkeypatch.setattr("harness.reference.mutants.run.directed_plans", lambda _: list(plans(family).items())[:12])
    row = hunt(MUTANTS[name])
    assert not row.killed
    assert row.examples == 12
