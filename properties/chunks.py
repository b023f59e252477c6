"""Chunked messages: large and small from several producers, consumers that leave, links that break between pieces."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from properties.machine import DISRUPTION, FamilyMachine

LARGE = st.sampled_from([70_000, 130_000, 200_000])


class ChunksMachine(FamilyMachine):
    family = "chunks"

    @initialize(
        type_=st.sampled_from(["exclusive", "exclusive", "shared", "failover"]),
        compression=st.sampled_from(["", "", "zstd", "lz4"]),
        queue=st.sampled_from([1, 4, 100]),
        expire_ms=st.sampled_from([60_000, 1_500]),
        disruption=DISRUPTION,
    )
    def start(self, type_: str, compression: str, queue: int, expire_ms: int, disruption: int) -> None:
        self.begin(disruption)
        self.type = type_
        self.second = False
        self.consumer_options: dict[str, Any] = {"queue": queue}
        if "chunk_expiry" in self.world.client.capabilities:
            self.consumer_options["expire_chunks_ms"] = expire_ms
        self.do("consumer", "c0", topic=0, subscription="s", type=type_, **self.consumer_options)
        options = {"compression": compression} if compression else {}
        self.produce("p0", chunking=True, **options)
        self.produce("p1", chunking=True)

    def busy(self) -> None:
        self.do("send", "p0", wait=False, tag="busy", size=140_000)

    @rule(handle=st.sampled_from(["p0", "p1"]), size=LARGE, wait=st.booleans(), compressible=st.booleans())
    def send_large(self, handle: str, size: int, wait: bool, compressible: bool) -> None:
        self.do("send", handle, wait=wait, tag="large", size=size, compressible=compressible)

    @rule(handle=st.sampled_from(["p0", "p1"]))
    def send_small(self, handle: str) -> None:
        self.do("send", handle, tag="small", size=50)

    @rule()
    def interleave(self) -> None:
        self.do("send", "p0", wait=False, tag="left", size=130_000)
        self.do("send", "p1", wait=False, tag="right", size=130_000)

    @rule(size=LARGE, limit=st.integers(1_000, 150_000))
    def break_between_pieces(self, size: int, limit: int) -> None:
        """The link ends after so many bytes of a chunked message."""
        self.inject("toxic", toxic="limit_data", stream="upstream", bytes=limit)
        self.do("send", "p0", wait=False, tag="broken", size=size)
        self.do("settle", "", ms=30)
        self.inject("untoxic", toxic="limit_data", stream="upstream")

    @rule(count=st.integers(1, 5), then=st.sampled_from(["ack", "ack", "hold", "ack_cumulative"]))
    def consume(self, count: int, then: str) -> None:
        if then == "ack_cumulative" and self.type == "shared":
            then = "ack"
        self.do("consume", "c0", count=count, then=then, timeout_ms=80)

    @rule()
    def leave_and_come_back(self) -> None:
        self.do("close", "c0")
        self.do("consumer", "c0", topic=0, subscription="s", type=self.type, **self.consumer_options)

    @rule()
    def leave_it_half_done(self) -> None:
        """A producer that goes away after the first piece left: its message can never be completed."""
        self.inject("toxic", toxic="limit_data", stream="upstream", bytes=90_000)
        self.do("send", "p1", wait=False, tag="orphan", size=200_000)
        self.do("settle", "", ms=20)
        self.do("close", "p1")
        self.inject("untoxic", toxic="limit_data", stream="upstream")
        self.produce("p1", chunking=True)

    @rule(count=st.integers(1, 4))
    def second_consumer(self, count: int) -> None:
        """On Shared every chunked message must reach one of the two as a whole."""
        if self.type != "shared":
            return
        if not self.second:
            self.second = True
            self.do("consumer", "c1", client="b", topic=0, subscription="s", type="shared", **self.consumer_options)
        self.do("consume", "c1", count=count, then="ack", timeout_ms=80)
