"""Ctrl-C, SIGTERM and a terminal that is closed. Imports next to nothing: it has to be in force before all else."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

AGAIN_S = 0.02


def interruptible() -> None:
    """From now on each of the three ends a command in good order, as ``KeyboardInterrupt``; a second one at once.

    Python drops an exception that a signal raises inside a callback of its own (a weak reference that dies during an
    import, say): that one is raised again a moment later. Otherwise a Ctrl-C would now and then do nothing at all.
    """
    asked = False
    complain = sys.unraisablehook

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            # The children are killed by the reaper, which waits for the end of this process.
            os.write(2, b"\nstarquake: interrupted again: stopped at once, without a report\n")
            os._exit(128 + signal.SIGINT)
        asked = True
        raise KeyboardInterrupt

    def on_alarm(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def on_dropped(dropped: sys.UnraisableHookArgs) -> None:
        if asked and dropped.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            complain(dropped)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    signal.signal(signal.SIGALRM, on_alarm)
    sys.unraisablehook = on_dropped
