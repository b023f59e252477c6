"""Hand-made histories by clause: which break it, which put it to test and keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from harness.invariants.core import Invariant
from harness.invariants.engine import judge_history
from tests.history_builder import History, names

Build = Callable[[History], None]


class Cases:
    """The cases of one family of invariants."""

    def __init__(self, invariants: Iterable[Invariant[Any]]) -> None:
        self.invariants = tuple(invariants)
        self.breaking: list[tuple[str, str, Build]] = []
        self.holding: list[tuple[str, Build]] = []

    def breaks(self, clause: str, name: str) -> Callable[[Build], Build]:
        def register(build: Build) -> Build:
            self.breaking.append((clause, name, build))
            return build

        return register

    def holds(self, *clauses: str) -> Callable[[Build], Build]:
        def register(build: Build) -> Build:
            self.holding.extend((clause, build) for clause in clauses)
            return build

        return register

    def deciding(self, clause: str) -> list[Invariant[Any]]:
        return [invariant for invariant in self.invariants if clause in invariant.clauses]

    def check_broken(self, clause: str, name: str, build: Build) -> None:
        """The clause is broken by exactly this anomaly, once, and its witness lies in the history."""
        history = History()
        build(history)
        result = judge_history(history.events, self.deciding(clause)).results[clause]
        assert [anomaly.name for anomaly in result.anomalies] == [name]
        assert result.judged > 0
        witness = result.anomalies[0].witness
        assert witness
        assert all(0 <= index < len(history.events) for index in witness)

    def check_holds(self, clause: str, build: Build) -> None:
        """The clause was put to test, and nothing at all is wrong with the history."""
        history = History()
        build(history)
        results = judge_history(history.events, self.invariants).results
        assert names(results) == set()
        assert results[clause].judged > 0

    @property
    def clauses(self) -> set[str]:
        return {clause for invariant in self.invariants for clause in invariant.clauses}
