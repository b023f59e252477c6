"""Deadlines of a machine that reads no clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Timer:
    """One deadline; ``cancel`` makes it never fire."""

    __slots__ = ("action", "cancelled", "due")

    def __init__(self, due: int, action: Callable[[], None]) -> None:
        self.due = due
        self.action = action
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Timers:
    """Fires in order of due time (ns), then in order of setting."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = count()

    def set(self, due: int, action: Callable[[], None]) -> Timer:
        timer = Timer(due, action)
        heapq.heappush(self._heap, (due, next(self._order), timer))
        return timer

    def next_due(self) -> int | None:
        """Due time of the next timer that will fire."""
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: int) -> Timer | None:
        """Removes and returns the next timer with ``due <= now``."""
        due = self.next_due()
        if due is None or due > now:
            return None
        return heapq.heappop(self._heap)[2]

    def clear(self) -> None:
        self._heap.clear()
