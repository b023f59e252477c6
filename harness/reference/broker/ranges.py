"""A set of integers as disjoint closed ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class IntRanges:
    """Adjacent ranges are joined."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __contains__(self, value: int) -> bool:
        return self.end_of(value) is not None

    def __len__(self) -> int:
        """How many integers are in the set."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def end_of(self, value: int) -> int | None:
        """Last integer of the range that holds ``value``; None when it is not in the set."""
        place = bisect_right(self._firsts, value) - 1
        if place >= 0 and self._lasts[place] >= value:
            return self._lasts[place]
        return None

    def add(self, first: int, last: int) -> None:
        """Adds every integer from ``first`` to ``last``."""
        begin = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        if begin < end:
            first = min(first, self._firsts[begin])
            last = max(last, self._lasts[end - 1])
        self._firsts[begin:end] = [first]
        self._lasts[begin:end] = [last]

    def remove_through(self, value: int) -> None:
        """Takes every integer <= ``value`` out."""
        gone = bisect_right(self._lasts, value)
        del self._firsts[:gone]
        del self._lasts[:gone]
        if self._firsts and self._firsts[0] <= value:
            self._firsts[0] = value + 1

    def all(self) -> list[tuple[int, int]]:
        return list(zip(self._firsts, self._lasts, strict=True))
