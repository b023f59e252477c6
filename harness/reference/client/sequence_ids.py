"""Which sequence id a message gets (clauses SEQ-01, PROD-05, PROD-06, PUB-07)."""

from __future__ import annotations


class SequenceIds:
    """Automatic ids rise by one; an id the application sets is used as it is and moves nothing.

    ``initial``: the first automatic id is ``initial + 1``, whatever the broker reports; None: one above the broker's
    last id of this producer name.
    """

    def __init__(self, initial: int | None) -> None:
        self._next = 0 if initial is None else initial + 1
        self._settled = initial is not None

    def registered(self, last_sequence_id: int) -> None:
        """The broker's last id (-1: none). Only the first answer counts: no id is ever handed out twice."""
        if not self._settled:
            self._settled = True
            self._next = last_sequence_id + 1

    def assign(self, explicit: int | None) -> int:
        """The id of the next message in call order."""
        if explicit is not None:
            return explicit
        assigned = self._next
        self._next += 1
        return assigned
