"""Cuts the part out of a history that a person needs to follow a witness. For display only, never for judging."""

from __future__ import annotations

from collections.abc import Sequence

from harness.gate.result import Excerpt
from harness.history.event import Event
from harness.invariants.core import Anomaly

MOST_EVENTS = 48
_NOISE = frozenset(
    {"PING", "PONG", "LOOKUP", "LOOKUP_RESPONSE", "PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE"}
)


def excerpt(history: Sequence[Event], anomaly: Anomaly) -> Excerpt:
    """The witness events with what surrounds them: all of the faults and the nearest events of the same topic."""
    wanted = set(anomaly.witness)
    witness = [position for position, event in enumerate(history) if event.index in wanted]
    if not witness:
        return Excerpt(witness=list(anomaly.witness), left_out=len(history))
    topics = {history[position].topic for position in witness} - {None}

    def distance(position: int) -> tuple[int, int]:
        event = history[position]
        related = event.layer == "fault" or event.topic is None or event.topic in topics or not topics
        noise = event.kind in _NOISE or event.layer == "admin"
        return (0 if event.layer == "fault" else 1 if related and not noise else 2), min(
            abs(position - place) for place in witness
        )

    chosen = set(witness)
    others = sorted((position for position in range(len(history)) if position not in chosen), key=distance)
    room = max(0, MOST_EVENTS - len(chosen))
    chosen.update(position for position in others[:room] if distance(position)[0] < 2)
    events = [history[position] for position in sorted(chosen)]
    return Excerpt(events=events, witness=list(anomaly.witness), left_out=len(history) - len(events))
