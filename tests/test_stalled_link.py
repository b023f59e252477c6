"""A connection that stands still would keep Toxiproxy from ever changing its link again: the taps see to it."""

from __future__ import annotations

import asyncio

import pytest

from harness.faults.toxiproxy import Toxiproxy
from harness.systems.system import Address
from harness.worlds.lane import Lane

MORE_THAN_ALL_BUFFERS = 64_000_000


@pytest.mark.parametrize("reads", [True, False])
def test_a_stalled_link_can_be_changed_and_loses_nothing(reads: bool):
    received = 0

    async def run() -> set[str]:
        reading = asyncio.Event()
        everything = asyncio.Event()

        async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal received
            await reading.wait()
            while received < MORE_THAN_ALL_BUFFERS and (data := await reader.read(1 << 20)):
                received += len(data)
            everything.set()

        if reads:
            reading.set()
        server = await asyncio.start_server(upstream, "127.0.0.1", 0, limit=1024)
        toxiproxy = Toxiproxy()
        await toxiproxy.start()
        lane = Lane()
        try:
            host, port = server.sockets[0].getsockname()[:2]
            await lane.start("lane", Address(host, port), toxiproxy)
            chain = lane.chains["a"]
            _, writer = await asyncio.open_connection(host, int(chain.url.rpartition(":")[2]))
            # The taps only relay what is no frame.
            writer.write(b"\xff" * MORE_THAN_ALL_BUFFERS)
            await asyncio.sleep(0.5)
            await chain.change(chain.link.add_toxic("latency", "upstream", {"latency": 1}))
            toxics = set(await chain.link.toxics())
            reading.set()
            await asyncio.wait_for(everything.wait(), 60)
            return toxics
        finally:
            for each in lane.chains.values():
                await each.client_tap.stop()
                await each.broker_tap.stop()
            await toxiproxy.stop()
            server.close()

    assert asyncio.run(run()) == {"latency_upstream"}
    assert received == MORE_THAN_ALL_BUFFERS
