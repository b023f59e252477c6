"""The first exchange of the binary protocol: CONNECT, CONNECTED. An open port alone proves nothing."""

from __future__ import annotations

import asyncio

from harness.wire.frame import Frame, FrameDecoder, WireError, command_name, encode
from harness.wire.pulsar_pb2 import BaseCommand, CommandConnect, CommandConnected

# The protocol version of Pulsar 2.10 and later: a broker answers with the lower of the two.
PROTOCOL_VERSION = 19


class HandshakeFailed(Exception):
    """Nobody answered, or not as a Pulsar broker does. The message says which."""


async def handshake(host: str, port: int, timeout: float) -> CommandConnected:
    """Connect, say CONNECT, return the broker's CONNECTED, close. ``timeout`` in seconds for all of it."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                connect = CommandConnect(client_version="starquake", protocol_version=PROTOCOL_VERSION)
                writer.write(encode(Frame(BaseCommand(type=BaseCommand.CONNECT, connect=connect))))
                return await _answer(reader)
            finally:
                writer.close()
    except TimeoutError as error:
        raise HandshakeFailed(f"no answer to CONNECT within {timeout:g} s") from error
    except ConnectionResetError as error:
        raise HandshakeFailed("the connection was reset without an answer to CONNECT") from error
    except OSError as error:
        raise HandshakeFailed(f"no connection: {error.strerror or error}") from error
    except UnicodeError as error:
        # What the resolver says of a name that cannot be encoded.
        raise HandshakeFailed(f"no connection: {host!r} is no host name ({error})") from error


async def _answer(reader: asyncio.StreamReader) -> CommandConnected:
    decoder = FrameDecoder()
    begin = b""
    while data := await reader.read(4096):
        begin = (begin + data)[:16]
        try:
            frames = decoder.feed(data)
        except WireError as error:
            raise HandshakeFailed(f"the answer is not of the Pulsar protocol: it begins {begin!r}") from error
        for frame in frames:
            if frame.command.type == BaseCommand.CONNECTED:
                return frame.command.connected
            if frame.command.type == BaseCommand.ERROR:
                raise HandshakeFailed(f"the broker refuses: {frame.command.error.message}")
            raise HandshakeFailed(f"the answer to CONNECT was {command_name(frame.command)}")
    raise HandshakeFailed("the connection was closed without an answer to CONNECT")
