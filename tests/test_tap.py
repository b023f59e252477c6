"""The tap relays bytes exactly, records frames before forwarding them, and passes on how connections end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import ssl
import struct
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.faults.address_rewriter import AddressRewriter
from harness.faults.tap import Tap
from harness.history.event import Event
from harness.history.recorder import Recorder
from harness.wire import pulsar_pb2 as pb
from harness.wire.frame import Frame, FrameDecoder, encode

DEADLINE = 10.0


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


pytestmark = pytest.mark.anyio


def ping() -> bytes:
    return encode(Frame(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())))


def send(payload: bytes, sequence_id: int = 0) -> bytes:
    command = pb.BaseCommand(
        type=pb.BaseCommand.SEND, send=pb.CommandSend(producer_id=1, sequence_id=sequence_id, num_messages=1)
    )
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    return encode(Frame(command, metadata, payload))


def lookup_answer(url: str) -> bytes:
    answer = pb.CommandLookupTopicResponse(
        brokerServiceUrl=url, response=pb.CommandLookupTopicResponse.Connect, request_id=3, authoritative=True
    )
    return encode(Frame(pb.BaseCommand(type=pb.BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=answer)))


class Upstream:
    """A broker's place: what it got, and a way to answer. ``echo`` sends everything back."""

    def __init__(self, echo: bool = False, tls: ssl.SSLContext | None = None) -> None:
        self.echo = echo
        self.tls = tls
        self.streams: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.kept: list[object] = []
        self.server: asyncio.Server | None = None

    async def __aenter__(self) -> Upstream:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self.server is not None
        self.server.close()

    @property
    def address(self) -> tuple[str, int]:
        assert self.server is not None
        host, port = self.server.sockets[0].getsockname()[:2]
        return host, port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.kept.append(writer)
        self.streams.put_nowait((reader, writer))
        if self.echo:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
                if writer.can_write_eof():
                    writer.write_eof()
                else:
                    writer.close()


class Bench:
    """A tap in front of an upstream, and what it recorded."""

    def __init__(self, tap: Tap, upstream: Upstream, events: list[Event], address: tuple[str, int]) -> None:
        self.tap = tap
        self.upstream = upstream
        self.events = events
        self.address = address
        # A stream writer that nobody holds closes its connection.
        self.kept: list[object] = []

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        streams = await asyncio.open_connection(*self.address)
        self.kept.append(streams)
        return streams

    async def until(self, kind: str) -> Event:
        """The first event of that kind; the loop is given turns until it is there."""
        async with asyncio.timeout(DEADLINE):
            while True:
                for event in self.events:
                    if event.kind == kind:
                        return event
                await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def bench(
    *,
    echo: bool = False,
    rewrite_to: str | None = None,
    served: ssl.SSLContext | None = None,
    dialled: ssl.SSLContext | None = None,
):
    """A tap before an upstream; with ``served`` it speaks TLS, and ``dialled`` is what the tap dials it with."""
    events: list[Event] = []
    recorder = Recorder("run", clock=lambda: 0, observers=[events.append])
    async with Upstream(echo, served) as upstream:
        tap = Tap("client", upstream.address, recorder, rewrite_to, tls=dialled)
        address = await tap.start()
        try:
            async with asyncio.timeout(DEADLINE * 2):
                yield Bench(tap, upstream, events, address)
        finally:
            await tap.stop()
            assert tap.failure is None
            async with asyncio.timeout(DEADLINE):
                while tap.connections:
                    await asyncio.sleep(0.002)


def reset(writer: asyncio.StreamWriter) -> None:
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as duplicate:
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# --- bytes ---


async def test_frames_are_recorded_before_the_bytes_that_complete_them_arrive():
    async with bench() as it:
        reader, writer = await it.connect()
        far_reader, far_writer = await it.upstream.streams.get()
        data = send(b"hello", 7)
        writer.write(data[:-1])
        assert await far_reader.readexactly(len(data) - 1) == data[:-1]
        assert it.kinds() == ["CONNECTION_OPEN"]
        writer.write(data[-1:])
        assert await far_reader.readexactly(1) == data[-1:]
        assert it.kinds() == ["CONNECTION_OPEN", "SEND"]
        assert it.events[1].sequence_id == 7
        assert it.events[1].layer == "tap.client"
        assert it.events[1].connection == it.events[0].connection
        assert str(it.events[1].connection).startswith("client-")
        assert it.events[1].extra["direction"] == "to_broker"
        far_writer.write(ping())
        assert await reader.readexactly(len(ping())) == ping()
        assert it.events[2].kind == "PING"
        assert it.events[2].extra["direction"] == "to_client"


async def test_big_streams_both_ways_are_exact_under_back_pressure():
    block = b"".join(send(bytes([n % 256]) * 100_000, n) for n in range(20))
    rounds = 16
    async with bench(echo=True) as it:
        reader, writer = await it.connect()

        async def push() -> None:
            for _ in range(rounds):
                writer.write(block)
                await writer.drain()
            writer.write_eof()

        pushing = asyncio.create_task(push())
        got = bytearray()
        for _ in range(10):
            # A slow reader: buffers on the whole way fill up, and nothing may be lost or pile up without bound.
            await asyncio.sleep(0.01)
            got += await reader.read(1000)
            for connection in it.tap.connections:
                for half in (connection.client, connection.broker):
                    assert half._transport is not None
                    assert half._transport.get_write_buffer_size() < 2 * 1024 * 1024
        got += await reader.read()
        await pushing
        assert len(got) == len(block) * rounds
        assert bytes(got) == block * rounds
        assert it.kinds().count("SEND") == 2 * 20 * rounds


async def test_lookup_answers_name_the_tap_and_everything_else_is_untouched():
    async with bench(rewrite_to="self") as it:
        reader, _ = await it.connect()
        _, far_writer = await it.upstream.streams.get()
        far_writer.write(ping() + lookup_answer("pulsar://10.1.2.3:6650") + send(b"x"))
        expected = ping() + lookup_answer("pulsar://{}:{}".format(*it.address)) + send(b"x")
        assert await reader.readexactly(len(expected)) == expected
        # The history says what the broker said.
        assert "10.1.2.3" in str((await it.until("LOOKUP_RESPONSE")).extra)


async def test_a_tap_without_an_address_leaves_lookup_answers_alone():
    async with bench() as it:
        reader, _ = await it.connect()
        _, far_writer = await it.upstream.streams.get()
        data = lookup_answer("pulsar://10.1.2.3:6650")
        far_writer.write(data)
        assert await reader.readexactly(len(data)) == data


@pytest.mark.parametrize("rewrite_to", [None, "self"])
async def test_an_http_port_is_one_wire_error_and_then_only_bytes(rewrite_to: str | None):
    async with bench(rewrite_to=rewrite_to) as it:
        reader, writer = await it.connect()
        far_reader, far_writer = await it.upstream.streams.get()
        writer.write(send(b"good"))
        good = lookup_answer("pulsar://10.1.2.3:6650")
        junk = b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3
        far_writer.write(good + junk)
        far_writer.write(junk)
        far_writer.write_eof()
        if rewrite_to == "self":
            good = lookup_answer("pulsar://{}:{}".format(*it.address))
        assert await reader.read() == good + junk + junk
        assert it.kinds().count("WIRE_ERROR") == 1
        error = await it.until("WIRE_ERROR")
        assert error.error == "frame_too_large"
        assert error.extra["direction"] == "to_client"
        writer.write(ping())
        assert await far_reader.readexactly(len(send(b"good")) + len(ping())) == send(b"good") + ping()
        assert it.kinds()[-1] == "PING", "the other direction is still understood"


CHUNKS = st.lists(st.binary(max_size=200), max_size=8)
STREAMS = st.lists(
    st.one_of(st.just(ping()), st.binary(max_size=300).map(send), st.just(lookup_answer("pulsar://10.9.9.9:6650"))),
    max_size=6,
).map(b"".join)


def cut_up(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]


@given(frames=STREAMS, junk=st.binary(max_size=100), cuts=st.lists(st.integers(0, 5000), max_size=12))
@settings(max_examples=60, deadline=None)
def test_any_bytes_in_any_pieces_come_back_as_they_were(frames: bytes, junk: bytes, cuts: list[int]):
    data = frames + junk

    async def through() -> bytes:
        async with bench(echo=True) as it:
            reader, writer = await it.connect()
            for piece in cut_up(data, cuts):
                writer.write(piece)
                await asyncio.sleep(0)
            writer.write_eof()
            return await reader.read()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(through()) == data


@given(frames=STREAMS, tail=st.integers(0, 400), cuts=st.lists(st.integers(0, 5000), max_size=20))
def test_the_rewriter_changes_addresses_and_nothing_else_and_hardly_waits(frames: bytes, tail: int, cuts: list[int]):
    ours = "pulsar://127.0.0.1:1"
    data = frames[: len(frames) - min(tail, len(frames))]
    rewriter = AddressRewriter(ours)
    decoder = FrameDecoder()
    out = bytearray()
    complete: list[bytes] = []
    for piece in cut_up(data, cuts):
        for frame in decoder.feed(piece):
            assert frame.raw is not None
            named = frame.command.type == pb.BaseCommand.LOOKUP_RESPONSE
            complete.append(lookup_answer(ours) if named else frame.raw)
        out += rewriter.feed(piece)
        expected = b"".join(complete)
        assert bytes(out[: len(expected)]) == expected, "a complete frame waits for nothing"
    unfinished = data[len(data) - decoder.buffered :]
    assert bytes(out) + rewriter.flush() == b"".join(complete) + unfinished
    if unfinished[8:10] != lookup_answer(ours)[8:10] and len(unfinished) >= 10:
        assert bytes(out) == b"".join(complete) + unfinished


# --- how connections end ---


async def test_half_close_leaves_the_answer_its_way():
    async with bench() as it:
        reader, writer = await it.connect()
        far_reader, far_writer = await it.upstream.streams.get()
        writer.write(ping())
        writer.write_eof()
        assert await far_reader.read() == ping()
        far_writer.write(send(b"late"))
        far_writer.write_eof()
        assert await reader.read() == send(b"late")
        closed = await it.until("CONNECTION_CLOSED")
        assert closed.extra["by"] == "client"
        # The end of the client comes before whatever the broker does because of it.
        assert it.kinds() == ["CONNECTION_OPEN", "PING", "CONNECTION_CLOSED", "SEND"]


async def test_the_broker_closing_first_is_said_so():
    async with bench() as it:
        reader, writer = await it.connect()
        _, far_writer = await it.upstream.streams.get()
        far_writer.close()
        assert await reader.read() == b""
        writer.close()
        assert (await it.until("CONNECTION_CLOSED")).extra["by"] == "broker"


@pytest.mark.parametrize("who", ["client", "broker"])
async def test_a_reset_is_passed_on_as_a_reset(who: str):
    async with bench() as it:
        near, far = await it.connect(), await it.upstream.streams.get()
        dying, (reader, writer) = (near, far) if who == "client" else (far, near)
        writer.write(ping())
        await it.until("PING")
        reset(dying[1])
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        assert (await it.until("CONNECTION_CLOSED")).extra["by"] == who


async def test_a_refused_dial_reaches_the_client_as_a_reset():
    async with bench() as it:
        assert it.upstream.server is not None
        it.upstream.server.close()
        await it.upstream.server.wait_closed()
        reader, _ = await it.connect()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        assert it.kinds() == ["CONNECTION_OPEN", "CONNECTION_CLOSED"]
        assert it.events[1].extra["by"] == "broker"


async def test_dropped_connections_are_reset_on_both_sides_and_new_ones_are_taken():
    async with bench() as it:
        reader, _ = await it.connect()
        far_reader, _ = await it.upstream.streams.get()
        it.tap.drop_connections()
        assert (await it.until("CONNECTION_CLOSED")).extra["by"] == "tap"
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        with pytest.raises(ConnectionResetError):
            await far_reader.read(1)
        _, writer = await it.connect()
        far_reader, _ = await it.upstream.streams.get()
        writer.write(ping())
        assert await far_reader.readexactly(len(ping())) == ping()
        # Names are unique among all taps of the process, so only "another one" can be asked for.
        assert it.events[-1].connection not in (None, it.events[0].connection)


async def test_a_recorder_that_fails_ends_the_connections_and_is_kept():
    class Broken:
        def record(self, **columns: Any) -> object:
            if columns["kind"] == "PING":
                raise RuntimeError("disk full")
            return None

    async with Upstream() as upstream:
        tap = Tap("broker", upstream.address, Broken())
        address = await tap.start()
        reader, writer = await asyncio.open_connection(*address)
        far_reader, _ = await upstream.streams.get()
        writer.write(ping())
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), DEADLINE)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(far_reader.read(1), DEADLINE)
        assert str(tap.failure) == "disk full"
        await tap.stop()
