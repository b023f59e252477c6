"""Gives every fact of a run its place: one index and one clock for all layers and all threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from harness.history.event import Event


class EventSink(Protocol):
    """What stores events: a ``HistoryWriter``, or a list in a test."""

    def append(self, event: Event, /) -> None: ...


class Recorder:
    """Records events of one run. Safe to call from any thread; index order is the order of the calls.

    ``clock`` returns nanoseconds. The event is stored first, then shown to the observers, both inside the lock, so
    everybody sees events in index order. An observer must not record: that would show others the events out of order.
    """

    def __init__(
        self,
        run: str,
        clock: Callable[[], int],
        observers: Iterable[Callable[[Event], object]] = (),
        writer: EventSink | None = None,
    ) -> None:
        self.run = run
        self._clock = clock
        self._observers = tuple(observers)
        self._writer = writer
        self._next = 0
        self._lock = threading.RLock()
        self._telling = False

    def record(self, **columns: Any) -> Event:
        """Record one fact; ``columns`` are those of Event without run, index and time_ns."""
        with self._lock:
            if self._telling:
                raise RuntimeError("an observer of a history must not record into it")
            event = Event(run=self.run, index=self._next, time_ns=self._clock(), **columns)
            self._next += 1
            if self._writer is not None:
                self._writer.append(event)
            self._telling = True
            try:
                for observer in self._observers:
                    observer(event)
            finally:
                self._telling = False
            return event

    def now(self) -> int:
        """The clock of the events, for facts that took a while to learn."""
        return self._clock()

    @property
    def count(self) -> int:
        """How many events were recorded."""
        return self._next
