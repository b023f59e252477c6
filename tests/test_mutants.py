"""The mutant hunt and its command: what counts as a kill, what is told, and the exit codes."""

import json
from collections import Counter

import pytest
from typer.testing import CliRunner, Result

from harness.cli import app
from harness.history.event import Event
from harness.invariants.core import Anomaly, FoldState, Invariant
from harness.reference.broker.topic import Topic
from harness.reference.client.sequence_ids import SequenceIds
from harness.reference.mutants import run
from harness.reference.mutants.mutant import Mutant
from harness.reference.mutants.registry import MUTANTS
from harness.worlds.simulated import SimulatedWorld
from properties.explore import directed_plans
from properties.families import FAMILIES


class Harmless(SequenceIds):
    """Breaks nothing."""


class Crashes(Topic):
    def publish(self, *_):
        raise ValueError("out of order")


class EveryRunIsWrong(Invariant[FoldState]):
    """A false alarm: objects to the end of any run."""

    name, family, clauses = "false-alarm", "acks", ("C5",)

    def key(self, event: Event):
        return ("all",) if event.kind == "quiescent" else None

    def start(self, key):
        return FoldState(key)

    def step(self, state, event):
        yield Anomaly(name="alarm", clause="C5", key=state.key, message="always", witness=(event.index,))

    def finish(self, state):
        return ()


def mutant(name: str, expected: tuple[str, ...] = ("D1.1",), **changes) -> Mutant:
    known = {"family": "dedup", "side": "client", "breaks": "nothing", "shown_by": "dedup-again", "parts": {}}
    return Mutant(name=name, expected=expected, **{**known, **changes})


@pytest.fixture
def few(monkeypatch):
    """Hunts of a few plans, so that a survivor costs no time."""
    monkeypatch.setattr(run, "EXAMPLES", 1)
    monkeypatch.setattr(run, "UNBROKEN_EXAMPLES", 1)
    monkeypatch.setattr(run, "directed_plans", lambda family: directed_plans(family)[:2])


@pytest.fixture
def add(monkeypatch):
    return lambda made: monkeypatch.setitem(MUTANTS, made.name, made)


def mutants(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["mutants", *arguments])


def rows(result: Result) -> dict[str, dict]:
    return {row["name"]: row for row in map(json.loads, result.stdout.splitlines())}


def test_there_are_mutants_of_every_family_and_both_sides():
    assert len(MUTANTS) >= 30
    kinds = Counter((one.family, one.side) for one in MUTANTS.values())
    assert {family for family, _ in kinds} == set(FAMILIES)
    assert min(kinds[family, side] for family in FAMILIES for side in ("broker", "client")) >= 2


def test_killed_mutants_are_told_with_clause_examples_and_time(few):
    result = mutants("--only", "broker-stores-duplicates", "--only", "broker-answers-twice", "--json")
    assert result.exit_code == 0, result.output
    told = rows(result)
    assert told.pop("(unbroken)")["type"] == "unbroken"
    assert told.keys() == {"broker-stores-duplicates", "broker-answers-twice"}
    for row in told.values():
        assert row["killed"] is True
        assert row["caught_by"] == row["expected"]
        assert row["examples"] >= 1
        assert row["seconds"] > 0
    text = mutants("--only", "broker-answers-twice")
    assert text.exit_code == 0
    line = next(line for line in text.stdout.splitlines() if "broker-answers-twice" in line)
    assert line.split()[:4] == ["killed", "broker-answers-twice", "receipts", "1"]
    assert "O1" in line
    assert "1 of 1 mutants killed" in text.stdout


def test_a_survivor_is_told_and_makes_the_command_fail(few, add):
    add(mutant("does-nothing", parts={"sequence_ids": Harmless}))
    result = mutants("--only", "does-nothing", "--only", "broker-answers-twice")
    assert result.exit_code == 1
    assert "SURVIVED" in result.stdout
    assert "1 of 2 mutants killed" in result.stdout


def test_an_unrelated_alarm_is_no_kill(few, add):
    broken = MUTANTS["broker-stores-duplicates"]
    add(mutant("expects-another", expected=("Q7",), side="broker", parts=broken.parts))
    result = mutants("--only", "expects-another", "--json")
    assert result.exit_code == 1
    row = rows(result)["expects-another"]
    assert row["killed"] is False
    assert row["caught_by"] == []
    assert "DEDUP-01" in row["unexpected"]
    assert "not by Q7" in mutants("--only", "expects-another").stdout


def test_a_crash_is_no_kill(few, add):
    add(mutant("crashes", side="broker", parts={"topic": Crashes}))
    result = mutants("--only", "crashes", "--json")
    assert result.exit_code == 1
    row = rows(result)["crashes"]
    assert row["killed"] is False
    assert "ValueError: out of order" in row["error"]
    assert "the machines broke" in result.stderr


def test_an_alarm_on_the_unbroken_pair_makes_the_command_fail(few, monkeypatch):
    def world(**options):
        return SimulatedWorld(**options, invariants=(EveryRunIsWrong(),))

    monkeypatch.setattr(run, "SimulatedWorld", world)
    result = mutants("--only", "broker-answers-twice")
    assert result.exit_code == 1
    assert "FALSE ALARM" in result.stdout
    assert "1 of 1 mutants killed" in result.stdout


def test_an_unbroken_pair_that_breaks_by_itself_is_the_failure_of_the_harness(few, monkeypatch):
    from dataclasses import replace

    from harness.reference.broker.parts import BrokerParts

    monkeypatch.setattr(
        run, "SimulatedWorld", lambda **_: SimulatedWorld(broker_parts=replace(BrokerParts(), topic=Crashes))
    )
    assert mutants("--only", "broker-answers-twice").exit_code == 3


@pytest.mark.parametrize("arguments", [("--only", "broker-stores-duplicate"), ("--family", "dedupe")])
def test_unknown_names_are_refused(arguments):
    result = mutants(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_the_plan_a_mutant_is_shown_by_is_of_its_family():
    for one in MUTANTS.values():
        assert one.shown_by.startswith(f"{one.family}-")
