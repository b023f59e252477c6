"""A tap that dials its upstream through TLS: the client speaks plain, frames are recorded, ends are passed on."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Certificates, make_certificates
from tests.test_tap import bench, lookup_answer, ping, reset, send

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls(certificates: Certificates) -> dict[str, ssl.SSLContext]:
    return {"served": certificates.serving(), "dialled": certificates.trusting()}


async def test_what_is_recorded_and_forwarded_is_plain_on_both_sides(tls):
    async with bench(rewrite_to="self", **tls) as it:
        reader, writer = await it.connect()
        # Before the TLS handshake is over.
        writer.write(send(b"hello", 7))
        far_reader, far_writer = await it.upstream.streams.get()
        assert far_writer.get_extra_info("ssl_object") is not None
        assert await far_reader.readexactly(len(send(b"hello", 7))) == send(b"hello", 7)
        far_writer.write(lookup_answer("pulsar+ssl://10.1.2.3:6651"))
        expected = lookup_answer("pulsar://{}:{}".format(*it.address))
        assert await reader.readexactly(len(expected)) == expected
        assert it.kinds() == ["CONNECTION_OPEN", "SEND", "LOOKUP_RESPONSE"]


async def test_big_streams_come_back_whole_although_the_reader_is_slow(tls):
    block = b"".join(send(bytes([n % 256]) * 100_000, n) for n in range(20))
    rounds = 8
    async with bench(echo=True, **tls) as it:
        reader, writer = await it.connect()

        async def push() -> None:
            for _ in range(rounds):
                writer.write(block)
                await writer.drain()

        pushing = asyncio.create_task(push())
        got = bytearray()
        for _ in range(10):
            await asyncio.sleep(0.01)
            got += await reader.read(1000)
            for connection in it.tap.connections:
                for half in (connection.client, connection.broker):
                    assert half._transport is not None
                    assert half._transport.get_write_buffer_size() < 2 * 1024 * 1024
        got += await reader.readexactly(len(block) * rounds - len(got))
        await pushing
        assert bytes(got) == block * rounds


async def test_the_end_of_the_client_reaches_the_broker_after_all_it_said(tls, caplog):
    async with bench(**tls) as it:
        reader, writer = await it.connect()
        far_reader, _ = await it.upstream.streams.get()
        data = b"".join(send(b"x" * 10_000, n) for n in range(100))
        writer.write(data)
        writer.write_eof()
        assert await far_reader.read() == data
        assert await reader.read() == b""
        assert (await it.until("CONNECTION_CLOSED")).extra["by"] == "client"
        assert it.kinds()[1:] == ["SEND"] * 100 + ["CONNECTION_CLOSED"]
    assert not caplog.records, "nothing that an event loop finds odd"


async def test_the_end_of_a_client_whose_dial_is_under_way_is_passed_on(tls):
    async with bench(**tls) as it:
        reader, writer = await it.connect()
        writer.write(ping())
        writer.write_eof()
        far_reader, _ = await it.upstream.streams.get()
        assert await far_reader.read() == ping()
        assert await reader.read() == b""


async def test_the_end_of_the_broker_reaches_the_client_after_all_it_said(tls, caplog):
    async with bench(**tls) as it:
        reader, _ = await it.connect()
        _, far_writer = await it.upstream.streams.get()
        data = b"".join(send(b"x" * 10_000, n) for n in range(100))
        far_writer.write(data)
        far_writer.close()
        assert await reader.read() == data
        assert (await it.until("CONNECTION_CLOSED")).extra["by"] == "broker"
    assert not caplog.records


@pytest.mark.parametrize("who", ["client", "broker"])
async def test_a_reset_is_passed_on_as_a_reset(tls, who: str):
    async with bench(**tls) as it:
        near, far = await it.connect(), await it.upstream.streams.get()
        dying, (reader, writer) = (near, far) if who == "client" else (far, near)
        writer.write(ping())
        await it.until("PING")
        reset(dying[1])
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        assert (await it.until("CONNECTION_CLOSED")).extra["by"] == who


async def test_dropped_connections_are_reset_on_both_sides(tls):
    async with bench(**tls) as it:
        reader, writer = await it.connect()
        far_reader, _ = await it.upstream.streams.get()
        writer.write(ping())
        await it.until("PING")
        it.tap.drop_connections()
        assert (await it.until("CONNECTION_CLOSED")).extra["by"] == "tap"
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        assert await far_reader.readexactly(len(ping())) == ping()
        with pytest.raises(ConnectionResetError):
            await far_reader.read(1)


async def test_an_upstream_that_is_not_trusted_is_a_reset_and_gets_nothing(certificates: Certificates):
    stranger = ssl.create_default_context(cafile=certificates.stranger)
    async with bench(served=certificates.serving(), dialled=stranger) as it:
        reader, writer = await it.connect()
        writer.write(ping())
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        assert it.kinds()[0] == "CONNECTION_OPEN"
        assert (await it.until("CONNECTION_CLOSED")).extra["by"] == "broker"
        assert it.upstream.streams.empty()


async def test_a_plain_upstream_dialled_with_tls_is_a_reset(certificates: Certificates):
    async with bench(dialled=certificates.trusting()) as it:
        reader, _ = await it.connect()
        _, far_writer = await it.upstream.streams.get()
        far_writer.write(b"no TLS here")
        with pytest.raises(ConnectionResetError):
            await reader.read(1)


def test_the_certificate_must_be_for_the_host_that_is_dialled(tmp_path: Path):
    made = make_certificates(tmp_path, "elsewhere.example")

    async def through() -> None:
        async with bench(served=made.serving(), dialled=made.trusting()) as it:
            reader, _ = await it.connect()
            with pytest.raises(ConnectionResetError):
                await reader.read(1)

    asyncio.run(through())
