"""How often entries were asked for again."""

from __future__ import annotations


class RedeliveryCounts:
    """Per entry of one dispatcher; forgotten when the entry is acknowledged (REDEL-02)."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def get(self, offset: int) -> int:
        return self._counts.get(offset, 0)

    def named(self, offset: int) -> None:
        """A REDELIVER named the entry; the loss of a consumer does not count."""
        self._counts[offset] = self._counts.get(offset, 0) + 1

    def forget(self, offset: int) -> None:
        self._counts.pop(offset, None)

    def clear(self) -> None:
        """The last consumer has left."""
        self._counts.clear()
