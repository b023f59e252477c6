"""The report as one self-contained page: no network, light and dark, readable without JavaScript."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.gate.result import ClauseText, Failure, GateResult
from harness.report.describe import event_details, event_label, step_label
from harness.report.sequence_chart import Chart, chart
from harness.verdict import VERDICTS, Cell


@dataclass(slots=True)
class _Card:
    """A failure as the page shows it."""

    anchor: str
    failure: Failure
    clause: ClauseText | None
    chart: Chart
    steps: list[str]
    low: float
    high: float


def page(result: GateResult) -> str:
    """The HTML document."""
    environment = Environment(
        loader=PackageLoader("harness.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"event_label": event_label, "event_details": event_details}
    cards = [_card(failure, result) for failure in result.failures]
    anchors: dict[tuple[str, str, str], str] = {}
    for card in cards:
        key = (card.failure.clause, card.failure.system, card.failure.client)
        # A cell leads to its new failure when it has both a new and a known one.
        if key not in anchors or not card.failure.accepted:
            anchors[key] = card.anchor
    return environment.get_template("report.html.j2").render(
        result=result,
        headline=_headline(result),
        pairs=[(pair.system, pair.client) for pair in result.pairs],
        families=_families(result),
        verdicts=[verdict for verdict in VERDICTS if result.counts.get(verdict)],
        new=[card for card in cards if not card.failure.accepted],
        accepted=[card for card in cards if card.failure.accepted],
        anchors=anchors,
        stale=list(dict.fromkeys(place for cell in result.cells for place in cell.stale)),
        runs=sum(pair.directed + pair.examples for pair in result.pairs),
        events=sum(pair.events for pair in result.pairs),
    )


def _card(failure: Failure, result: GateResult) -> _Card:
    low, high = failure.rate.interval() if failure.rate is not None else (0.0, 1.0)
    number = result.failures.index(failure) + 1
    return _Card(
        anchor=f"failure-{number}",
        failure=failure,
        clause=result.clauses.get(failure.clause),
        chart=chart(failure.excerpt),
        steps=[step_label(step) for step in failure.plan.steps()],
        low=low,
        high=high,
    )


def _headline(result: GateResult) -> tuple[str, str]:
    """A word for the style and a sentence for the reader."""
    new = len(result.new_failures)
    code = result.exit_code()
    if result.interrupted:
        return "undecided", "Interrupted: what was judged so far"
    if code == 1:
        stale = f"{result.stale} stale known failure(s)" if result.stale else ""
        broken = f"{new} promise{'s' if new != 1 else ''} broken" if new else ""
        return "fail", ", ".join(part for part in (broken, stale) if part)
    if code == 2:
        return "error", "The environment was not complete"
    if code == 3:
        return "error", "The harness itself failed"
    if code == 4:
        return "undecided", "Nothing was decided"
    known = result.counts.get("known", 0) + result.counts.get("flaky", 0)
    return "pass", f"All as known ({known} known failures)" if known else "Every promise judged was kept"


def _families(result: GateResult) -> list[tuple[str, list[tuple[ClauseText, list[Cell | None]]]]]:
    cells: dict[Any, Cell] = {(cell.clause, cell.system, cell.client): cell for cell in result.cells}
    order: dict[str, int] = {}
    for clause in result.clauses.values():
        order.setdefault(clause.family, len(order))
    listed = sorted(result.clauses.values(), key=lambda clause: order[clause.family])
    return [
        (
            family,
            [(clause, [cells.get((clause.id, pair.system, pair.client)) for pair in result.pairs]) for clause in group],
        )
        for family, group in groupby(listed, key=lambda clause: clause.family)
    ]
