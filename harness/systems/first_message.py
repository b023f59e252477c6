"""Whether a message goes through: an open port, or even CONNECTED, says little about a broker that is starting."""

from __future__ import annotations

import asyncio
import time

from harness.systems.handshake import PROTOCOL_VERSION, HandshakeFailed
from harness.wire.frame import Frame, FrameDecoder, WireError, command_name, encode
from harness.wire.message_id import Position
from harness.wire.pulsar_pb2 import (
    BaseCommand,
    CommandConnect,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandProducer,
    CommandSend,
    MessageMetadata,
)

READY_TOPIC = "persistent://public/default/starquake-ready"
"""Where the message goes that says whether a broker of ours is ready: no run uses that topic."""


async def send_one(host: str, port: int, topic: str, timeout: float) -> Position:
    """Store one small message on ``topic`` (its complete name) and return where it was stored.

    ``timeout`` in seconds for all of it. Raises ``HandshakeFailed`` with what the broker said instead.
    """
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                return await _Conversation(reader, writer).send(topic)
            finally:
                writer.close()
    except TimeoutError as error:
        raise HandshakeFailed(f"no message went through within {timeout:g} s") from error
    except OSError as error:
        raise HandshakeFailed(f"no connection: {error.strerror or error}") from error


class _Conversation:
    """One connection, one answer for each request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []

    async def send(self, topic: str) -> Position:
        connect = CommandConnect(client_version="starquake", protocol_version=PROTOCOL_VERSION)
        await self._ask(Frame(BaseCommand(type=BaseCommand.CONNECT, connect=connect)), BaseCommand.CONNECTED)
        lookup = CommandLookupTopic(topic=topic, request_id=1)
        found = await self._ask(
            Frame(BaseCommand(type=BaseCommand.LOOKUP, lookupTopic=lookup)), BaseCommand.LOOKUP_RESPONSE
        )
        if found.lookupTopicResponse.response == CommandLookupTopicResponse.Failed:
            raise HandshakeFailed(f"the lookup fails: {found.lookupTopicResponse.message}")
        producer = CommandProducer(topic=topic, producer_id=1, request_id=2)
        made = await self._ask(
            Frame(BaseCommand(type=BaseCommand.PRODUCER, producer=producer)), BaseCommand.PRODUCER_SUCCESS
        )
        # A name the broker chose is its own, so deduplication knows nothing of it.
        name = made.producer_success.producer_name
        metadata = MessageMetadata(producer_name=name, sequence_id=0, publish_time=time.time_ns() // 1_000_000)
        send = CommandSend(producer_id=1, sequence_id=0)
        receipt = await self._ask(
            Frame(BaseCommand(type=BaseCommand.SEND, send=send), metadata, b"ready?"), BaseCommand.SEND_RECEIPT
        )
        return Position.read(receipt.send_receipt.message_id)

    async def _ask(self, request: Frame, wanted: BaseCommand.Type) -> BaseCommand:
        self._writer.write(encode(request))
        while True:
            command = await self._next()
            if command.type == wanted:
                return command
            if command.type == BaseCommand.PING:
                continue
            if command.type == BaseCommand.ERROR:
                raise HandshakeFailed(f"{command_name(request.command)} is refused: {command.error.message}")
            if command.type == BaseCommand.SEND_ERROR:
                raise HandshakeFailed(f"SEND is refused: {command.send_error.message}")
            raise HandshakeFailed(f"the answer to {command_name(request.command)} was {command_name(command)}")

    async def _next(self) -> BaseCommand:
        while not self._frames:
            data = await self._reader.read(4096)
            if not data:
                raise HandshakeFailed("the connection was closed before a message went through")
            try:
                self._frames += self._decoder.feed(data)
            except WireError as error:
                raise HandshakeFailed(f"the answer is not of the Pulsar protocol: {error}") from error
        return self._frames.pop(0).command
