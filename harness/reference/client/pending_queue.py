"""What was given to the broker and not answered yet (clauses SEND-02, RCPT-01 to RCPT-03, RECEIPT-04)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Literal

from harness.reference.client.outgoing import PendingSend
from harness.wire.frame import WireError, decode

Verdict = Literal["complete", "stale", "future"]

LARGEST_ID = (1 << 63) - 1
"""Sequence ids are signed where brokers keep them: a larger value is a negative one, which stands for "none"."""


class PendingQueue:
    """First in, first out. An answer is matched with the head and with nothing else."""

    def __init__(self) -> None:
        self._queue: deque[PendingSend] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[PendingSend]:
        return iter(tuple(self._queue))

    def append(self, pending: PendingSend) -> None:
        """Queue it before it is written (clause SEND-02)."""
        self._queue.append(pending)

    @property
    def head(self) -> PendingSend | None:
        """The oldest one."""
        return self._queue[0] if self._queue else None

    def pop_head(self) -> PendingSend:
        """Take the oldest one; ``IndexError`` when there is none."""
        return self._queue.popleft()

    def receipt(self, sequence_id: int, highest_sequence_id: int) -> Verdict:
        """What a receipt means: it completes the head, is older than the head, or names what is not due yet.

        ``highest_sequence_id`` is 0 when the broker leaves it out, and Pulsar 4.0.7 sends 2^64-1 (its -1) for a plain
        message; when it contradicts the head of a batch, the two sides no longer agree on the queue and the verdict is
        ``future``.
        """
        head = self.head
        if head is None or sequence_id < head.sequence_id:
            return "stale"
        if sequence_id > head.sequence_id:
            return "future"
        told = sequence_id < highest_sequence_id <= LARGEST_ID
        if not told or highest_sequence_id == head.highest_sequence_id:
            return "complete"
        return "future"

    def note_duplicate(self, sequence_id: int) -> Literal["head", "new", "known", "none"]:
        """What a receipt without a position answers.

        A broker tells a duplicate at once, while what was sent before is still being stored, so this receipt may
        overtake others (RECEIPT-03). Pieces share their sequence id and only the last one is judged (DEDUP-08). What is
        a duplicate once stays one, so a verdict for an entry behind the head is kept, over reconnects too: ``new`` when
        it was not known yet. ``head``: it completes the head; ``none``: nothing here has that id.
        """
        head = self.head
        if head is not None and head.last_piece and head.sequence_id == sequence_id:
            return "head"
        named = [pending for pending in self._queue if pending.last_piece and pending.sequence_id == sequence_id]
        for pending in named:
            if not pending.is_duplicate:
                pending.is_duplicate = True
                return "new"
        return "known" if named else "none"

    def head_is_answered(self) -> bool:
        """Whether the head is known to be a duplicate already."""
        return self.head is not None and self.head.is_duplicate

    def named_by_error(self, sequence_id: int) -> PendingSend | None:
        """The oldest one a SEND_ERROR may mean: brokers name a batch by its highest id (clause RECEIPT-01)."""
        for pending in self._queue:
            if sequence_id in (pending.sequence_id, pending.highest_sequence_id):
                return pending
        return None

    def is_intact(self, pending: PendingSend) -> bool:
        """Whether our own copy still has the checksum it was made with (clauses ERR-01, ERR-02)."""
        try:
            return decode(pending.data).checksum_ok is True
        except WireError:
            return False

    def to_resend(self) -> list[PendingSend]:
        """What goes out again after a reattachment: everything, in order, unchanged (clause PROD-08)."""
        return list(self._queue)

    def remove_message(self, refused: PendingSend) -> None:
        """Drop it, and with a piece of a chunked message all the other pieces that are still here."""
        gone = set(map(id, refused.messages))
        self._queue = deque(entry for entry in self._queue if not gone & set(map(id, entry.messages)))

    def clear(self) -> list[PendingSend]:
        """Take everything, in order."""
        taken = list(self._queue)
        self._queue.clear()
        return taken
