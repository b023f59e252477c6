"""Clauses x systems x clients: how a result is laid out, in whatever it is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from harness.gate.result import ClauseText, GateResult
from harness.verdict import Cell, Verdict

DECIDED: tuple[Verdict, ...] = ("pass", "fail", "known", "flaky")
"""Verdicts that say something of the system or client."""


@dataclass(frozen=True, slots=True)
class Column:
    """One system with one client, and its verdicts counted; ``stale`` cells apart from all others."""

    system: str
    client: str
    version: str
    counts: Counter[Verdict]
    stale: int

    @property
    def decided(self) -> int:
        """Clauses that were decided."""
        return sum(self.counts[verdict] for verdict in DECIDED) + self.stale

    @property
    def accepted(self) -> int:
        """Clauses that failed as known, always or at times."""
        return self.counts["known"] + self.counts["flaky"]


@dataclass(frozen=True, slots=True)
class Row:
    """A clause and its cell in each column; None where that pair was not asked."""

    clause: ClauseText
    cells: list[Cell | None]


def columns(result: GateResult) -> list[Column]:
    """One for each pair, in the order of the result."""
    cells: dict[tuple[str, str], list[Cell]] = {(pair.system, pair.client): [] for pair in result.pairs}
    for cell in result.cells:
        cells.setdefault((cell.system, cell.client), []).append(cell)
    return [
        Column(
            system=pair.system,
            client=pair.client,
            version=pair.system_version,
            counts=Counter(cell.verdict for cell in cells[pair.system, pair.client] if not cell.stale),
            stale=sum(1 for cell in cells[pair.system, pair.client] if cell.stale),
        )
        for pair in result.pairs
    ]


def by_system(listed: Iterable[Column]) -> list[tuple[str, list[Column]]]:
    """Neighbouring columns of one system, which share a heading."""
    return [(system, list(group)) for system, group in groupby(listed, key=lambda column: column.system)]


def by_family(clauses: Iterable[ClauseText]) -> list[tuple[str, list[ClauseText]]]:
    """Clauses by family, families in the order in which they first occur."""
    families: dict[str, list[ClauseText]] = {}
    for clause in clauses:
        families.setdefault(clause.family, []).append(clause)
    return list(families.items())


def rows(result: GateResult) -> list[tuple[str, Sequence[Row]]]:
    """Every clause with its cells, family by family."""
    cells = {(cell.clause, cell.system, cell.client): cell for cell in result.cells}
    pairs = [(pair.system, pair.client) for pair in result.pairs]
    return [
        (family, [Row(clause, [cells.get((clause.id, *pair)) for pair in pairs]) for clause in clauses])
        for family, clauses in by_family(result.clauses.values())
    ]
