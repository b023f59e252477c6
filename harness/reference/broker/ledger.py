"""The ledgers of one topic: positions in, entries out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from harness.reference.broker.stored_entry import StoredEntry


class LedgerChain:
    """Entries in append order. An *offset* is the place of a persisted entry in the whole topic, from 0.

    Entry ids are dense from 0 within a ledger, ledger ids grow (LEDGER-01, LEDGER-03). A ledger is full at
    ``max_entries`` (LEDGER-02). ``new_ledger_id`` hands out ids that were never used before.
    """

    def __init__(self, new_ledger_id: Callable[[], int], max_entries: int) -> None:
        self._new_ledger_id = new_ledger_id
        self._max_entries = max_entries
        self.entries: list[StoredEntry] = []
        self._ledgers: list[int] = []
        self._starts: list[int] = []
        self._open: int | None = None
        self._reserved = 0

    def __len__(self) -> int:
        return len(self.entries)

    def reserve(self) -> tuple[int, int]:
        """Ledger and entry id of the next append. Appends must be stored in the order of their reservations."""
        if self._open is None or self._is_full():
            self._open = self._new_ledger_id()
            self._reserved = 0
        entry = self._reserved
        self._reserved += 1
        return self._open, entry

    def _is_full(self) -> bool:
        return self._reserved >= self._max_entries

    def limit(self, max_entries: int) -> None:
        """How many entries a ledger may have from now on."""
        self._max_entries = max_entries

    def store(self, entry: StoredEntry) -> int:
        """Keeps a persisted entry; returns its offset."""
        if not self._ledgers or self._ledgers[-1] != entry.ledger:
            self._ledgers.append(entry.ledger)
            self._starts.append(len(self.entries))
        self.entries.append(entry)
        return len(self.entries) - 1

    def abandon(self) -> None:
        """Closes the open ledger: reservations that were not stored are lost, the next append opens a new one."""
        self._open = None

    def through(self, ledger: int, entry: int) -> int:
        """How many persisted entries have a position <= (ledger, entry)."""
        place = bisect_right(self._ledgers, ledger) - 1
        if place < 0:
            return 0
        end = self._starts[place + 1] if place + 1 < len(self._starts) else len(self.entries)
        if self._ledgers[place] < ledger:
            return end
        return min(end, self._starts[place] + entry + 1)

    def offset(self, ledger: int, entry: int) -> int | None:
        """Offset of exactly that position; None when there is no such entry."""
        offset = self.through(ledger, entry) - 1
        if offset < 0:
            return None
        found = self.entries[offset]
        return offset if (found.ledger, found.entry) == (ledger, entry) else None

    def spans(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Offsets first..last as (ledger, first entry, last entry), one for each ledger they touch."""
        parts = []
        while first <= last:
            begin = self.entries[first]
            place = bisect_right(self._starts, first)
            end = min(last, self._starts[place] - 1 if place < len(self._starts) else last)
            parts.append((begin.ledger, begin.entry, begin.entry + end - first))
            first = end + 1
        return parts
