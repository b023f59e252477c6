"""A tap: a relay that records every frame before it hands on the bytes that complete it.

Bytes go through untouched and at once, partial frames too; only frames that name a broker's address are held and
rewritten, and only by a tap that was given an address to put there.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol, cast

from harness.faults.address_rewriter import AddressRewriter
from harness.faults.session_tracker import Direction, SessionTracker
from harness.history.event import Layer
from harness.wire.frame import FrameDecoder, WireError

Side = Literal["client", "broker"]
Party = Literal["client", "broker", "tap"]

MAX_FRAME_SIZE = 128 * 1024 * 1024
"""Bytes. Above what any broker is configured for, below what the first four letters of an HTTP message read as."""

DIAL_TIMEOUT_S = 30.0
LISTEN_BACKLOG = 256

_LAYERS: dict[Side, Layer] = {"client": "tap.client", "broker": "tap.broker"}
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Records(Protocol):
    """Where events go: a ``Recorder``, or what stands for one between two runs."""

    def record(self, **columns: Any) -> object: ...


class Tap:
    """Listens on 127.0.0.1 and dials ``upstream`` once for every connection it accepts.

    ``side`` says on which side of the faults it stands. ``rewrite_to``: ``None`` leaves broker addresses alone,
    ``"self"`` replaces them by this tap's own address so that no client gets past it, a ``pulsar://host:port`` by that.
    ``failure`` is the first error of the recorder (never of the peers); the connections are dropped then.

    ``tls``: the upstream is dialled through TLS, by its name in ``upstream``; who dials the tap speaks plain all the
    same. TLS knows no half-closed connection: the end of one side is passed on, after all that was sent before it, and
    ends both.
    """

    # Shared by all taps: a run may have several of one side, and a connection's name is unique in its run.
    _numbers = itertools.count(1)

    def __init__(
        self,
        side: Side,
        upstream: tuple[str, int],
        recorder: Records,
        rewrite_to: str | None = None,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.side = side
        self.layer = _LAYERS[side]
        self.upstream = upstream
        self.tls = tls
        self.recorder = recorder
        self.failure: Exception | None = None
        self.pressing = True
        self._rewrite_to = rewrite_to
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._address: tuple[str, int] | None = None

    @property
    def rewrite_url(self) -> str | None:
        """The address that replaces those of brokers."""
        if self._rewrite_to != "self":
            return self._rewrite_to
        assert self._address is not None, "the tap has not been started"
        return f"pulsar://{self._address[0]}:{self._address[1]}"

    async def start(self, port: int = 0) -> tuple[str, int]:
        """Listen; the address to dial. Port 0 is any free one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self, next(self._numbers)).client, "127.0.0.1", port, backlog=LISTEN_BACKLOG
        )
        host, bound = self._server.sockets[0].getsockname()[:2]
        self._address = (host, bound)
        return self._address

    async def stop(self) -> None:
        """Stop listening and reset what is open. Safe to call twice."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        self.drop_connections()
        await server.wait_closed()

    def drop_connections(self) -> None:
        """Reset every connection on both sides now; new ones are accepted right away."""
        for connection in list(self.connections):
            connection.end("tap")

    @contextlib.contextmanager
    def without_back_pressure(self) -> Iterator[None]:
        """Read on while a receiver is slower, and keep what it does not take: for moments, as memory is the bound.

        Toxiproxy 2.12 stops all connections of a proxy to change its toxics, waits for ever for one that cannot write,
        and is of no use for that proxy from then on.
        """
        self.pressing = False
        try:
            for connection in list(self.connections):
                connection.press(False)
            yield
        finally:
            self.pressing = True
            for connection in list(self.connections):
                connection.press(True)

    def failed(self, error: Exception) -> None:
        """Keep the recorder's error: a history with a hole in it must not be judged as if it were whole."""
        if self.failure is None:
            self.failure = error
            self.drop_connections()


class _Connection:
    """Two sockets and what is known of the frames between them."""

    def __init__(self, tap: Tap, number: int) -> None:
        self.client = _Half(self, "client", "to_broker")
        self.broker = _Half(self, "broker", "to_client", half_closes=tap.tls is None)
        self._tap = tap
        self._tracker = SessionTracker(f"{tap.side}-{number}", tap.layer)
        self._dial: asyncio.Task[None] | None = None
        self._first_eof: _Half | None = None
        self._ended = False
        self._told = False

    def accepted(self) -> None:
        self._tap.connections.add(self)
        self._record(self._tracker.opened)
        if self._ended:
            return
        if self._tap.rewrite_url is not None:
            self.broker.rewriter = AddressRewriter(self._tap.rewrite_url)
        self.client.pause_reading()
        self._dial = asyncio.get_running_loop().create_task(self._dial_upstream())

    async def _dial_upstream(self) -> None:
        host, port = self._tap.upstream
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(lambda: self.broker, host, port, ssl=self._tap.tls)
        except OSError:  # TimeoutError is one, and so is what a TLS handshake fails with
            # The client's connection was accepted already, so a refusal reaches it as a reset.
            self.end("broker")
            return
        if self._ended:
            self.broker.reset()
        else:
            self.client.resume_reading()

    def received(self, half: _Half, data: bytes) -> None:
        """Record the frames that ``data`` completes, then forward it.

        A later fault that is addressed to one frame decides between the two. It has to hold unfinished frames back,
        as the rewriter does for some, because bytes that were forwarded cannot be taken back.
        """
        if half.decoder is not None:
            waiting = half.decoder.buffered
            try:
                frames, error = half.decoder.feed(data), None
            except WireError as raised:
                frames, error = list(raised.frames), raised
            for frame in frames:
                self._record(self._tracker.frame, frame, half.direction)
            if error is not None:
                # Nothing says where a next frame would begin: from here on this direction is only relayed.
                half.decoder = None
                self._record(self._tracker.wire_error, error, half.direction)
                good = max(0, sum(len(frame.raw or b"") for frame in frames) - waiting)
                data = half.ready(data[:good]) + half.release() + data[good:]
            else:
                data = half.ready(data)
        if not self._ended:
            self.other(half).write(data)

    def eof(self, half: _Half) -> None:
        """One side has said all it wanted; the other may go on: a half-closed connection stays open."""
        other = self.other(half)
        other.write(half.release())
        if self._first_eof is None:
            self._first_eof = half
            if half.party == "client":
                # Before the broker can react: what it sends to another consumer because of this is recorded after it.
                self._tell(half.party)
            if half.half_closes:
                other.write_eof()
                return
        self._close()

    def _close(self) -> None:
        """Close both sides in good order: what was received before is still sent."""
        if not self._ended:
            assert self._first_eof is not None
            self._finish(self._first_eof.party)
            self.client.close()
            self.broker.close()

    def lost(self, half: _Half) -> None:
        """A socket is gone, by a reset of its peer unless we closed it."""
        if not half.half_closes and self._first_eof is not None:
            # The end that TLS answers ours with.
            self._close()
        elif not self._ended:
            self.end(half.party)
        if self.client.gone and (self.broker.gone or not self.broker.dialled):
            self._tap.connections.discard(self)

    def end(self, by: Party) -> None:
        """Reset both sides, also when what was still to be written had not left yet."""
        if not self._ended:
            self._finish(by)
        self.client.reset()
        self.broker.reset()

    @property
    def pressing(self) -> bool:
        """Whether a slow receiver slows its sender."""
        return self._tap.pressing

    def press(self, pressing: bool) -> None:
        """Let a receiver that is behind slow its sender from now on, or not."""
        for half in (self.client, self.broker):
            if half.behind and pressing:
                self.other(half).pause_reading()
            elif half.behind:
                self.other(half).resume_reading()

    def other(self, half: _Half) -> _Half:
        return self.broker if half is self.client else self.client

    def _finish(self, by: Party) -> None:
        self._ended = True
        if self._dial is not None and self._dial is not asyncio.current_task():
            self._dial.cancel()
        self._tell(by)

    def _tell(self, by: Party) -> None:
        """Record the end of the connection, once. Frames that the broker has still under way may follow it."""
        if not self._told:
            self._told = True
            self._record(self._tracker.closed, by)

    def _record(self, describe: Callable[..., dict[str, Any]], *about: Any) -> None:
        try:
            self._tap.recorder.record(**describe(*about))
        except Exception as error:
            self._tap.failed(error)


class _Half(asyncio.Protocol):
    """One socket of a connection; ``direction`` is that of the bytes it receives.

    ``half_closes``: whether it may end in one direction and go on in the other, which TLS cannot.
    """

    def __init__(
        self,
        connection: _Connection,
        party: Literal["client", "broker"],
        direction: Direction,
        *,
        half_closes: bool = True,
    ) -> None:
        self.party: Literal["client", "broker"] = party
        self.direction: Direction = direction
        self.decoder: FrameDecoder | None = FrameDecoder(max_frame_size=MAX_FRAME_SIZE)
        self.rewriter: AddressRewriter | None = None
        self.gone = False
        self.behind = False
        self.half_closes = half_closes
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._early = bytearray()
        self._early_eof = False

    @property
    def dialled(self) -> bool:
        return self._transport is not None

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.party == "client":
            self._connection.accepted()
            return
        self.write(bytes(self._early))
        self._early.clear()
        if self._early_eof:
            self.write_eof()

    def data_received(self, data: bytes) -> None:
        if not self._connection.other(self).dialled:
            # uvloop reads once more although connection_made paused it.
            self.pause_reading()
        self._connection.received(self, data)

    def eof_received(self) -> bool:
        self._connection.eof(self)
        return self.half_closes

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._connection.lost(self)

    def pause_writing(self) -> None:
        self.behind = True
        if self._connection.pressing:
            self._connection.other(self).pause_reading()

    def resume_writing(self) -> None:
        self.behind = False
        self._connection.other(self).resume_reading()

    # --- called by the connection ---

    def ready(self, data: bytes) -> bytes:
        """What of ``data``, and of what was held before, may be forwarded."""
        return data if self.rewriter is None else self.rewriter.feed(data)

    def release(self) -> bytes:
        """What was held back of an unfinished frame; nothing is held any more."""
        rewriter, self.rewriter = self.rewriter, None
        return b"" if rewriter is None else rewriter.flush()

    def write(self, data: bytes) -> None:
        """Send ``data``, or keep it while the dial is under way."""
        if self._transport is None:
            self._early += data
        elif data and not self._transport.is_closing():
            self._transport.write(data)

    def write_eof(self) -> None:
        if self._transport is None:
            self._early_eof = True
        elif not self._transport.is_closing():
            with contextlib.suppress(OSError):  # the peer has gone meanwhile: connection_lost follows
                if self.half_closes:
                    self._transport.write_eof()
                else:
                    self._transport.close()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Close with RST, dropping what was not sent."""
        if self._transport is None or self.gone:
            return
        own = self._transport.get_extra_info("socket")
        # Through a duplicate, since uvloop's stand-in for a socket has no setsockopt; the option is the connection's.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(own.fileno())) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()
