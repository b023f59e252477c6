"""The result as a person at a terminal reads it: matrix first, then each new failure, then one line to remember."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.gate.result import ClauseText, Failure, GateResult
from harness.history.event import Event
from harness.report.describe import event_details, event_label, step_label
from harness.report.matrix import by_family, columns
from harness.verdict import VERDICTS, Cell, Verdict

STYLES: dict[Verdict, str] = {
    "pass": "green",
    "fail": "bold red",
    "known": "yellow",
    "flaky": "magenta",
    "unknown": "dim",
    "n/a": "dim",
    "error": "bold white on red",
}

_SILENT = ("unknown", "n/a")

MOST_COLUMNS = 6
"""Pairs a terminal shows side by side; of more there is one line each, and the page has the matrix."""


def show(result: GateResult, console: Console) -> None:
    """Everything: matrix, failures, known ones, trouble of the harness, summary."""
    console.print()
    console.print(matrix(result) if len(result.pairs) <= MOST_COLUMNS else overview(result))
    show_silent(result, console)
    for failure in result.new_failures:
        show_failure(failure, result.clauses.get(failure.clause), console)
    show_accepted(result, console)
    show_trouble(result, console)
    show_summary(result, console)


def matrix(result: GateResult) -> Table:
    """Clauses x pairs, grouped by family. Clauses no pair could judge are left to ``show_silent``."""
    systems = list(dict.fromkeys(pair.system for pair in result.pairs))
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("clause", no_wrap=True)
    table.add_column("promise", no_wrap=True, overflow="ellipsis", ratio=1)
    pairs = [(pair.system, pair.client) for pair in result.pairs]
    for system, client in pairs:
        table.add_column(client if len(systems) == 1 else f"{system}\n{client}", no_wrap=True)
    cells = {(cell.clause, cell.system, cell.client): cell for cell in result.cells}
    for family, clauses in by_family(result.clauses.values()):
        rows: list[tuple[ClauseText, list[Cell | None]]] = []
        for clause in clauses:
            row = [cells.get((clause.id, system, client)) for system, client in pairs]
            if any(cell is not None and (cell.verdict not in _SILENT or cell.red) for cell in row):
                rows.append((clause, row))
        if rows:
            table.add_row(Text(family, style="bold cyan"), *[""] * (len(pairs) + 1))
        for clause, row in rows:
            table.add_row(f"  {clause.id}", escape(clause.title), *[_symbol(cell) for cell in row])
    return table


def overview(result: GateResult) -> Table:
    """One line a pair: how many of its clauses got which verdict."""
    present = [verdict for verdict in VERDICTS if result.counts.get(verdict)]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("system", no_wrap=True)
    table.add_column("client", no_wrap=True)
    for title in ("decided", *present, *(["stale"] if result.stale else [])):
        table.add_column(title, no_wrap=True, justify="right")
    for column in columns(result):
        counts = [Text(str(column.counts[verdict] or ""), style=STYLES[verdict]) for verdict in present]
        stale = [Text(str(column.stale or ""), style="bold red")] if result.stale else []
        table.add_row(escape(column.system), escape(column.client), str(column.decided), *counts, *stale)
    return table


def _symbol(cell: Cell | None) -> Text:
    if cell is None:
        return Text("-", style="dim")
    if cell.stale:
        return Text("STALE", style="bold red")
    return Text(cell.verdict.upper() if cell.red else cell.verdict, style=STYLES[cell.verdict])


def show_silent(result: GateResult, console: Console) -> None:
    """One line a reason for the clauses that say nothing anywhere, so that silence is not taken for green."""
    by_clause: dict[str, list[Cell]] = {}
    for cell in result.cells:
        by_clause.setdefault(cell.clause, []).append(cell)
    reasons: dict[str, list[str]] = {}
    for clause, cells in by_clause.items():
        if all(cell.verdict in _SILENT and not cell.red for cell in cells):
            said = f"{cells[0].verdict}: {cells[0].reason}"
            reasons.setdefault(said, []).append(clause)
    if reasons:
        console.print()
    for said, clauses in reasons.items():
        console.print(f"[dim]{escape(said)}[/dim]  {escape(' '.join(clauses))}")


def show_failure(failure: Failure, clause: ClauseText | None, console: Console) -> None:
    """One new failure: the rule, what happened, the frames that prove it, how to see it again."""
    console.print()
    where = f"{failure.system} x {failure.client}"
    console.rule(f"[bold red]{failure.clause}[/bold red] {escape(failure.anomaly)} [dim]{escape(where)}", align="left")
    if clause is not None:
        console.print(f"[bold]Rule[/bold]     {escape(clause.rule)} [dim]({escape(clause.source)})[/dim]")
    console.print(f"[bold]Found[/bold]    {escape(failure.message)}")
    console.print(
        f"[dim]by {escape(failure.found_by)}; seen in {failure.runs} run(s); {escape(failure.shrink_note)}[/dim]"
    )
    show_witness([event for event in failure.excerpt.events if event.index in set(failure.excerpt.witness)], console)
    console.print("[bold]Plan[/bold]")
    for number, step in enumerate(failure.plan.steps(), start=1):
        console.print(f"  {number:>2}. {escape(step_label(step))}", highlight=False)
    if failure.rate is not None:
        console.print(f"[bold]Again[/bold]    {failure.rate}", highlight=False)
    # One unbroken line, so that it can be copied whatever the width of the terminal.
    console.print(failure.replay, style="bold", markup=False, highlight=False, soft_wrap=True)


def show_witness(events: Sequence[Event], console: Console) -> None:
    """The witness events as a table: index, milliseconds, layer, frame, ids."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    for event in events:
        table.add_row(
            Text(f"#{event.index}", style="cyan"),
            f"{event.time_ns / 1e6:.1f} ms",
            Text(f"{event.layer} {event.phase if event.layer == 'api' else ''}", style="dim"),
            Text(event_label(event)),
            Text(event_details(event), style="dim"),
        )
    console.print("[bold]Witness[/bold]")
    console.print(table)


def show_accepted(result: GateResult, console: Console) -> None:
    """Known and flaky failures that did fail, one line each with their reason; and the stale entries.

    What is accepted alike of several systems is one line, with the replay of the first of them.
    """
    alike: dict[tuple[str, str, str, str, str], list[Cell]] = {}
    for cell in result.cells:
        for breach in cell.breaches:
            if breach.accepted:
                said = f"{breach.accepted} {breach.rate}".strip()
                alike.setdefault((said, cell.clause, breach.anomaly, cell.client, breach.reason), []).append(cell)
    if alike:
        console.print()
        console.print("[bold]Known failures, seen again[/bold]")
    replays = {(one.clause, one.anomaly, one.system, one.client): one.replay for one in result.failures}
    for (said, clause, anomaly, client, reason), cells in alike.items():
        systems = ", ".join(cell.system for cell in cells)
        console.print(
            f"  [yellow]{said}[/yellow] {clause} {escape(anomaly)}"
            f" [dim]{escape(systems)} x {escape(client)}:[/dim] {escape(reason)}"
        )
        replay = replays.get((clause, anomaly, cells[0].system, client))
        if replay:
            console.print(f"    [cyan]{escape(replay)}[/cyan]", soft_wrap=True)
    for place in dict.fromkeys(place for cell in result.cells for place in cell.stale):
        console.print(f"  [bold red]STALE[/bold red] {escape(place)}")


def show_trouble(result: GateResult, console: Console) -> None:
    """Errors of the harness, never held against a system. A missing environment is told on stderr by the command."""
    errors = result.harness_errors
    if errors:
        console.print(f"\n[bold red]{len(errors)} error(s) of the harness itself[/bold red] (not of the system)")
    for error in dict.fromkeys(errors):
        console.print(f"  {escape(error)}")


def show_summary(result: GateResult, console: Console) -> None:
    """One line: verdicts, effort, time."""
    counts = result.counts
    said = [f"[{STYLES[verdict]}]{counts[verdict]} {verdict}[/]" for verdict in VERDICTS if counts.get(verdict)]
    if result.stale:
        said.append(f"[bold red]{result.stale} stale[/]")
    runs = sum(pair.directed + pair.examples for pair in result.pairs)
    events = sum(pair.events for pair in result.pairs)
    if result.interrupted:
        console.print("\n[bold yellow]Interrupted: this is what was judged so far.[/bold yellow]")
    console.print()
    console.print(
        f"{', '.join(said) or 'nothing was judged'} [dim]· {runs} runs, {events} events, {result.seconds:.1f} s[/dim]",
        highlight=False,
    )
