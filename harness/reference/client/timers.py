"""Deadlines of a machine, in a fixed order: by time, then by who asked first."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timer:
    """One deadline; ``cancel`` is safe at any time."""

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    @property
    def pending(self) -> bool:
        """False once it went off or was cancelled."""
        return self._action is not None

    def cancel(self) -> None:
        """Never go off."""
        self._action = None

    def fire(self) -> None:
        """Run the action, once."""
        action, self._action = self._action, None
        if action is not None:
            action()


class Timers:
    """A heap of timers. ``when`` and ``now`` are nanoseconds on the caller's clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._asked = 0

    def at(self, when: int, action: Callable[[], None]) -> Timer:
        """Run ``action`` once when ``when`` is reached."""
        timer = Timer(action)
        self._asked += 1
        heapq.heappush(self._heap, (when, self._asked, timer))
        return timer

    def next_deadline(self) -> int | None:
        """When the earliest pending timer is due."""
        while self._heap and not self._heap[0][2].pending:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def fire_due(self, now: int) -> None:
        """Run everything due at ``now``, also what these actions add for this very moment."""
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            heapq.heappop(self._heap)[2].fire()
