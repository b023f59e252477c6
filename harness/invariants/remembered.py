"""Acknowledgements a broker had to take, and when a cursor that moved had to be on disk (MARKDEL-04)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from harness.invariants.faults import Interruptions
from harness.invariants.sessions import Session

SETTLE_NS = 1_000_000_000
"""A second: how long a broker that is not under stress may take to act on an ACK it has got."""


@dataclass
class Remembered:
    """An acknowledgement that reached the broker side through a subscribed session."""

    session: Session
    index: int
    time_ns: int
    times: int = 1

    def arrived(self, work: Interruptions) -> bool:
        """Whether a broker at work had a second for it, or could take its time, before the session was lost."""
        session = self.session
        return session.live or not session.lost or work.worked(self.time_ns, session.ended_ns) >= SETTLE_NS

    def settled_by(self, moment_ns: int, gone_ns: int | None, work: Interruptions) -> bool:
        """Whether a working broker had to know it at ``moment_ns``.

        Either it had a second with the connection still up, or the consumer was closed properly (``gone_ns``).
        """
        if self.arrived(work) and work.worked(self.time_ns, moment_ns) >= SETTLE_NS:
            return True
        session = self.session
        return not session.live and not session.lost and gone_ns is not None and self.time_ns < gone_ns <= moment_ns

    def before(self, index: int) -> bool:
        """Whether it belongs to the time before that fault: a connection that is older than it ends with it."""
        return self.session.opened < index


CURSOR_FLUSH_NS = 60_000_000_000
"""A dirty cursor is written at the latest after this time (MARKDEL-04)."""

CURSOR_RATE_NS = 1_500_000_000
"""A cursor is written at most once a second, so the first change that comes a second (and a half, for the clocks) after
another writes both (MARKDEL-04)."""


def written(time_ns: int, changes: Sequence[Remembered], killed_ns: int, work: Interruptions) -> bool:
    """Whether what a cursor was at ``time_ns`` had to be on disk when the broker was killed.

    ``changes``: the acks of the subscription that moved it, in order.
    """
    if work.worked(time_ns, killed_ns) >= CURSOR_FLUSH_NS + SETTLE_NS:
        return True
    first = bisect_left(changes, time_ns + CURSOR_RATE_NS, key=lambda change: change.time_ns)
    for place in range(first, len(changes)):
        change = changes[place]
        if work.worked(change.time_ns, killed_ns) < SETTLE_NS:
            return False
        if change.arrived(work):
            return True
    return False
