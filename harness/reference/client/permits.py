"""How many messages the broker may push (clauses PERMIT-02 to PERMIT-11, FLOW-03, FLOW-04)."""

from __future__ import annotations


class Permits:
    """``queue`` is the receiver queue size, at least 1. Counts are messages, members of a batch singly."""

    def __init__(self, queue: int) -> None:
        self.queue = queue
        self.owed = 0

    def subscribed(self) -> int:
        """The grant that opens a connection: the whole queue, whatever was owed before (PERMIT-02, PERMIT-07)."""
        self.owed = 0
        return self.queue

    def give_back(self, count: int) -> int:
        """``count`` messages no longer take room; the grant to send now, 0 for none (PERMIT-04)."""
        self.owed += count
        if self.owed < self.threshold():
            return 0
        grant, self.owed = self.owed, 0
        return grant

    def threshold(self) -> int:
        """Owed permits that are worth a FLOW; never 0, because a grant is positive (PERMIT-11)."""
        return max(1, self.queue // 2)
