"""Who may be open beside whom: many sessions side by side, or one that has the broker for itself."""

from __future__ import annotations

import threading

from harness.worlds.broken import WorldStopped


class AloneGate:
    """Sessions enter before anything else and leave after everything else, each from a thread of its own.

    One that has to be alone waits until nobody is in; as long as such a one waits or is in, no other enters. So those
    that wait come in one after another, and nobody holds anything that another waits for.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = False
        self._waiting = 0
        self._closed = False

    def enter(self, *, alone: bool) -> None:
        """Wait for one's turn. Raises WorldStopped once the gate is closed; Ctrl-C while waiting leaves no trace."""
        with self._changed:
            self._waiting += alone
            try:
                self._changed.wait_for(lambda: self._closed or self._free(alone))
                if self._closed:
                    raise WorldStopped("the world is not running")
                self._inside += 1
                self._alone = alone
            finally:
                self._waiting -= alone
                self._changed.notify_all()

    def leave(self) -> None:
        """After ``enter`` succeeded, once."""
        with self._changed:
            self._inside -= 1
            self._alone = False
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody enters any more; those that wait are told."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _free(self, alone: bool) -> bool:
        return not self._inside if alone else not self._alone and not self._waiting
