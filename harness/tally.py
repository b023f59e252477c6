"""Adds up the judgements of many runs in memory bounded by clauses and anomaly names, not by runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from harness.invariants.engine import Judgement


@dataclass(slots=True)
class ClauseTally:
    """What all runs say of one clause. ``runs_with`` counts runs by anomaly name; ``messages`` has one of each."""

    judged: int = 0
    undecided: int = 0
    undecided_reason: str = ""
    runs_with: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)


class Tally:
    """Clause id to ``ClauseTally``; absent when no judgement named the clause."""

    def __init__(self) -> None:
        self.clauses: dict[str, ClauseTally] = {}

    def add(self, judgement: Judgement) -> None:
        """Count one more run."""
        for clause, result in judgement.results.items():
            tally = self.clauses.setdefault(clause, ClauseTally())
            tally.judged += result.judged
            tally.undecided += result.undecided_total
            if result.undecided and not tally.undecided_reason:
                tally.undecided_reason = result.undecided[0].reason
            for name in {anomaly.name for anomaly in result.anomalies}:
                tally.runs_with[name] += 1
            for anomaly in result.anomalies:
                tally.messages.setdefault(anomaly.name, anomaly.message)

    @property
    def judged_clauses(self) -> int:
        """How many clauses were put to the test at least once."""
        return sum(1 for tally in self.clauses.values() if tally.judged)

    @property
    def anomaly_names(self) -> int:
        """How many different (clause, anomaly) pairs were seen."""
        return sum(len(tally.runs_with) for tally in self.clauses.values())
