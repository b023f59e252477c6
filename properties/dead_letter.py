"""Redelivery into the dead-letter topic: negative acknowledgements in rounds, batches, several consumers."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from properties.machine import DISRUPTION, FamilyMachine

NACK_DELAY_MS = 100
QUIET_MS = 8 * NACK_DELAY_MS
"""Enough for what was rejected to come again and to be copied, a reconnect included."""


class DeadLetterMachine(FamilyMachine):
    family = "dead_letter"

    @initialize(
        limit=st.integers(1, 3),
        batched=st.sampled_from([False, False, True]),
        queue=st.sampled_from([1, 10, 1_000]),
        disruption=DISRUPTION,
    )
    def start(self, limit: int, batched: bool, queue: int, disruption: int) -> None:
        self.begin(disruption)
        self.limit = limit
        self.queue = queue
        self.second = False
        self.subscribe("c0", "a")
        batching = {"batching": {"max_messages": 3, "max_delay_ms": 3}} if batched else {}
        self.produce("p0", **batching)
        self.burst(2)

    def subscribe(self, handle: str, client: str) -> None:
        self.do(
            "consumer",
            handle,
            client=client,
            topic=0,
            subscription="s",
            type="shared",
            queue=self.queue,
            nack_delay_ms=NACK_DELAY_MS,
            dead_letter={"max_redeliver": self.limit},
        )

    def busy(self) -> None:
        self.do("send", "p0", wait=False, tag="busy", size=20)

    @rule(count=st.integers(1, 4))
    def burst(self, count: int) -> None:
        for _ in range(count):
            self.do("send", "p0", wait=False, tag="poison", size=20, key="k", properties={"colour": "blue"})
        self.do("flush", "p0")

    @rule(
        handle=st.sampled_from(["c0", "c1"]),
        count=st.integers(1, 6),
        then=st.sampled_from(["nack", "nack", "nack", "ack"]),
    )
    def consume(self, handle: str, count: int, then: str) -> None:
        if handle == "c1" and not self.second:
            handle = "c0"
        self.do("consume", handle, count=count, then=then, timeout_ms=60)

    @rule(rounds=st.integers(1, 4))
    def reject_for_rounds(self, rounds: int) -> None:
        for _ in range(rounds):
            self.do("consume", "c0", count=5, then="nack", timeout_ms=NACK_DELAY_MS * 2)

    @rule()
    def second_consumer(self) -> None:
        if not self.second:
            self.second = True
            self.subscribe("c1", "b")

    @rule()
    def leave_and_come_back(self) -> None:
        """Once no dead letter is under way: there a close makes pulsar-client (C++ 4.2.0) read freed memory and die.

        What the receipt of a copy calls back after the consumer was closed keeps a reference to an id long gone.
        """
        if self.softened:
            return
        self.do("settle", "", ms=QUIET_MS)
        self.do("close", "c0")
        self.subscribe("c0", "a")
