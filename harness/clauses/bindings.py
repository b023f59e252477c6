"""What the requirement sets say of clauses, in lines for a person: one clause over all versions, or one version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.clauses.catalogue import Clause
from harness.clauses.requirements import Defect, RequirementSet

Standing = Literal["binds", "client", "not", "setting", "broken"]

WORDS: dict[Standing, str] = {
    "binds": "binds",
    "client": "binds clients",
    "not": "not promised",
    "setting": "needs a setting",
    "broken": "known broken",
}


@dataclass(frozen=True, slots=True)
class Row:
    """How a clause stands in one version, and why where that is not plain."""

    clause: Clause
    standing: Standing
    why: str = ""


def over_versions(clause: Clause, sets: Sequence[RequirementSet]) -> list[tuple[str, str]]:
    """Titles and texts of one clause: which lines it binds, and what each other one says, equal ones together."""
    exemptions = [(found, found.exemption(clause.id)) for found in sets]
    bound = [found.line for found, exemption in exemptions if exemption is None]
    if clause.binds == "client" and len(bound) == len(sets):
        first = "every client, whatever broker it talks to"
    else:
        first = f"Pulsar {_run_together(bound, sets)}" if bound else ""
    titled = [
        ("Pulsar {}" if exemption.setting else "not Pulsar {}", found.line, found.terms(exemption))
        for found, exemption in exemptions
        if exemption is not None
    ]
    titled += [
        ("broken in {}", found.line, _told(entry))
        for found in sets
        for entry in found.defects
        if clause.id in entry.clauses
    ]
    titled += [("note on {}", found.line, f"{e.why} ({e.source})") for found in sets for e in found.notes_of(clause.id)]
    lines: dict[tuple[str, str], list[str]] = {}
    for title, line, text in titled:
        lines.setdefault((title, text), []).append(line)
    return [
        ("binds", first),
        *((title.format(_run_together(names, sets)), text) for (title, text), names in lines.items()),
    ]


def _run_together(names: Sequence[str], sets: Sequence[RequirementSet]) -> str:
    """``2.8 to 3.3, 4.2``: lines that follow each other, without those between the first and the last."""
    order = [found.line for found in sets]
    runs: list[list[str]] = []
    for name in names:
        if runs and order.index(name) == order.index(runs[-1][-1]) + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def of_version(clauses: Iterable[Clause], found: RequirementSet, version: str) -> list[Row]:
    """How every clause stands in one version, with every setting at its default."""
    return [_row(clause, found, version) for clause in clauses]


def _row(clause: Clause, found: RequirementSet, version: str) -> Row:
    exemption = found.exemption(clause.id)
    if exemption is not None and not found.binding(clause.id, version, {})[0]:
        return Row(clause, "setting" if exemption.setting else "not", found.terms(exemption))
    defects = found.defects_of(clause.id, version)
    if defects:
        return Row(clause, "broken", "; ".join(_told(entry) for entry in defects))
    notes = "; ".join(f"{note.why} ({note.source})" for note in found.notes_of(clause.id))
    return Row(clause, "client" if clause.id in found.client else "binds", notes)


def _told(entry: Defect) -> str:
    mended = f"fixed in {entry.fixed}" if entry.fixed else "no fixed version known"
    return f"{entry.why} ({entry.source}; {mended})"
