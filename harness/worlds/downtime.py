"""Whether the broker is away because the schedule says so: then nobody takes its silence for its end."""

from __future__ import annotations

from typing import Any

from harness.history.event import Event
from harness.worlds.observation import Clocked


class Downtime:
    """Told by whoever kills, stops or pauses the broker. ``count`` says how often that has begun."""

    def __init__(self) -> None:
        self.on_purpose = False
        self.count = 0

    def begin(self) -> None:
        """Before the broker is touched."""
        self.on_purpose = True
        self.count += 1

    def end(self) -> None:
        """Once it is ready again, or will never be."""
        self.on_purpose = False


class WhileUp:
    """Records what the broker said of itself only as long as no downtime begins: its answers may arrive after that,
    and would then stand behind what undid them."""

    def __init__(self, recorder: Clocked, downtime: Downtime) -> None:
        self._recorder = recorder
        self._downtime = downtime
        self._count = downtime.count

    @property
    def interrupted(self) -> bool:
        """Whether the broker was taken away since this was made."""
        return self._downtime.on_purpose or self._downtime.count != self._count

    def record(self, **columns: Any) -> Event:
        return Event() if self.interrupted else self._recorder.record(**columns)

    def now(self) -> int:
        return self._recorder.now()
