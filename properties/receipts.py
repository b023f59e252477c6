"""Ordered receipts: bursts, batches, codecs and flushes on several producers, over links that break in between."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from properties.machine import DISRUPTION, FamilyMachine

PRODUCER_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "batching": st.fixed_dictionaries(
            {"max_messages": st.sampled_from([1, 2, 5, 100]), "max_delay_ms": st.sampled_from([1, 5, 20])},
            optional={"max_bytes": st.sampled_from([200, 4_000])},
        ),
        "compression": st.sampled_from(["lz4", "zlib", "zstd", "snappy"]),
    },
)


class ReceiptsMachine(FamilyMachine):
    family = "receipts"

    @initialize(options=PRODUCER_OPTIONS, disruption=DISRUPTION)
    def start(self, options: dict[str, Any], disruption: int) -> None:
        self.begin(disruption)
        self.producers = ["p0"]
        self.do("consumer", "c0", topic=0, subscription="s", type="exclusive")
        self.produce("p0", **options)

    def busy(self) -> None:
        for handle in self.producers:
            self.do("send", handle, wait=False, tag="busy", size=40)

    @rule(options=PRODUCER_OPTIONS)
    def another_producer(self, options: dict[str, Any]) -> None:
        if len(self.producers) < 3:
            handle = f"p{len(self.producers)}"
            self.producers.append(handle)
            self.produce(handle, **options)

    @rule(which=st.integers(0, 2), size=st.sampled_from([0, 10, 300, 20_000]), compressible=st.booleans())
    def send(self, which: int, size: int, compressible: bool) -> None:
        handle = self.producers[which % len(self.producers)]
        self.do("send", handle, tag="one", size=size, compressible=compressible, key=f"k{which}")

    @rule(which=st.integers(0, 2), count=st.integers(2, 12), size=st.sampled_from([0, 80, 900]))
    def burst(self, which: int, count: int, size: int) -> None:
        handle = self.producers[which % len(self.producers)]
        for _ in range(count):
            self.do("send", handle, wait=False, tag="burst", size=size)

    @rule(which=st.integers(0, 2))
    def flush(self, which: int) -> None:
        self.do("flush", self.producers[which % len(self.producers)])

    @rule(count=st.integers(1, 8))
    def consume(self, count: int) -> None:
        self.do("consume", "c0", count=count, then="ack", timeout_ms=60)

    @rule(which=st.integers(0, 2))
    def come_back(self, which: int) -> None:
        handle = self.producers[which % len(self.producers)]
        self.do("close", handle)
        self.produce(handle)
