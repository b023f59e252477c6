"""The reference broker on a socket of this machine."""

from __future__ import annotations

import asyncio
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


class ReferenceServer:
    """Pumps a ``BrokerMachine`` over asyncio on 127.0.0.1. Used by one event loop.

    ``config.service_url`` is replaced by the address that is really listened on; ``port`` 0 lets the system choose.
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
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Link(self, next(self._numbers)), "127.0.0.1", self._port)
        host, port = self._server.sockets[0].getsockname()[:2]
        self._machine = BrokerMachine(replace(self.config, service_url=f"pulsar://{host}:{port}"), self._parts)
        return host, port

    async def stop(self) -> None:
        """Closes every connection; safe to call twice."""
        server, self._server = self._server, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if server is not None:
            server.close()
            self.cut()
            await server.wait_closed()

    def cut(self) -> None:
        """Resets every connection."""
        for link in list(self._links.values()):
            link.abort()

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
        if self._server is not None:
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
        if due is not None and self._server is not None:
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
        self._server = server
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a test: uvloop's transports are no subclass of asyncio's, and were once taken for nothing.
        self._transport = cast(asyncio.Transport, transport)
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        self._server.received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)

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
