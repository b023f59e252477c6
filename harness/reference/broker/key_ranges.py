"""Which consumer of a Key_Shared subscription owns a hash slot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left

from harness.reference.broker.breach import Refusal
from harness.reference.broker.consumer import Consumer

SLOTS = 65536


class KeyRanges(ABC):
    """Ownership of the slots 0..65535."""

    @abstractmethod
    def add(self, consumer: Consumer) -> None:
        """Raises ``Refusal`` ConsumerAssignError when the consumer's own ranges cannot be given to it."""

    @abstractmethod
    def remove(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def owner(self, slot: int) -> Consumer | None: ...


class SplitRanges(KeyRanges):
    """The broker divides: a new consumer takes the lower half of the widest range, a leaver's goes to a neighbour."""

    def __init__(self) -> None:
        self._lasts: list[int] = []
        self._owners: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        if not self._lasts:
            self._lasts, self._owners = [SLOTS - 1], [consumer]
            return
        firsts = [0, *(last + 1 for last in self._lasts[:-1])]
        widths = [last - first for first, last in zip(firsts, self._lasts, strict=True)]
        place = widths.index(max(widths))
        self._lasts.insert(place, (firsts[place] + self._lasts[place]) // 2)
        self._owners.insert(place, consumer)

    def remove(self, consumer: Consumer) -> None:
        place = self._owners.index(consumer)
        del self._owners[place]
        if place < len(self._owners):
            del self._lasts[place]
        elif place:
            del self._lasts[place - 1]
        else:
            self._lasts.clear()

    def owner(self, slot: int) -> Consumer | None:
        return self._owners[bisect_left(self._lasts, slot)] if self._lasts else None


class StickyRanges(KeyRanges):
    """The consumers say which ranges they want; nobody owns what nobody wanted."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, Consumer]] = []

    def add(self, consumer: Consumer) -> None:
        wanted = [(part.start, part.end) for part in consumer.request.keySharedMeta.hashRanges]
        if not wanted:
            raise Refusal("ConsumerAssignError", "a sticky consumer needs hash ranges")
        for start, end in wanted:
            if not 0 <= start <= end < SLOTS:
                raise Refusal("ConsumerAssignError", f"bad range {start}..{end}")
            if any(start <= last and first <= end for first, last, _ in self._ranges):
                raise Refusal("ConsumerAssignError", f"range {start}..{end} is taken")
        self._ranges += [(start, end, consumer) for start, end in wanted]

    def remove(self, consumer: Consumer) -> None:
        self._ranges = [owned for owned in self._ranges if owned[2] is not consumer]

    def owner(self, slot: int) -> Consumer | None:
        return next((consumer for first, last, consumer in self._ranges if first <= slot <= last), None)
