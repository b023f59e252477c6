"""SEND frames that wait for their answer, per connection, as one tap sees them."""

from __future__ import annotations

from dataclasses import dataclass

from harness.history.event import Event
from harness.invariants.sequence import announced, is_chunk, is_inner_chunk, members

CONTESTED = "two unanswered SENDs of the producer had this id; a receipt does not say which it answers"


@dataclass(slots=True, eq=False)
class Sent:
    """One SEND and the answer it got. ``ordinal``: its place among the SENDs of this producer on this connection.

    ``contested``: another SEND with other content waited under the same id when an answer came, so ``answer`` may be
    the other's. Only that an answer came is then known.
    """

    frame: Event
    ordinal: int
    answer: Event | None = None
    excused: bool = False
    contested: bool = False

    @property
    def refused(self) -> bool:
        return self.answer is not None and self.answer.kind == "SEND_ERROR"

    @property
    def duplicate(self) -> bool:
        return self.answer is not None and self.answer.kind == "SEND_RECEIPT" and self.answer.ledger_id is None

    @property
    def stored(self) -> bool:
        return self.answer is not None and self.answer.kind == "SEND_RECEIPT" and self.answer.ledger_id is not None


def _one_message(frames: list[Event]) -> bool:
    """Whether frames of one sequence id are the same message again, or pieces of one message in their order."""
    if all(is_chunk(frame) for frame in frames):
        pieces = [frame.chunk_id or 0 for frame in frames]
        return len({frame.chunk_uuid for frame in frames}) == 1 and pieces == sorted(set(pieces))
    return len({tuple(member.digest for member in members(frame)) for frame in frames}) == 1 and not any(
        is_chunk(frame) for frame in frames
    )


def _hides_its_piece(answer: Event, frames: list[Event]) -> bool:
    """Whether an answer refuses one of several waiting pieces of a message and does not say which.

    An error overtakes the receipts of pieces that are being stored: 2.10.5 refuses a later piece as a possible
    duplicate of piece 0, whose receipt comes after that. A piece that arrived damaged is told by its checksum.
    """
    return answer.kind == "SEND_ERROR" and answer.error != "ChecksumError" and all(map(is_chunk, frames))


class Unanswered:
    """Matches answers to SENDs: the oldest waiting SEND of that producer and connection with the answer's sequence id.

    A receipt names the lowest id of a batch, an error the highest (the broker's habit); the other end matches when
    nothing else does. The pieces of a chunked message share one id; only the last may be a duplicate, and its answer
    then overtakes those of the others, so a duplicate receipt goes to a last piece first. An application may repeat an
    id while the first is in flight, and an error may be of any of several pieces: which answer is whose cannot be told
    (RECEIPT-03), and those SENDs are *contested*.
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
        fitting = self._fitting(waiting, frame)
        if not fitting:
            return None
        frames = [sent.frame for sent in fitting]
        if len(fitting) > 1 and (not _one_message(frames) or _hides_its_piece(frame, frames)):
            for sent in fitting:
                sent.contested = True
        # What was sent before the broker closed the producer may never be answered; its repetition is.
        found = next((sent for sent in fitting if not sent.excused), fitting[0])
        if frame.kind == "SEND_RECEIPT" and frame.ledger_id is None and is_inner_chunk(found.frame):
            found = next((sent for sent in fitting if not is_inner_chunk(sent.frame)), found)
        waiting.remove(found)
        found.answer = frame
        return found

    @staticmethod
    def _fitting(waiting: list[Sent], answer: Event) -> list[Sent]:
        number = answer.extra.get("producer_id")
        known = [
            (sent, ids) for sent in waiting
            if (ids := announced(sent.frame)) is not None
            and number in (None, sent.frame.extra.get("producer_id", number))
        ]  # fmt: skip
        first, second = (0, 1) if answer.kind == "SEND_RECEIPT" else (1, 0)
        for end in (first, second):
            fitting = [sent for sent, ids in known if ids[end] == answer.sequence_id]
            if fitting:
                return fitting
        return []

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
