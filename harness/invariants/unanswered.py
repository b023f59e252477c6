"""SEND frames that wait for their answer, per connection, as one tap sees them."""

from __future__ import annotations

from dataclasses import dataclass

from harness.history.event import Event
from harness.invariants.sequence import announced, is_inner_chunk


@dataclass(slots=True, eq=False)
class Sent:
    """One SEND and the answer it got. ``ordinal``: its place among the SENDs of this producer on this connection."""

    frame: Event
    ordinal: int
    answer: Event | None = None
    excused: bool = False

    @property
    def refused(self) -> bool:
        return self.answer is not None and self.answer.kind == "SEND_ERROR"

    @property
    def duplicate(self) -> bool:
        return self.answer is not None and self.answer.kind == "SEND_RECEIPT" and self.answer.ledger_id is None

    @property
    def stored(self) -> bool:
        return self.answer is not None and self.answer.kind == "SEND_RECEIPT" and self.answer.ledger_id is not None


class Unanswered:
    """Matches answers to SENDs: the oldest waiting SEND of that connection with the answer's sequence id.

    A receipt names the lowest id of a batch, an error the highest (the broker's habit), so both ends match. The pieces
    of a chunked message share one id; only the last may be a duplicate, and its answer then overtakes those of the
    others, so a duplicate receipt goes to a last piece first.
    """

    def __init__(self) -> None:
        self.all: list[Sent] = []
        self._waiting: dict[str, list[Sent]] = {}
        self._counts: dict[str, int] = {}

    def sent(self, frame: Event) -> Sent:
        """Note a SEND."""
        connection = frame.connection or ""
        ordinal = self._counts[connection] = self._counts.get(connection, 0) + 1
        found = Sent(frame, ordinal)
        self.all.append(found)
        self._waiting.setdefault(connection, []).append(found)
        return found

    def answered(self, frame: Event) -> Sent | None:
        """Note a SEND_RECEIPT or SEND_ERROR; the SEND it answers, None when there is none waiting."""
        waiting = self._waiting.get(frame.connection or "", [])
        fitting = [
            place for place, item in enumerate(waiting)
            if (ids := announced(item.frame)) is not None and frame.sequence_id in ids
        ]  # fmt: skip
        if not fitting:
            return None
        chosen = fitting[0]
        if frame.kind == "SEND_RECEIPT" and frame.ledger_id is None and is_inner_chunk(waiting[chosen].frame):
            chosen = next((place for place in fitting if not is_inner_chunk(waiting[place].frame)), chosen)
        found = waiting.pop(chosen)
        found.answer = frame
        return found

    def waiting(self, connection: str) -> list[Sent]:
        """SENDs of the connection without an answer, oldest first."""
        return self._waiting.get(connection, [])

    def excuse(self, connection: str) -> None:
        """The broker need not answer what waits now (producer closed or registered anew); it still may."""
        for item in self._waiting.get(connection, []):
            item.excused = True

    def closed(self, connection: str) -> None:
        """The connection is gone: nothing on it will be answered."""
        self._waiting.pop(connection, None)
