"""Systems start when they answer their protocol, and say plainly why they do not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.setup_error import SetupError
from harness.systems.external import ExternalSystem, parse_address
from harness.systems.handshake import handshake
from harness.systems.lite import LiteSystem
from harness.systems.resolve import resolve
from harness.systems.system import CAPABILITIES, Address, UnknownSystem

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


async def test_lite_answers_listens_on_the_loopback_only_and_leaves_nothing():
    system = LiteSystem()
    assert not system.alive()
    address = await system.start()
    try:
        assert system.alive()
        assert system.version == "0.2.0"
        assert system.capabilities <= CAPABILITIES
        assert (await handshake(address.host, address.port, 5)).protocol_version > 0
        assert system._child is not None
        assert system._directory is not None
        process, directory = psutil.Process(system._child.pid), system._child.log.parent
        listening = [entry for entry in process.net_connections() if entry.status == psutil.CONN_LISTEN]
        assert [(entry.laddr.ip, entry.laddr.port) for entry in listening] == [("127.0.0.1", address.port)]
        assert directory.exists()
    finally:
        await system.stop()
    assert not system.alive()
    assert not directory.exists()
    await system.stop()
    address = await system.start()
    await system.stop()


async def test_lite_that_cannot_start_says_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "pulsar-lite"
    program.write_text("#!/bin/sh\necho no space left >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr("harness.systems.lite.lite_binary", lambda: program)
    system = LiteSystem()
    with pytest.raises(SetupError, match="status 3\nno space left"):
        await system.start()
    assert not system.alive()
    assert system.logs_tail() == "no space left"


async def test_an_external_broker_is_reached_and_not_stopped():
    lite = LiteSystem()
    address = await lite.start()
    try:
        system = ExternalSystem(address.service_url)
        assert await system.start() == address
        assert system.alive()
        assert system.version != "unknown"
        assert (system.product, system.capabilities) == ("lite", lite.capabilities)
        await system.stop()
        assert lite.alive()
    finally:
        await lite.stop()


@contextlib.asynccontextmanager
async def port_that_says(words: bytes, close: bool) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(words)
        if close:
            writer.close()
        kept.append(writer)

    kept: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.mark.parametrize(
    ("words", "close", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True, "HTTP port"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", True, "not of the Pulsar protocol"),
        (b"", True, "closed without an answer"),
        (b"", False, "no answer to CONNECT"),
        (b"\0\0\0\x09\0\0\0\x05\x08\x12\x92\x01\x00", False, "PING"),
    ],
)
async def test_what_is_no_broker_is_a_setup_error(
    words: bytes, close: bool, said: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("harness.systems.external.HANDSHAKE_TIMEOUT_S", 0.5)
    async with port_that_says(words, close) as port:
        with pytest.raises(SetupError, match=said):
            await ExternalSystem(f"pulsar://127.0.0.1:{port}").start()


async def test_a_port_nobody_listens_on():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(SetupError, match="no connection"):
            await ExternalSystem(f"pulsar://127.0.0.1:{free.getsockname()[1]}").start()


def test_addresses():
    assert parse_address("pulsar://h") == Address("h", 6650)
    assert parse_address("pulsar://[::1]:7,http://h:8080") == Address("::1", 7, "http://h:8080")
    assert parse_address("pulsar://[::1]:7").service_url == "pulsar://[::1]:7"
    assert parse_address("pulsar+ssl://h,https://h:8443") == Address("h", 6651, "https://h:8443", tls=True)
    assert parse_address("pulsar+ssl://[::1]:7").service_url == "pulsar+ssl://[::1]:7"


def test_a_password_in_an_address_is_not_repeated():
    with pytest.raises(UnknownSystem) as refused:
        parse_address("pulsar://me:secret@h:6650")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "spec",
    ["pulsar://", "pulsar://h:x", "pulsar://h:99999", "pulsar://h:1/x", "pulsar://h:1,ftp://h", "pulsar://h,h:1"],
)
def test_addresses_that_are_none(spec: str):
    with pytest.raises(UnknownSystem):
        parse_address(spec)


@pytest.mark.parametrize("spec", ["rocketmq@5.3.2", "rocketmq://h:1"])
def test_planned_systems_say_so(spec: str):
    with pytest.raises(UnknownSystem, match="not available in this version"):
        resolve(spec)


def test_resolve():
    assert resolve("lite").name == "lite"
    assert resolve("pulsar@4.0.7").name == "pulsar@4.0.7"
    with pytest.raises(UnknownSystem, match="no version of Pulsar"):
        resolve("pulsar@4.0")
    assert resolve("pulsar://127.0.0.1:1").name == "pulsar://127.0.0.1:1"
    with pytest.raises(UnknownSystem, match="no system 'light'"):
        resolve("light")


async def test_stopped_twice_at_once():
    system = LiteSystem()
    await system.start()
    await asyncio.gather(system.stop(), system.stop())
    assert not system.alive()
