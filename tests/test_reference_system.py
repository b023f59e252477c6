"""The reference broker as a system, over real sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest

from harness.reference.broker.config import BrokerConfig
from harness.reference.broker.lookup import LookupService
from harness.reference.broker.parts import BrokerParts
from harness.setup_error import SetupError
from harness.systems.reference import ReferenceSystem
from harness.systems.reference_server import ReferenceServer
from harness.wire.frame import Frame, FrameDecoder, command_name, encode
from harness.wire.pulsar_pb2 import BaseCommand
from tests.raw_client import TOPIC


class Peer:
    """One real connection that speaks frames."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.decoder = FrameDecoder()
        self.waiting = []

    @classmethod
    async def dial(cls, address, *, connect=True):
        peer = cls(*await asyncio.open_connection(address.host, address.port))
        if connect:
            peer.say(BaseCommand.CONNECT, "connect", client_version="raw", protocol_version=20)
            assert await peer.hears() == "CONNECTED"
        return peer

    def say(self, kind, body, **fields):
        command = BaseCommand(type=kind)
        getattr(command, body).SetInParent()
        for name, value in fields.items():
            setattr(getattr(command, body), name, value)
        self.writer.write(encode(Frame(command)))

    async def hears(self):
        """Name of the next frame; None at the end of the connection."""
        while not self.waiting:
            data = await asyncio.wait_for(self.reader.read(65536), 5)
            if not data:
                return None
            self.waiting += self.decoder.feed(data)
        self.last = self.waiting.pop(0).command
        return command_name(self.last)

    async def ended(self):
        """Whether the broker ended the connection, in order or by a reset."""
        try:
            return await self.hears() is None
        except ConnectionResetError:
            return True


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_start_serve_stop():
    async def scenario():
        system = ReferenceSystem()
        assert not system.alive()
        address = await system.start()
        assert address.host == "127.0.0.1"
        assert system.alive()
        peer = await Peer.dial(address)
        peer.say(BaseCommand.LOOKUP, "lookupTopic", topic=TOPIC, request_id=1)
        assert await peer.hears() == "LOOKUP_RESPONSE"
        assert peer.last.lookupTopicResponse.brokerServiceUrl == address.service_url
        await system.stop()
        assert await peer.ended()
        assert not system.alive()
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await asyncio.open_connection(address.host, address.port)
        await system.stop()

    run(scenario)


def test_misbehaviour_harms_only_its_own_connection():
    async def scenario():
        system = ReferenceSystem(BrokerConfig(max_message_size=1000, frame_padding=0))
        address = await system.start()
        good = await Peer.dial(address)
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, b"\x00\x00\x00\x04\x00\x00\x00\x00" * 9):
            bad = await Peer.dial(address, connect=False)
            bad.writer.write(data)
            assert await bad.ended()
        silent = await Peer.dial(address)
        silent.writer.write(b"\x00\x00")
        silent.writer.transport.abort()
        good.say(BaseCommand.PING, "ping")
        assert await good.hears() == "PONG"
        assert system.alive()
        await system.stop()

    run(scenario)


def test_views_and_switches():
    async def scenario():
        system = ReferenceSystem()
        address = await system.start()
        assert system.capabilities >= {"dedup", "dedup_switch", "cursor_view"}
        assert "partitions" not in system.capabilities
        peer = await Peer.dial(address)
        fields = {"topic": TOPIC, "subscription": "s", "subType": 0, "consumer_id": 1, "request_id": 1}
        peer.say(BaseCommand.SUBSCRIBE, "subscribe", **fields)
        assert await peer.hears() == "SUCCESS"
        assert system.cursor(TOPIC, "s").backlog == 0
        assert system.cursor(TOPIC, "none") is None
        assert system.entries(TOPIC) == []
        system.set_dedup(True)
        await system.stop()

    run(scenario)


def test_what_it_can_follows_its_configuration():
    partitioned = ReferenceSystem(BrokerConfig(partitions={TOPIC: 2}, batch_index_ack=False))
    assert "partitions" in partitioned.capabilities
    assert "batch_index_ack" not in partitioned.capabilities


def test_a_defect_of_the_machine_is_told():
    class Broken(LookupService):
        def lookup(self, connection, frame):
            raise ZeroDivisionError("on purpose")

    async def scenario():
        system = ReferenceSystem(parts=BrokerParts(lookup=Broken))
        peer = await Peer.dial(await system.start())
        peer.say(BaseCommand.LOOKUP, "lookupTopic", topic=TOPIC, request_id=1)
        assert await peer.ended()
        assert not system.alive()
        assert "on purpose" in system.logs_tail()
        await system.stop()

    run(scenario)


def test_calls_before_start_are_refused():
    with pytest.raises(SetupError):
        ReferenceSystem().set_dedup(True)


def test_a_port_in_use_is_an_error():
    async def scenario():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            server = ReferenceServer(port=taken.getsockname()[1])
            with pytest.raises(OSError, match="in use"):
                await server.start()

    run(scenario)
