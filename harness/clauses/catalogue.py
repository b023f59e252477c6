"""The clause catalogue: the checkable rules as data, one TOML file a family, next to this module.

A file is a list of ``[[clause]]`` tables::

    [[clause]]
    id = "DEDUP-01"                  # stable; unique over all files
    family = "dedup"                 # a gate family, or "delivery"
    title = "Known duplicates are dropped and said so"
    rule = "One sentence that says what must hold."
    binds = "broker"                 # client | broker | both
    source = "CommandSendReceipt.message_id"   # protocol field, PIP or issue
    needs_system = ["dedup"]         # capabilities without which the clause is n/a
    needs_client = []
    decided_by = ["dedup-answers"]   # names of invariants
    known_gap = ""                   # what is known not to hold, and where; optional
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Literal

import msgspec

Family = Literal["dedup", "receipts", "chunks", "acks", "dead_letter", "delivery"]


class CatalogueError(Exception):
    """A data file of the catalogue is malformed, or two clauses share an id."""


class Clause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One checkable rule: what must hold, whom it binds, where it comes from, what a run needs to provoke it."""

    id: str
    family: Family
    title: str
    rule: str
    binds: Literal["client", "broker", "both"]
    source: str
    needs_system: tuple[str, ...] = ()
    needs_client: tuple[str, ...] = ()
    decided_by: tuple[str, ...]
    known_gap: str = ""


class Catalogue(msgspec.Struct, frozen=True):
    """Clauses by id."""

    clauses: dict[str, Clause]

    def __iter__(self) -> Iterator[Clause]:
        return iter(self.clauses.values())

    def __getitem__(self, clause_id: str) -> Clause:
        return self.clauses[clause_id]

    def __contains__(self, clause_id: str) -> bool:
        return clause_id in self.clauses

    def __len__(self) -> int:
        return len(self.clauses)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    clause: list[Clause]


def load(directory: Traversable | None = None) -> Catalogue:
    """All clauses of the ``*.toml`` files in ``directory`` (default: those shipped). Raises CatalogueError."""
    folder = directory if directory is not None else resources.files(__package__)
    clauses: dict[str, Clause] = {}
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".toml")]
    for entry in sorted(files, key=lambda found: found.name):
        try:
            parsed = msgspec.toml.decode(entry.read_bytes(), type=_File)
        except msgspec.DecodeError as error:
            raise CatalogueError(f"{entry.name}: {error}") from error
        for clause in parsed.clause:
            if clause.id in clauses:
                raise CatalogueError(f"{entry.name}: clause id {clause.id} is used twice")
            clauses[clause.id] = clause
    return Catalogue(clauses)
