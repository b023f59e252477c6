"""Deduplication: ids in order, ids again, producers that come back under their name, links that break in between."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from properties.machine import DISRUPTION, FamilyMachine

FIRST_ID = 1


def has_sent(machine: FamilyMachine) -> bool:
    """Whether the plan has sent anything so far."""
    return machine.sent > 0


class DedupMachine(FamilyMachine):
    family = "dedup"

    def __init__(self) -> None:
        super().__init__()
        # From 1 up: pulsar-client for Python takes an id of 0 for none, and that one defect would hide the others.
        self.next_id = {"p0": FIRST_ID, "p1": 1_000}
        self.open: set[str] = set()

    @initialize(dedup=st.sampled_from([True, True, True, False]), chunking=st.booleans(), disruption=DISRUPTION)
    def start(self, dedup: bool, chunking: bool, disruption: int) -> None:
        self.begin(disruption, dedup=dedup)
        self.chunking = chunking
        self.do("consumer", "c0", topic=0, subscription="s", type="exclusive")
        self.register("p0")

    def register(self, handle: str) -> None:
        options = {"chunking": True} if self.chunking and handle == "p0" else {}
        self.do("producer", handle, topic=0, **options)
        self.open.add(handle)

    def number(self, handle: str, skip: int = 0) -> int:
        self.next_id[handle] += 1 + skip
        return self.next_id[handle] - 1

    def busy(self) -> None:
        for _ in range(2):
            self.do("send", "p0", wait=False, tag="busy", sequence_id=self.number("p0"))

    @rule(handle=st.sampled_from(["p0", "p0", "p1"]), skip=st.sampled_from([0, 0, 0, 3]), wait=st.booleans())
    def send(self, handle: str, skip: int, wait: bool) -> None:
        if handle not in self.open:
            self.register(handle)
        self.do("send", handle, wait=wait, tag="fresh", sequence_id=self.number(handle, skip))

    @rule(back=st.integers(1, 4))
    def send_again(self, back: int) -> None:
        """An id that was used before, with another payload: the broker must drop it, or store it with dedup off."""
        earlier = max(FIRST_ID, self.next_id["p0"] - back)
        self.do("send", "p0", tag="again", sequence_id=earlier)
        self.next_id["p0"] = max(self.next_id["p0"], earlier + 1)

    @rule(count=st.integers(2, 6))
    def burst_then_cut(self, count: int) -> None:
        for _ in range(count):
            self.do("send", "p0", wait=False, tag="burst", sequence_id=self.number("p0"))
        self.inject("cut")

    @rule()
    def send_large(self) -> None:
        if self.chunking:
            self.do("send", "p0", tag="large", size=150_000, sequence_id=self.number("p0"))

    @precondition(has_sent)
    @rule()
    def come_back(self) -> None:
        """Close the producer and register again under the same name; ids go on above the last."""
        self.do("close", "p0")
        self.register("p0")

    @rule(count=st.integers(1, 5))
    def consume(self, count: int) -> None:
        self.do("consume", "c0", count=count, then="ack", timeout_ms=60)
