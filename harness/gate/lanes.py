"""Carries work out side by side, as far as a world has lanes for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed


def together(lanes: int, work: Sequence[Callable[[], None]], abandon: Callable[[], None]) -> None:
    """Do all of it, at most ``lanes`` pieces at a time; one lane means one after another in this thread.

    The first exception ends it: what has not begun is dropped, what is under way is waited for. Ctrl-C does not wait
    for the plans to run out: ``abandon`` has to make the calls that are still open end. No lane is left when this
    returns or raises, so nothing changes under whoever adds up the results.
    """
    if lanes == 1:
        for piece in work:
            piece()
        return
    pool = ThreadPoolExecutor(max_workers=lanes, thread_name_prefix="starquake-lane")
    try:
        for future in as_completed([pool.submit(piece) for piece in work]):
            future.result()
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        abandon()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
