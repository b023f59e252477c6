"""The reference broker can be killed, stopped, paused and started again, as a process of its own could."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from harness.reference.broker.config import BrokerConfig
from harness.setup_error import SetupError
from harness.systems.first_message import send_one
from harness.systems.handshake import HandshakeFailed, handshake
from harness.systems.reference import ReferenceSystem
from harness.wire.frame import Frame, encode
from harness.wire.message_id import Position
from harness.wire.pulsar_pb2 import BaseCommand, CommandPing, CommandSend, MessageMetadata
from harness.worlds.plan import Fault, Operation, Plan, ScheduledFault
from harness.worlds.resolve import world_for
from harness.worlds.world import run_plan
from tests.raw_client import TOPIC
from tests.test_reference_system import Peer


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.fixture
async def system():
    made = ReferenceSystem()
    made.address = await made.start()
    yield made
    await made.stop()


def positions(system: ReferenceSystem) -> list[Position]:
    return [Position(entry.ledger, entry.entry) for entry in system.entries(TOPIC)]


@pytest.mark.anyio
async def test_what_was_confirmed_survives_a_kill_and_nobody_is_served_meanwhile(system):
    address, process = system.address, system.process
    first = await send_one(address.host, address.port, TOPIC, 5)
    peer = await Peer.dial(address)
    await process.kill()
    assert not process.running
    assert not system.alive()
    assert await peer.ended()
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(address.host, address.port)
    await process.kill()
    await process.start_again()
    assert process.running
    assert system.alive()
    second = await send_one(address.host, address.port, TOPIC, 5)
    assert second.ledger > first.ledger
    assert positions(system) == [first, second]


async def send_slowly(system: ReferenceSystem) -> Peer:
    """A message that is not stored yet; the connection it was sent on."""
    peer = await Peer.dial(system.address)
    peer.say(BaseCommand.PRODUCER, "producer", topic=TOPIC, producer_id=1, request_id=1)
    assert await peer.hears() == "PRODUCER_SUCCESS"
    send = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=0))
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    peer.writer.write(encode(Frame(send, metadata, b"x")))
    peer.say(BaseCommand.PING, "ping")
    assert await peer.hears() == "PONG"
    assert positions(system) == []
    return peer


@pytest.mark.parametrize(("word", "stored"), [("kill", 0), ("terminate", 1)])
@pytest.mark.anyio
async def test_a_write_under_way_is_lost_by_a_kill_and_finished_by_a_stop(word: str, stored: int):
    system = ReferenceSystem(BrokerConfig(storage_latency=3600 * 1_000_000_000))
    system.address = await system.start()
    try:
        peer = await send_slowly(system)
        await getattr(system.process, word)()
        heard = []
        while (name := await last_words(peer)) is not None:
            heard.append(name)
        assert heard == ["SEND_RECEIPT"] * stored
        await system.process.start_again()
        assert len(positions(system)) == stored
    finally:
        await system.stop()


async def last_words(peer: Peer) -> str | None:
    try:
        return await peer.hears()
    except ConnectionResetError:
        return None


@pytest.mark.anyio
async def test_a_pause_keeps_connections_and_answers_nothing_until_its_end(system):
    address, process = system.address, system.process
    peer = await Peer.dial(address)
    await process.pause()
    await process.pause()
    assert process.running
    assert system.alive()
    for _ in range(3):
        peer.writer.write(encode(Frame(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))))
    # The kernel takes connections for a process that is stopped.
    late = asyncio.create_task(handshake(address.host, address.port, 5))
    gone = await Peer.dial(address, connect=False)
    gone.writer.transport.abort()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(peer.reader.read(1), 0.2)
    assert not late.done()
    await process.resume()
    await process.resume()
    assert [await peer.hears() for _ in range(3)] == ["PONG"] * 3
    assert (await late).max_message_size == 5 * 1024 * 1024
    assert not await closed_soon(peer)


async def closed_soon(peer: Peer) -> bool:
    try:
        return await asyncio.wait_for(peer.reader.read(1), 0.05) == b""
    except TimeoutError:
        return False


@pytest.mark.anyio
async def test_deadlines_wait_while_it_is_paused():
    system = ReferenceSystem(BrokerConfig(storage_latency=50_000_000))
    system.address = await system.start()
    try:
        peer = await send_slowly(system)
        await system.process.pause()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.reader.read(1), 0.2)
        assert positions(system) == []
        await system.process.resume()
        assert await peer.hears() == "SEND_RECEIPT"
    finally:
        await system.stop()


@pytest.mark.parametrize("word", ["kill", "terminate"])
@pytest.mark.anyio
async def test_what_is_paused_can_be_ended(system, word: str):
    peer = await Peer.dial(system.address)
    await system.process.pause()
    await getattr(system.process, word)()
    assert await peer.ended()
    await system.process.start_again()
    assert (await handshake(system.address.host, system.address.port, 5)).server_version


@pytest.mark.anyio
async def test_settings_hold_from_the_next_start_on(system):
    address, process = system.address, system.process
    await process.start_again({"ledger_max_entries": 1, "max_message_size": 1000})
    assert (await handshake(address.host, address.port, 5)).max_message_size == 1000
    sent = [await send_one(address.host, address.port, TOPIC, 5) for _ in range(3)]
    assert [position.entry for position in sent] == [0, 0, 0]
    await process.start_again({"ledger_max_entries": 2})
    assert (await handshake(address.host, address.port, 5)).max_message_size == 1000
    sent = [await send_one(address.host, address.port, TOPIC, 5) for _ in range(3)]
    assert [position.entry for position in sent] == [0, 1, 0]


@pytest.mark.anyio
async def test_a_setting_it_has_not_is_refused_before_anything_happens(system):
    with pytest.raises(SetupError, match="no setting ledger_max_minutes"):
        await system.process.start_again({"ledger_max_minutes": 1})
    assert "ledger_max_minutes" not in system.process.changeable
    assert system.alive()


@pytest.mark.anyio
async def test_it_can_be_stopped_in_every_state():
    for words in ([], ["kill"], ["pause"], ["pause", "terminate"], ["kill", "start_again"]):
        system = ReferenceSystem()
        address = await system.start()
        for word in words:
            await getattr(system.process, word)()
        await system.stop()
        await system.stop()
        assert not system.alive()
        with pytest.raises(HandshakeFailed, match="no connection"):
            await handshake(address.host, address.port, 5)


@pytest.mark.anyio
async def test_a_stop_in_good_order_does_not_wait_for_who_does_not_read(system, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness.systems.reference_server.LAST_WORDS_S", 0.1)
    peer = await Peer.dial(system.address)
    peer.writer.transport.pause_reading()
    begun = time.monotonic()
    await system.process.terminate()
    assert time.monotonic() - begun < 2
    peer.writer.transport.abort()


@pytest.mark.anyio
async def test_a_broker_that_was_not_started_has_no_process():
    assert ReferenceSystem().process is None


def test_a_world_says_what_the_broker_could_not_do_and_leaves_it_up(tmp_path: Path):
    """A limit by size is none that the reference broker has: nothing happens to it."""
    sends = [Operation(verb="send", handle="p", params={"tag": str(number)}) for number in range(4)]
    plan = Plan(
        operations=[Operation(verb="producer", handle="p"), *sends],
        schedule=[
            ScheduledFault(before=2, fault=Fault(kind="ledger_rollover", attributes={"megabytes": 1})),
            ScheduledFault(before=3, fault=Fault(kind="ledger_rollover", attributes={"entries": 1})),
        ],
    )
    world = world_for("reference", "reference", tmp_path)
    world.start()
    try:
        outcome = run_plan(world, plan)
    finally:
        world.stop()
    assert not outcome.error
    kinds = [event.kind for event in outcome.history if event.layer == "fault" and event.kind != "dedup"]
    assert kinds[:4] == [
        "not_injected",
        "ledger_rollover",
        "broker_stop",
        "broker_ready",
    ]
