"""The report as one self-contained page: no network, light and dark, readable without JavaScript."""

from __future__ import annotations

from dataclasses import dataclass, field

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.gate.result import ClauseText, Failure, GateResult
from harness.report.describe import event_details, event_label, step_label
from harness.report.matrix import by_system, columns, rows
from harness.report.sequence_chart import Chart, chart
from harness.verdict import VERDICTS

WORDS_FOR = 4
"""Pairs whose verdicts are written out; of more each gets a mark, so that a matrix of all versions fits a screen."""

MARKS = {
    "pass": "✓", "fail": "✗", "known": "k", "flaky": "~", "unknown": "?", "n/a": "–", "error": "!", "stale": "S",
}  # fmt: skip

MEANINGS = {
    "pass": "put to the test and kept",
    "fail": "broken, and nobody has accepted that",
    "known": "fails, as accepted",
    "flaky": "fails at times, as accepted",
    "unknown": "this run could not decide it",
    "n/a": "does not bind this version, or system or client cannot be asked",
    "error": "the harness itself failed",
    "stale": "accepted as failing, and does not fail",
}


@dataclass(slots=True)
class _Card:
    """A failure as the page shows it. ``also``: other systems in which the same was seen with this client."""

    anchor: str
    failure: Failure
    clause: ClauseText | None
    chart: Chart
    steps: list[str]
    low: float
    high: float
    also: list[str] = field(default_factory=list)


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
    cards, anchors = _cards(result)
    listed = columns(result)
    return environment.get_template("report.html.j2").render(
        result=result,
        headline=_headline(result),
        columns=listed,
        systems=by_system(listed),
        clients=list(dict.fromkeys(column.client for column in listed)),
        wide=len(listed) > WORDS_FOR,
        marks=MARKS,
        meanings=MEANINGS,
        families=rows(result),
        verdicts=[verdict for verdict in VERDICTS if result.counts.get(verdict)],
        new=[card for card in cards if not card.failure.accepted],
        accepted=[card for card in cards if card.failure.accepted],
        anchors=anchors,
        stale=list(dict.fromkeys(place for cell in result.cells for place in cell.stale)),
        runs=sum(pair.directed + pair.examples for pair in result.pairs),
        events=sum(pair.events for pair in result.pairs),
    )


def _cards(result: GateResult) -> tuple[list[_Card], dict[tuple[str, str, str], str]]:
    """The cards, and where each cell leads. What is accepted is told once for all systems in which it looks alike."""
    cards: list[_Card] = []
    accepted: dict[tuple[str, str, str], _Card] = {}
    anchors: dict[tuple[str, str, str], str] = {}
    for failure in result.failures:
        alike = (failure.clause, failure.anomaly, failure.client)
        card = accepted.get(alike) if failure.accepted else None
        if card is None:
            card = _card(failure, result)
            cards.append(card)
        else:
            card.also.append(failure.system)
        if failure.accepted:
            accepted[alike] = card
        key = (failure.clause, failure.system, failure.client)
        # A cell leads to its new failure when it has both a new and a known one.
        if key not in anchors or not failure.accepted:
            anchors[key] = card.anchor
    return cards, anchors


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
