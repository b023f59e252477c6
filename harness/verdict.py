"""From what was judged to a verdict: the policy, kept apart from detection.

A *cell* is one clause against one system through one client. Its verdict follows from the merged judgement of every
history of that pair, from what the system's version and the capabilities of both sides oblige it to, and from the list
of known failures. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from harness.clauses.catalogue import Clause
from harness.known_failing import KnownFailure
from harness.tally import ClauseTally

Verdict = Literal["pass", "fail", "known", "flaky", "unknown", "n/a", "error"]

VERDICTS: tuple[Verdict, ...] = ("fail", "error", "known", "flaky", "pass", "unknown", "n/a")
"""Worst first, the order in which people want to read them."""

EXIT_GREEN, EXIT_VIOLATION, EXIT_USAGE, EXIT_HARNESS, EXIT_UNDECIDED, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130


class Breach(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One anomaly name of a cell: in how many runs it was seen, and what the list of known failures says of it."""

    anomaly: str
    runs: int
    message: str
    accepted: Literal["", "known", "flaky"] = ""
    reason: str = ""
    rate: str = ""
    seed: str | None = None


class Cell(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The verdict of one clause x system x client. ``reason`` says why when the verdict does not speak for itself.

    ``stale`` names the places of known entries that should have failed here and did not; it makes the run red.
    """

    clause: str
    family: str
    title: str
    system: str
    client: str
    verdict: Verdict
    reason: str = ""
    judged: int = 0
    undecided: int = 0
    breaches: list[Breach] = []
    stale: list[str] = []

    @property
    def red(self) -> bool:
        """Whether this cell alone turns a run red."""
        return self.verdict == "fail" or bool(self.stale)


def decide(
    clause: Clause,
    tally: ClauseTally | None,
    *,
    system: str,
    client: str,
    system_capabilities: Collection[str],
    client_capabilities: Collection[str],
    known: Sequence[KnownFailure],
    exempt: str = "",
    harness_error: str | None = None,
) -> Cell:
    """The cell of one clause.

    ``exempt``: why the clause does not bind this version of the system, if it does not. ``harness_error`` is the first
    error of the harness in this clause's family, if any.
    """
    cell = Cell(
        clause=clause.id, family=clause.family, title=clause.title, system=system, client=client, verdict="unknown"
    )
    free = exempt or missing_capabilities(clause, system_capabilities, client_capabilities)
    if free:
        cell.verdict, cell.reason = "n/a", free
        return cell
    if tally is not None:
        cell.judged, cell.undecided = tally.judged, tally.undecided
        cell.breaches = _breaches(tally, [entry for entry in known if entry.covers(system, client, clause.id)])
    if cell.breaches:
        cell.verdict = _worst(cell.breaches)
    elif harness_error is not None:
        cell.verdict, cell.reason = "error", harness_error
    elif cell.judged:
        cell.verdict = "pass"
    elif tally is not None and tally.undecided:
        cell.reason = tally.undecided_reason
    else:
        cell.reason = "never put to the test in this run"
    return cell


def missing_capabilities(clause: Clause, system: Collection[str], client: Collection[str]) -> str:
    """Why a clause does not bind a pair with these capabilities; empty when it does.

    What an invariant says of a clause that does not bind is no failure of anybody: such a cell is ``n/a``.
    """
    lacks = [f"the system lacks {name}" for name in clause.needs_system if name not in system]
    lacks += [f"the client lacks {name}" for name in clause.needs_client if name not in client]
    return "; ".join(lacks)


def _breaches(tally: ClauseTally, entries: Sequence[KnownFailure]) -> list[Breach]:
    breaches: list[Breach] = []
    for name, runs in sorted(tally.runs_with.items()):
        breach = Breach(anomaly=name, runs=runs, message=tally.messages[name])
        accepted = next((entry for entry in entries if entry.allows(name)), None)
        if accepted is not None:
            breach.accepted, breach.reason, breach.rate = accepted.status, accepted.reason, accepted.rate
        breaches.append(breach)
    return breaches


def _worst(breaches: Iterable[Breach]) -> Verdict:
    accepted = {breach.accepted for breach in breaches}
    if "" in accepted:
        return "fail"
    return "known" if "known" in accepted else "flaky"


def mark_stale(cells: Sequence[Cell], known: Iterable[KnownFailure], profile: str) -> None:
    """Mark the cells in which a *known* entry was put to the test and did not fail, in a run of this profile.

    An entry with wildcards speaks of several cells and is stale only when none of them failed as listed. An entry whose
    cells were not judged (another selection, another client, a capability gate, a harness error) says nothing.
    """
    for entry in known:
        if not entry.due(profile):
            continue
        covered = [cell for cell in cells if entry.covers(cell.system, cell.client, cell.clause)]
        if any(entry.allows(breach.anomaly) for cell in covered for breach in cell.breaches):
            continue
        for cell in covered:
            if cell.judged and cell.verdict in ("pass", "fail", "known", "flaky"):
                cell.stale.append(f"{entry.place}: {entry.anomaly} is listed as known and did not fail")
                if cell.verdict == "pass":
                    # It is an expected failure that passed: neither a breach of the system nor a plain pass.
                    cell.verdict = "known"
                    cell.reason = "stale: listed as a known failure, but it passed"


def exit_code(cells: Collection[Cell], *, harness_errors: int) -> int:
    """The exit code of a run. A proved violation outweighs trouble of our own, which outweighs "nothing decided"."""
    if any(cell.red for cell in cells):
        return EXIT_VIOLATION
    if harness_errors or any(cell.verdict == "error" for cell in cells):
        return EXIT_HARNESS
    if all(cell.verdict in ("unknown", "n/a") for cell in cells):
        return EXIT_UNDECIDED
    return EXIT_GREEN
