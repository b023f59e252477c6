"""A real Pulsar as a system: it starts, is killed, paused, stopped and started again, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from harness.setup_error import SetupError
from harness.systems.first_message import send_one
from harness.systems.handshake import HandshakeFailed, handshake
from harness.systems.pulsar import standalone
from harness.systems.pulsar.jdk import find_java
from harness.systems.pulsar.settings import standalone_conf
from harness.systems.pulsar.standalone import Standalone
from harness.systems.pulsar.system import PulsarSystem
from harness.systems.system import CAPABILITIES, Address, UnknownSystem
from harness.wire.message_id import Position
from harness.wire.pulsar_pb2 import BaseCommand, CommandSubscribe
from tests.real_pulsar import real_pulsar_or_skip
from tests.test_reference_system import Peer

ROOT = Path(__file__).parent.parent
VERSION = "4.0.7"
TOPIC = "persistent://public/default/kept"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def installation():
    return real_pulsar_or_skip()


@pytest.fixture(scope="module")
async def system(installation, anyio_backend):
    """One broker for many tests; each leaves it running."""
    made = PulsarSystem(VERSION)
    made.address = await made.start()
    yield made
    await made.stop()


async def stored(address: Address, expected: int) -> list[Position]:
    """The first so many messages of the topic, as a new subscription gets them."""
    peer = await Peer.dial(address)
    fields = {"topic": TOPIC, "subscription": f"s{time.monotonic_ns()}", "consumer_id": 1}
    peer.say(
        BaseCommand.SUBSCRIBE,
        "subscribe",
        **fields,
        subType=CommandSubscribe.Exclusive,
        initialPosition=CommandSubscribe.Earliest,
        request_id=1,
    )
    # Permits for a subscription that is still being made are dropped.
    while await peer.hears() != "SUCCESS":
        pass
    peer.say(BaseCommand.FLOW, "flow", consumer_id=1, messagePermits=expected)
    found = []
    while len(found) < expected:
        name = await peer.hears()
        if name == "MESSAGE":
            found.append(Position.read(peer.last.message.message_id))
        else:
            assert name == "ACTIVE_CONSUMER_CHANGE"
    peer.writer.close()
    return found


@pytest.mark.anyio
async def test_what_it_is(system: PulsarSystem):
    address = system.address
    assert (system.name, system.product, system.version) == ("pulsar@4.0.7", "pulsar@4.0.7", "4.0.7")
    assert system.alive()
    assert system.capabilities == CAPABILITIES
    connected = await handshake(address.host, address.port, 5)
    assert connected.server_version.endswith("4.0.7")
    assert connected.max_message_size == 5 * 1024 * 1024
    assert await system.admin.version() == "4.0.7"
    said = await system.admin.configuration()
    ours = {name: value for name, value in system.configuration.items() if name in said}
    assert len(ours) > 20
    assert {name: said[name] for name in ours} == ours


@pytest.mark.anyio
async def test_all_its_ports_are_on_the_loopback(system: PulsarSystem):
    entries = psutil.Process(system.process.pid).net_connections()
    listening = {entry.laddr for entry in entries if entry.status == psutil.CONN_LISTEN}
    # Netty's sockets are of IPv6 and bound to the mapped address.
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert {address.port for address in listening} == {
        system.process.ports.broker,
        system.process.ports.bookie,
        system.process.ports.web,
    }


@pytest.mark.anyio
async def test_what_was_confirmed_survives_a_kill(system: PulsarSystem):
    address, process = system.address, system.process
    before = [await send_one(address.host, address.port, TOPIC, 5) for _ in range(3)]
    peer = await Peer.dial(address)
    await process.kill()
    assert not process.running
    assert not system.alive()
    assert await peer.ended()
    with pytest.raises(HandshakeFailed, match="no connection"):
        await handshake(address.host, address.port, 5)
    await process.start_again()
    assert system.alive()
    after = await send_one(address.host, address.port, TOPIC, 5)
    assert after.ledger > before[-1].ledger
    assert await stored(address, 4) == [*before, after]


@pytest.mark.anyio
async def test_a_pause_answers_nothing_and_loses_nothing(system: PulsarSystem):
    address, process = system.address, system.process
    peer = await Peer.dial(address)
    await process.pause()
    assert process.running
    assert system.alive()
    peer.say(BaseCommand.PING, "ping")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(peer.reader.read(1), 1)
    await process.resume()
    assert await peer.hears() == "PONG"
    assert (await send_one(address.host, address.port, TOPIC, 5)).entry >= 0
    peer.writer.close()


@pytest.mark.anyio
async def test_settings_hold_from_the_next_start_on(system: PulsarSystem):
    address, process = system.address, system.process
    await process.terminate()
    assert not process.running
    await process.start_again({"max_message_size": 100_000, "ledger_max_entries": 2})
    assert (await handshake(address.host, address.port, 5)).max_message_size == 100_000
    assert system.configuration["maxMessageSize"] == "100000"
    topic = "persistent://public/default/rolled"
    sent = [await send_one(address.host, address.port, topic, 5) for _ in range(5)]
    # A full ledger is closed after the answer to its last entry, so the next entry may still find it open.
    assert len({position.ledger for position in sent}) >= 2
    assert max(position.entry for position in sent) <= 2
    # No subscription needs the full ledgers, but who reads the topic at the end of a run does.
    await system.admin.unload_topic(topic)
    sent.append(await send_one(address.host, address.port, topic, 5))
    kept = await system.admin.internal_stats(topic)
    assert {ledger.ledger for ledger in kept.ledgers} >= {position.ledger for position in sent}
    assert kept.entries == len(sent)


@pytest.mark.anyio
async def test_a_port_that_was_taken_meanwhile(system: PulsarSystem):
    process, port = system.process, system.address.port
    await process.kill()
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(SetupError, match=rf"port {port} \(.*process {os.getpid()}\) is taken"),
    ):
        await process.start_again()
    assert not process.running
    await process.start_again()


@pytest.mark.anyio
async def test_a_paused_broker_is_stopped_and_its_data_goes(system: PulsarSystem):
    """The last of the shared broker."""
    process, directory = system.process, Path(system._directory.name)
    assert directory.exists()
    await process.pause()
    await asyncio.gather(system.stop(), system.stop())
    assert not psutil.pid_exists(process.pid)
    assert not directory.exists()
    assert not system.alive()
    assert system.logs_tail()
    assert (system.process, system.admin) == (None, None)


# --- a broker that does not start -------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_broken_configuration(installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(standalone, "standalone_conf", lambda *told: standalone_conf(*told) + "numIOThreads=many\n")
    with pytest.raises(SetupError, match=r'ended with status 1 at its start(.|\n)*For input string: "many"'):
        await Standalone(installation, find_java(), installation.archive(find_java()), tmp_path).start()


@pytest.mark.anyio
async def test_files_that_cannot_grow(installation, tmp_path: Path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, limit[1]))
    try:
        with pytest.raises(SetupError, match=r"there is no room for its data(.|\n)*Make room"):
            await Standalone(installation, find_java(), installation.archive(find_java()), tmp_path).start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.mark.anyio
async def test_no_directory_for_its_data(installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    system = PulsarSystem(VERSION)
    with pytest.raises(SetupError, match=r"no directory for the data of pulsar@4\.0\.7: No such file"):
        await system.start()
    await system.stop()


def test_versions_that_are_none():
    for text in ("4", "latest", "4.0.7-rc1", "2.7.0"):
        with pytest.raises(UnknownSystem):
            PulsarSystem(text)


# --- a harness that dies ----------------------------------------------------------------------------------------------

HARNESS = """
import asyncio
from harness.systems.pulsar.system import PulsarSystem
async def main():
    system = PulsarSystem("4.0.7")
    await system.start()
    await system.process.pause()
    print(system.process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_a_stopped_broker_does_not_outlive_a_killed_harness(installation, tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS], stdout=subprocess.PIPE, env=environment, text=True
    ) as harness:
        broker = psutil.Process(int(harness.stdout.readline()))
        assert broker.status() == psutil.STATUS_STOPPED
        harness.send_signal(signal.SIGKILL)
    broker.wait(5)
