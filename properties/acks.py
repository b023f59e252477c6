"""Acknowledgement: individual in any order, cumulative, inside batches, and what comes back after a reconnect."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from properties.machine import DISRUPTION, FamilyMachine


class AcksMachine(FamilyMachine):
    family = "acks"

    @initialize(
        type_=st.sampled_from(["exclusive", "exclusive", "failover", "shared"]),
        batched=st.booleans(),
        batch_index_ack=st.booleans(),
        queue=st.sampled_from([1, 5, 1_000]),
        disruption=DISRUPTION,
    )
    def start(self, type_: str, batched: bool, batch_index_ack: bool, queue: int, disruption: int) -> None:
        self.begin(disruption)
        self.type = type_
        self.options: dict[str, object] = {"queue": queue}
        if batch_index_ack and "batch_index_ack" in self.world.client.capabilities:
            self.options["batch_index_ack"] = True
        self.subscribe()
        batching = {"batching": {"max_messages": 4, "max_delay_ms": 3}} if batched else {}
        self.produce("p0", **batching)
        self.burst(4)

    def subscribe(self) -> None:
        self.do("consumer", "c0", topic=0, subscription="s", type=self.type, **self.options)

    def busy(self) -> None:
        self.do("send", "p0", wait=False, tag="busy", size=30)

    @rule(count=st.integers(1, 9))
    def burst(self, count: int) -> None:
        for _ in range(count):
            self.do("send", "p0", wait=False, tag="burst", size=30)
        self.do("flush", "p0")

    @rule(count=st.integers(1, 6))
    def receive(self, count: int) -> None:
        self.do("consume", "c0", count=count, then="hold", timeout_ms=80)

    @rule(place=st.integers(0, 20))
    def ack(self, place: int) -> None:
        self.do("ack", "c0", message=place)

    @rule(place=st.integers(0, 20))
    def ack_cumulative(self, place: int) -> None:
        self.do("ack_cumulative", "c0", message=place)

    @rule(count=st.integers(1, 5), then=st.sampled_from(["ack", "ack_cumulative"]))
    def consume(self, count: int, then: str) -> None:
        self.do("consume", "c0", count=count, then=then, timeout_ms=80)

    @rule(settle=st.sampled_from([0, 150]))
    def reconnect(self, settle: int) -> None:
        """Before or after the acknowledgements were flushed."""
        if settle:
            self.do("settle", "", ms=settle)
        self.inject("cut")

    @rule()
    def leave_and_come_back(self) -> None:
        self.do("close", "c0")
        self.subscribe()

    @rule(place=st.integers(0, 10))
    def seek(self, place: int) -> None:
        self.do("seek", "c0", message=place)

    @rule()
    def intruder(self) -> None:
        """Another client asks for the same subscription; with Exclusive it must be refused while c0 is there."""
        self.do("consumer", "c1", client="b", topic=0, subscription="s", type=self.type, **self.options)
        self.do("consume", "c1", count=2, then="hold", timeout_ms=40)
        self.do("close", "c1")
