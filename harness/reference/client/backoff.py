"""How long to wait before the next attempt to reattach (clauses BACK-01, BACK-02)."""

from __future__ import annotations


class Backoff:
    """Delays in nanoseconds that double from ``initial`` up to ``maximum``, without jitter.

    ``mandatory_stop``: an attempt happens before this much time has passed since the first failure, so that a message
    gets a last chance before its send timeout. None: no such attempt.
    """

    def __init__(self, initial: int, maximum: int, mandatory_stop: int | None = None) -> None:
        self.initial = initial
        self.maximum = maximum
        self.mandatory_stop = mandatory_stop
        self._next = initial
        self._first_failure: int | None = None
        self._stopped = False

    def next_delay(self, now: int) -> int:
        """The delay after one more failure at ``now``."""
        delay = self._next
        self._next = self.following(delay)
        if self._first_failure is None:
            self._first_failure = now
        if self.mandatory_stop is not None and not self._stopped:
            elapsed = now - self._first_failure
            if elapsed + delay > self.mandatory_stop:
                self._stopped = True
                delay = max(self.initial, self.mandatory_stop - elapsed)
        return delay

    def following(self, delay: int) -> int:
        """The delay after ``delay``."""
        return min(delay * 2, self.maximum)

    def succeeded(self) -> None:
        """Start again from ``initial`` at the next failure."""
        self._next = self.initial
        self._first_failure = None
        self._stopped = False
