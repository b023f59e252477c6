"""The reference broker on a socket of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import traceback
from collections import deque
from dataclasses import replace
from itertools import count
from typing import cast

from harness.reference.broker.config import BrokerConfig
from harness.reference.broker.machine import BrokerMachine
from harness.reference.broker.parts import BrokerParts
from harness.reference.outputs import BrokerOutput, Write

HOST = "127.0.0.1"
LAST_WORDS_S = 1.0
"""How long a broker that stops in good order waits for its last answers to leave."""


class ReferenceServer:
    """Pumps a ``BrokerMachine`` over asyncio on 127.0.0.1. Used by one event loop.

    ``config.service_url`` is replaced by the address that is really listened on; ``port`` 0 lets the system choose.
    ``paused``: the machine is told nothing, see ``pause``.
    ``failure`` is the traceback of a defect of the machine itself: the connection that hit it was closed, and whatever
    was seen after it says nothing about a client.
    """

    def __init__(self, config: BrokerConfig | None = None, parts: BrokerParts | None = None, port: int = 0) -> None:
        self.config = config or BrokerConfig()
        self._parts = parts
        self._port = port
        self._server: asyncio.Server | None = None
        self._machine: BrokerMachine | None = None
        self._links: dict[int, _Link] = {}
        self._no_links = asyncio.Event()
        self._held: socket.socket | None = None
        self.paused = False
        self._numbers = count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._epoch_offset = time.time_ns() - time.monotonic_ns()
        self.failure: str | None = None
        self.log: deque[str] = deque(maxlen=200)

    @property
    def machine(self) -> BrokerMachine:
        """For judges and faults; after a fault that has outputs hand them to ``perform``."""
        if self._machine is None:
            raise RuntimeError("the server was not started")
        return self._machine

    def now(self) -> int:
        """Nanoseconds since the epoch that never go back."""
        return self._epoch_offset + time.monotonic_ns()

    @property
    def serving(self) -> bool:
        return self._server is not None and self._server.is_serving() and self.failure is None

    async def start(self) -> tuple[str, int]:
        """Raises ``OSError`` when the port cannot be had."""
        await self._listen(_bound(self._port))
        assert self._server is not None
        host, self._port = self._server.sockets[0].getsockname()[:2]
        self._machine = BrokerMachine(replace(self.config, service_url=f"pulsar://{host}:{self._port}"), self._parts)
        return host, self._port

    async def stop(self) -> None:
        """Closes every connection; safe to call twice."""
        self.paused = False
        await self._close()
        if self._held is not None:
            self._held.close()
            self._held = None

    def cut(self) -> None:
        """Resets every connection."""
        for link in list(self._links.values()):
            link.abort()

    # ------------------------------------------------------------------------------------------------ as a process

    @property
    def down(self) -> bool:
        """Whether nobody listens."""
        return self._server is None

    async def go_down(self, *, in_good_order: bool) -> None:
        """Stop listening and close every connection; what the machine has not persisted is lost, unless in good order.

        The port stays ours: connections to it are refused, and nobody else gets it.
        """
        if in_good_order:
            # A restart of a machine that is up settles everything and says its last words.
            self.perform(self.machine.restart(self.now()))
            if self._links:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._no_links.wait(), LAST_WORDS_S)
        self.perform(self.machine.crash(self.now()))
        self.paused = False
        await self._close()
        self._held = _bound(self._port)

    async def come_up(self) -> None:
        """After ``go_down``, on the same port and what was persisted. Raises ``OSError``."""
        held, self._held = self._held or _bound(self._port), None
        self.perform(self.machine.restart(self.now()))
        await self._listen(held)

    def pause(self) -> None:
        """Nothing is read, answered or timed any more. Connections stay open, and new ones are taken by the kernel."""
        self.paused = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for link in self._links.values():
            link.pause()

    def resume(self) -> None:
        if not self.paused:
            return
        self.paused = False
        for link in list(self._links.values()):
            link.resume()
        self._arm()

    async def _listen(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Link(self, next(self._numbers)), sock=bound)
        except BaseException:
            bound.close()
            raise

    async def _close(self) -> None:
        server, self._server = self._server, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if server is not None:
            server.close()
            self.cut()
            self._links.clear()
            await server.wait_closed()

    # ------------------------------------------------------------------------------------------------ the pump

    def perform(self, outputs: list[BrokerOutput]) -> None:
        """Carries out what the machine asked for, and sets the clock for its next deadline."""
        for output in outputs:
            link = self._links.get(output.conn) if isinstance(output.conn, int) else None
            if link is None:
                continue
            if isinstance(output, Write):
                link.write(output.data)
            else:
                link.end()
        self._arm()

    def opened(self, link: _Link) -> None:
        self._links[link.number] = link
        self._no_links.clear()
        if self.paused:
            # Whoever is not running accepts nothing; the machine hears of it afterwards.
            link.pause()
        else:
            self.accepted(link)

    def accepted(self, link: _Link) -> None:
        """The machine hears of a connection."""
        link.known = True
        self.perform(self.machine.connected(link.number, self.now()))

    def received(self, link: _Link, data: bytes) -> None:
        try:
            outputs = self.machine.received(link.number, data, self.now())
        except Exception:
            self._record_failure(link)
        else:
            self.perform(outputs)

    def closed(self, link: _Link) -> None:
        self._links.pop(link.number, None)
        if not self._links:
            self._no_links.set()
        if self._server is not None and link.known:
            self.perform(self.machine.disconnected(link.number, self.now()))

    def _record_failure(self, link: _Link) -> None:
        self.failure = traceback.format_exc()
        self.log.extend(self.failure.splitlines())
        link.abort()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.machine.next_deadline()
        if due is not None and self._server is not None and not self.paused:
            delay = max(0, due - self.now()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            outputs = self.machine.tick(self.now())
        except Exception:
            self.failure = traceback.format_exc()
            self.log.extend(self.failure.splitlines())
        else:
            self.perform(outputs)


class _Link(asyncio.Protocol):
    """One accepted connection."""

    def __init__(self, server: ReferenceServer, number: int) -> None:
        self.number = number
        self.known = False
        self._waiting: list[bytes] = []
        self._lost = False
        self._server = server
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a test: uvloop's transports are no subclass of asyncio's, and were once taken for nothing.
        self._transport = cast(asyncio.Transport, transport)
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._server.paused:
            # uvloop reads on after a pause that comes within connection_made, and what is under way arrives anywhere.
            self._waiting.append(data)
            self.pause()
        else:
            self._server.received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if not self._server.paused:
            self._server.closed(self)

    def pause(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        """All that has happened meanwhile, in its order."""
        if not self.known:
            self._server.accepted(self)
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self._server.received(self, data)
        if self._lost:
            self._server.closed(self)
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def end(self) -> None:
        """Closes after what was written has left."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _bound(port: int) -> socket.socket:
    """A socket on the port (0: any free one) that nobody can connect to yet. Raises ``OSError``."""
    made = socket.socket()
    try:
        # Connections of an earlier life that linger in TIME_WAIT take nothing away.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((HOST, port))
    except BaseException:
        made.close()
        raise
    return made
