"""Lays out an excerpt of a history as a message-sequence chart: which line goes where. The template draws it."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.gate.result import Excerpt
from harness.history.event import Event
from harness.report.describe import event_details, event_label

LANES = ("application", "client", "tap B", "Toxiproxy", "tap A", "broker")
APPLICATION, CLIENT, TAP_B, TOXIPROXY, TAP_A, BROKER = range(len(LANES))

MARGIN, LANE, ROW, GAP, TOP = 130, 178, 34, 18, 44
LABEL_CHARACTERS = 46

_STARTS = {"toxic": "untoxic", "refuse": "restore"}


@dataclass(slots=True)
class Row:
    """One event. ``x1`` to ``x2`` is an arrow, equal for a mark on one lane; ``label_x`` is where its text starts."""

    y: int
    index: int
    time: str
    kind: str
    x1: int
    x2: int
    label: str
    label_x: int
    anchor: str
    tooltip: str
    breach: bool


@dataclass(slots=True)
class Band:
    """A fault in force on the Toxiproxy lane, from ``y`` for ``height``."""

    y: int
    height: int


@dataclass(slots=True)
class Chart:
    """All coordinates in SVG user units. ``gaps`` holds (y, number of events left out there)."""

    width: int
    height: int = 0
    lanes: list[tuple[int, str]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    toxiproxy_x: int = 0
    left: int = MARGIN


def lane_x(lane: int) -> int:
    """The middle of a lane."""
    return MARGIN + 40 + lane * LANE


def chart(excerpt: Excerpt) -> Chart:
    """The chart of an excerpt, one row an event, in order."""
    drawn = Chart(width=lane_x(len(LANES) - 1) + 70, toxiproxy_x=lane_x(TOXIPROXY))
    drawn.lanes = [(lane_x(number), name) for number, name in enumerate(LANES)]
    witness = set(excerpt.witness)
    began = excerpt.events[0].time_ns if excerpt.events else 0
    open_faults: dict[str, int] = {}
    y, previous = TOP + ROW, None
    for event in excerpt.events:
        if previous is not None and event.index > previous + 1:
            drawn.gaps.append((y - ROW // 2 + GAP // 2 - 2, event.index - previous - 1))
            y += GAP
        drawn.rows.append(_row(event, y, began, breach=event.index in witness))
        _track_faults(drawn, open_faults, event, y)
        previous = event.index
        y += ROW
    drawn.bands += [Band(start, y - ROW - start) for start in open_faults.values()]
    drawn.height = y
    return drawn


def _row(event: Event, y: int, began: int, *, breach: bool) -> Row:
    start, end = _ends(event)
    x1, x2 = lane_x(start), lane_x(end)
    text = event_label(event)
    if event.layer == "api" and event.phase != "invoke":
        text = f"{text} → {event.phase}"
    if event.layer == "fault":
        text = f"⚡ {event.kind} {_fault_text(event)}".rstrip()
    if start == end:
        # Text beside a mark: to the left of it on the right half, where there would be no room.
        left = start >= TAP_A
        label_x, anchor = (x1 - 12, "end") if left else (x1 + 12, "start")
    elif max(x1, x2) == lane_x(BROKER):
        # There is no room beyond the last lane for what is longer than an arrow.
        label_x, anchor = max(x1, x2) - 10, "end"
    else:
        label_x, anchor = min(x1, x2) + 8, "start"
    shown = text if len(text) <= LABEL_CHARACTERS else text[: LABEL_CHARACTERS - 1] + "…"
    return Row(
        y=y,
        index=event.index,
        time=f"{(event.time_ns - began) / 1e6:+.1f} ms",
        kind="fault" if event.layer == "fault" else event.layer.split(".")[0],
        x1=x1,
        x2=x2,
        label=shown,
        label_x=label_x,
        anchor=anchor,
        tooltip=f"#{event.index} {event.layer} {event.phase} {text} {event_details(event)}",
        breach=breach,
    )


def _ends(event: Event) -> tuple[int, int]:
    if event.layer == "api":
        return (APPLICATION, CLIENT) if event.phase == "invoke" else (CLIENT, APPLICATION)
    if event.layer == "fault":
        return TOXIPROXY, TOXIPROXY
    to_client = event.extra.get("direction") == "to_client"
    framed = "direction" in event.extra
    if event.layer == "tap.client":
        if not framed:
            return TAP_B, TAP_B
        return (TAP_B, CLIENT) if to_client else (CLIENT, TAP_B)
    if event.layer == "tap.broker":
        if not framed:
            return TAP_A, TAP_A
        return (BROKER, TAP_A) if to_client else (TAP_A, BROKER)
    return BROKER, BROKER


def _fault_text(event: Event) -> str:
    if event.kind == "dedup":
        return "on" if event.extra.get("enabled") else "off"
    return event.fault or ""


def _track_faults(drawn: Chart, open_faults: dict[str, int], event: Event, y: int) -> None:
    if event.layer != "fault":
        return
    if event.kind in _STARTS:
        open_faults.setdefault(_STARTS[event.kind], y)
        return
    ended = list(open_faults) if event.kind == "healed" else [event.kind] if event.kind in open_faults else []
    for end in ended:
        start = open_faults.pop(end)
        drawn.bands.append(Band(start, y - start))
