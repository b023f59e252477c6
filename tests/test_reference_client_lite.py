"""The reference client over real sockets, mostly against a real pulsar-lite process, through a tap that can cut."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from harness.clients.client import ClientError
from harness.clients.reference import ReferenceClient
from harness.faults.tap import Tap
from harness.reference.client.config import ClientConfig
from harness.systems.lite import LiteSystem
from harness.systems.reference import ReferenceSystem
from harness.systems.system import System

SECONDS = 10.0


class Frames:
    """Names of the frames the tap saw, by direction."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def record(self, **columns: Any) -> None:
        self.seen.append((columns["kind"], columns.get("extra", {}).get("direction", "")))

    def count(self, kind: str) -> int:
        return sum(name == kind for name, _ in self.seen)


class Bench:
    """One client, one broker, one tap between them."""

    def __init__(self, client: ReferenceClient, tap: Tap, frames: Frames) -> None:
        self.client = client
        self.tap = tap
        self.frames = frames

    async def ask(self, op: str, **parameters: Any) -> dict[str, Any]:
        return await self.client.request({"op": op, **parameters}, SECONDS)

    async def producer(self, **options: Any) -> None:
        await self.ask("producer", **{"client": "a", "producer": "p", "topic": "t", "name": "p", **options})

    async def consumer(self, handle: str = "c", **options: Any) -> None:
        given = {"client": "a", "consumer": handle, "topic": "t", "subscription": "s", "name": handle}
        await self.ask("consumer", **{**given, "type": "exclusive", "initial_position": "earliest", **options})

    async def send(self, payload: bytes, **options: Any) -> dict[str, Any]:
        return await self.ask("send", producer="p", payload=base64.b64encode(payload).decode(), **options)

    async def receive(self, handle: str = "c", timeout_ms: int = 5000) -> dict[str, Any]:
        message: dict[str, Any] | None = (await self.ask("receive", consumer=handle, timeout_ms=timeout_ms))["message"]
        assert message is not None
        message["payload"] = base64.b64decode(message["payload"])
        return message

    async def payloads(self, count: int, handle: str = "c") -> list[bytes]:
        return [(await self.receive(handle))["payload"] for _ in range(count)]

    async def is_empty(self, handle: str = "c") -> bool:
        return (await self.ask("receive", consumer=handle, timeout_ms=300))["message"] is None


def play(
    scenario: Callable[[Bench], Awaitable[None]],
    config: ClientConfig | None = None,
    system: type[System] = LiteSystem,
) -> None:
    async def run() -> None:
        broker, frames = system(), Frames()
        client = ReferenceClient(config or ClientConfig())
        address = await broker.start()
        tap = Tap("client", (address.host, address.port), frames, "self")
        try:
            host, port = await tap.start()
            await client.start()
            bench = Bench(client, tap, frames)
            await bench.ask("client", client="a", url=f"pulsar://{host}:{port}", operation_timeout_ms=5000)
            await scenario(bench)
        finally:
            await client.stop()
            await tap.stop()
            await broker.stop()

    asyncio.run(run())


def test_produce_and_consume():
    async def scenario(bench: Bench) -> None:
        await bench.producer()
        sent = [(await bench.send(b"%d" % n, key="k", properties={"n": str(n)}))["message_id"] for n in range(5)]
        await bench.consumer()
        got = [await bench.receive() for _ in range(5)]
        assert [message["payload"] for message in got] == [b"0", b"1", b"2", b"3", b"4"]
        assert [message["message_id"] for message in got] == sent
        assert [message["properties"] for message in got] == [{"n": str(n)} for n in range(5)]
        await bench.ask("close", client="a")

    play(scenario)


@pytest.mark.parametrize("compression", [None, "lz4", "zlib", "zstd", "snappy"])
def test_batches(compression: str | None):
    async def scenario(bench: Bench) -> None:
        batching = {"max_messages": 4, "max_bytes": 10_000, "max_delay_ms": 20}
        await bench.producer(batching=batching, compression=compression)
        answers = await asyncio.gather(*(bench.send(b"%d" % n) for n in range(8)))
        assert [answer["message_id"]["batch_index"] for answer in answers] == [0, 1, 2, 3] * 2
        assert bench.frames.count("SEND") == 2
        await bench.consumer()
        assert await bench.payloads(8) == [b"%d" % n for n in range(8)]

    play(scenario)


def test_chunked_message():
    async def scenario(bench: Bench) -> None:
        payload = bytes(range(256)) * 4 * 1024 * 11
        await bench.producer(chunking=True)
        sent = (await bench.send(payload))["message_id"]
        assert bench.frames.count("SEND") == 3
        await bench.consumer()
        message = await bench.receive()
        assert message["payload"] == payload
        assert message["message_id"] == sent

    play(scenario)


def test_cumulative_ack_covers_what_came_before():
    async def scenario(bench: Bench) -> None:
        await bench.producer()
        for n in range(5):
            await bench.send(b"%d" % n)
        await bench.consumer()
        await bench.payloads(5)
        await bench.ask("ack_cumulative", consumer="c", ref=3)
        await bench.ask("close", consumer="c")
        await bench.consumer("d")
        assert await bench.payloads(1, "d") == [b"4"]
        assert await bench.is_empty("d")

    play(scenario)


def test_confirmed_ack():
    async def scenario(bench: Bench) -> None:
        await bench.producer()
        await bench.send(b"x")
        await bench.consumer()
        await bench.receive()
        assert await bench.ask("ack", consumer="c", ref=0) == {"confirmed": True}

    play(scenario, ClientConfig(ack_receipt=True))


def test_nack_brings_the_message_again():
    async def scenario(bench: Bench) -> None:
        await bench.producer()
        await bench.send(b"x")
        await bench.consumer(type="shared", nack_delay_ms=100)
        assert (await bench.receive())["redelivery_count"] == 0
        await bench.ask("nack", consumer="c", ref=0)
        again = await bench.receive()
        assert (again["payload"], again["redelivery_count"], again["ref"]) == (b"x", 1, 1)

    play(scenario)


def test_producer_goes_on_after_a_cut():
    async def scenario(bench: Bench) -> None:
        await bench.producer()
        await bench.send(b"before")
        bench.tap.drop_connections()
        await asyncio.gather(*(bench.send(b"%d" % n) for n in range(3)))
        assert bench.frames.count("CONNECT") == 2
        await bench.consumer()
        assert await bench.payloads(4) == [b"before", b"0", b"1", b"2"]

    play(scenario)


def test_consumer_goes_on_after_a_cut():
    """On the reference broker: pulsar-lite 0.2.0 never lets go of a consumer whose connection was reset, so nobody can
    subscribe again there (it then closes the connection instead of answering ConsumerBusy).
    """

    async def scenario(bench: Bench) -> None:
        await bench.producer()
        await bench.send(b"before")
        await bench.consumer()
        await bench.receive()
        await bench.ask("ack", consumer="c", ref=0)
        bench.tap.drop_connections()
        await bench.send(b"after")
        assert await bench.payloads(1) == [b"after"]
        assert await bench.is_empty()
        assert bench.frames.count("CONNECT") == 2

    play(scenario, system=ReferenceSystem)


def test_errors_of_the_contract():
    async def scenario(bench: Bench) -> None:
        await bench.producer()
        with pytest.raises(ClientError, match="too_big") as caught:
            await bench.send(b"x" * 6_000_000)
        assert caught.value.phase == "fail"
        await bench.ask("close", producer="p")
        with pytest.raises(ClientError, match="already_closed"):
            await bench.send(b"x")

    play(scenario)
