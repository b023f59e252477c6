"""Where a message is stored.

The ids are unsigned on the wire and signed in everybody's mind: 2^64-1 is -1. The pair -1:-1 stands for "before the
first entry" in a request and for "no entry" (duplicate, dropped) in a receipt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.wire.pulsar_pb2 import MessageIdData

_WORD: Final = 1 << 64
_SIGN: Final = 1 << 63


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """An entry of a topic; ordered by ledger, then by entry. The sentinel sorts before every entry."""

    ledger: int
    entry: int

    @classmethod
    def read(cls, data: MessageIdData) -> Position:
        """Position in ``data``, the sentinel among them."""
        return cls(_signed(data.ledgerId), _signed(data.entryId))

    def write(self, *, partition: int | None = None, batch_index: int | None = None) -> MessageIdData:
        """The position as a message id; what is None stays absent."""
        data = MessageIdData(ledgerId=self.ledger % _WORD, entryId=self.entry % _WORD)
        if partition is not None:
            data.partition = partition
        if batch_index is not None:
            data.batch_index = batch_index
        return data

    @property
    def is_sentinel(self) -> bool:
        """Whether this is no entry: one of the ids is negative."""
        return self.ledger < 0 or self.entry < 0

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


#: Before the first entry, or no entry at all.
SENTINEL: Final = Position(-1, -1)
#: After the last entry, in SUBSCRIBE and SEEK.
LATEST: Final = Position(_SIGN - 1, _SIGN - 1)


def stored_position(data: MessageIdData) -> Position | None:
    """Position of an entry, or None for the sentinel (clauses DEDUP-*: a duplicate's receipt)."""
    position = Position.read(data)
    return None if position.is_sentinel else position


def batch_index(data: MessageIdData) -> int | None:
    """Index inside a batch, None when absent or -1."""
    return data.batch_index if data.HasField("batch_index") and data.batch_index >= 0 else None


def _signed(number: int) -> int:
    return number - _WORD if number >= _SIGN else number
