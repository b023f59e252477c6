"""Real Toxiproxy: each fault does what it says, and trouble with the server is called by its name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.faults.toxics import TOXICS, BadToxic, checked
from harness.faults.toxiproxy import Link, Toxiproxy, ToxiproxyDied, ToxiproxyError

DEADLINE = 10.0

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@contextlib.asynccontextmanager
async def link_to_echo() -> AsyncIterator[tuple[Toxiproxy, Link]]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    toxiproxy = Toxiproxy()
    await toxiproxy.start()
    try:
        host, port = server.sockets[0].getsockname()[:2]
        async with asyncio.timeout(DEADLINE * 2):
            yield toxiproxy, await toxiproxy.proxy("link-a", f"{host}:{port}")
    finally:
        await toxiproxy.stop()
        server.close()


class Peer:
    """A client of the link."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial(cls, link: Link) -> Peer:
        return cls(*await asyncio.open_connection(*link.listen))

    async def echo(self, data: bytes = b"x") -> float:
        """Seconds until the data is back."""
        begin = time.monotonic()
        self.writer.write(data)
        assert await self.reader.readexactly(len(data)) == data
        return time.monotonic() - begin

    async def ended(self) -> bool:
        """Waits for the end of the connection; whether it was a reset."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionResetError:
            return True
        return False


async def test_bytes_pass_and_the_server_is_ours_alone():
    async with link_to_echo() as (toxiproxy, link):
        assert toxiproxy.alive()
        assert (toxiproxy.version or "").startswith("2.12.")
        assert link.listen[0] == "127.0.0.1"
        await (await Peer.dial(link)).echo(b"hello" * 10_000)
    assert not toxiproxy.alive()
    await toxiproxy.stop()


async def test_two_servers_in_one_process_and_an_http_proxy_in_the_environment(monkeypatch: pytest.MonkeyPatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with link_to_echo() as (_, first), link_to_echo() as (_, second):
        await first.add_toxic("latency", "upstream", {"latency": 80})
        assert await second.toxics() == {}
        assert await (await Peer.dial(first)).echo() >= 0.08
        assert await (await Peer.dial(second)).echo() < 0.08


async def test_cut_loses_connections_and_takes_new_ones_right_away():
    async with link_to_echo() as (_, link):
        peers = [await Peer.dial(link) for _ in range(3)]
        for peer in peers:
            await peer.echo()
        await link.add_toxic("latency", "upstream", {"latency": 1})
        await link.cut()
        await asyncio.gather(*(peer.ended() for peer in peers))
        await (await Peer.dial(link)).echo()
        assert list(await link.toxics()) == ["latency_upstream"]


async def test_refuse_until_restore_on_the_same_port():
    async with link_to_echo() as (_, link):
        peer = await Peer.dial(link)
        await peer.echo()
        await link.refuse()
        await peer.ended()
        with pytest.raises(ConnectionRefusedError):
            await Peer.dial(link)
        await link.cut()
        with pytest.raises(ConnectionRefusedError):
            await Peer.dial(link)
        await link.restore()
        await (await Peer.dial(link)).echo()


async def test_reset_heals_one_link_or_all():
    async with link_to_echo() as (toxiproxy, link):
        other = await toxiproxy.proxy("link-b", link.upstream)
        for each in (link, other):
            await each.add_toxic("latency", "downstream", {"latency": 500})
            await each.refuse()
        await link.reset()
        assert await link.toxics() == {}
        assert await (await Peer.dial(link)).echo() < 0.4
        assert other.refusing
        await toxiproxy.reset()
        assert not other.refusing
        assert await (await Peer.dial(other)).echo() < 0.4


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
async def test_each_toxic_bites_and_stops_biting(stream: str):
    async with link_to_echo() as (_, link):
        peer = await Peer.dial(link)
        assert await peer.echo() < 0.1

        await link.add_toxic("latency", stream, {"latency": 120})
        assert await peer.echo() >= 0.12
        await link.add_toxic("latency", stream, {"latency": 30})
        assert 0.03 <= await peer.echo() < 0.12
        await link.remove_toxics("latency", stream)

        await link.add_toxic("bandwidth", stream, {"rate": 100})
        assert await peer.echo(b"x" * 20_000) >= 0.15
        await link.remove_toxics("bandwidth", stream)

        await link.add_toxic("slicer", stream, {"average_size": 100, "size_variation": 10, "delay": 10_000})
        assert await peer.echo(b"x" * 1_000) >= 0.08
        await link.remove_toxics("slicer", stream)
        assert await peer.echo(b"x" * 1_000) < 0.08

        await link.add_toxic("timeout", stream, {"timeout": 0})
        peer.writer.write(b"swallowed")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.reader.read(1), 0.2)
        await link.remove_toxics("timeout", stream)
        await peer.ended()

        peer = await Peer.dial(link)
        await link.add_toxic("limit_data", stream, {"bytes": 10})
        peer.writer.write(b"y" * 11)
        await peer.ended()
        await link.remove_toxics("limit_data", stream)

        await link.add_toxic("reset_peer", stream, {"timeout": 0})
        peer = await Peer.dial(link)
        peer.writer.write(b"z")
        assert await peer.ended() is True
        await link.remove_toxics("reset_peer", stream)

        await link.add_toxic("slow_close", "downstream", {"delay": 150})
        peer = await Peer.dial(link)
        await peer.echo()
        begin = time.monotonic()
        peer.writer.write_eof()
        await peer.ended()
        assert time.monotonic() - begin >= 0.15
        await link.remove_toxics("slow_close", "")
        assert await link.toxics() == {}


@pytest.mark.parametrize(
    ("kind", "stream", "attributes"),
    [
        ("latensy", "upstream", {}),
        ("latency", "sideways", {"latency": 1}),
        ("latency", "", {"latency": 1}),
        ("latency", "upstream", {"latancy": 1}),
        ("latency", "upstream", {"latency": 1.5}),
        ("latency", "upstream", {"latency": True}),
        ("latency", "upstream", {"latency": -1}),
        ("slicer", "upstream", {"delay": 1}),
        ("slicer", "upstream", {"average_size": 5, "size_variation": 5}),
    ],
)
def test_what_the_server_would_ignore_is_refused(kind: str, stream: str, attributes: dict[str, Any]):
    with pytest.raises(BadToxic):
        checked(kind, stream, attributes)


async def test_the_server_understands_every_attribute_we_know():
    async with link_to_echo() as (_, link):
        for kind, known in TOXICS.items():
            wanted = {name: 7 + at for at, name in enumerate(reversed(known))}
            await link.add_toxic(kind, "upstream", wanted)
            assert (await link.toxics())[f"{kind}_upstream"] == (kind, "upstream", wanted)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_death_of_the_server_has_a_name(number: signal.Signals):
    async with link_to_echo() as (toxiproxy, link):
        assert toxiproxy._child is not None
        os.kill(toxiproxy._child.pid, number)
        async with asyncio.timeout(DEADLINE):
            while toxiproxy.alive():
                await asyncio.sleep(0.002)
        with pytest.raises(ToxiproxyDied):
            toxiproxy.check()
        with pytest.raises(ToxiproxyDied):
            await link.cut()
        with pytest.raises(ToxiproxyDied):
            await toxiproxy.proxy("b", "127.0.0.1:1")


async def test_names_that_could_not_be_addressed_and_names_taken():
    async with link_to_echo() as (toxiproxy, link):
        for name in ("a/b", "", "a b"):
            with pytest.raises(ToxiproxyError):
                await toxiproxy.proxy(name, link.upstream)
        with pytest.raises(ToxiproxyError):
            await toxiproxy.proxy("link-a", link.upstream)
        assert toxiproxy.alive()
