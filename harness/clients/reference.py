"""The reference client over real sockets: a ``ClientMachine`` pumped by asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from harness.clients.client import CAPABILITIES, MALFORMED, AdapterDied, AdapterRefused, ClientError
from harness.reference.client.config import SECOND, ClientConfig
from harness.reference.client.machine import NAME, VERSION, ClientMachine
from harness.reference.client.parts import ClientParts
from harness.reference.outputs import Answer, ClientOutput, Close, Dial, Write

_DEFAULT_CONFIG = ClientConfig()
_DEFAULT_PARTS = ClientParts()


class MachinePump:
    """Carries out what one machine asks for. ``on_answer`` gets every answer of the adapter contract.

    The machine's clock starts at the wall clock, so that publish times are honest, and never goes back. Use it from
    inside one running event loop.
    """

    def __init__(self, machine: ClientMachine, on_answer: Callable[[dict[str, Any]], None]) -> None:
        self._machine = machine
        self._on_answer = on_answer
        self._loop = asyncio.get_running_loop()
        self._started = time.time_ns() - time.monotonic_ns()
        self._transports: dict[int, asyncio.Transport] = {}
        self._dials: dict[int, asyncio.Task[None]] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._stopped = False

    def request(self, message: dict[str, Any]) -> None:
        """Hand one request to the machine."""
        self._perform(self._machine.request(message, self._now()))

    async def stop(self) -> None:
        """Drop every connection and timer, without telling the machine."""
        self._stopped = True
        if self._wake is not None:
            self._wake.cancel()
        for dial in self._dials.values():
            dial.cancel()
        await asyncio.gather(*self._dials.values(), return_exceptions=True)
        for transport in self._transports.values():
            transport.abort()
        self._transports.clear()

    def opened(self, conn: int, transport: asyncio.Transport) -> None:
        """A dial succeeded."""
        self._transports[conn] = transport
        self._perform(self._machine.connected(conn, self._now()))

    def received(self, conn: int, data: bytes) -> None:
        """Bytes arrived."""
        if conn in self._transports:
            self._perform(self._machine.received(conn, data, self._now()))

    def closed(self, conn: int) -> None:
        """The other side or the network closed it."""
        if self._transports.pop(conn, None) is not None and not self._stopped:
            self._perform(self._machine.disconnected(conn, self._now()))

    def _now(self) -> int:
        return self._started + time.monotonic_ns()

    def _perform(self, outputs: list[ClientOutput]) -> None:
        for output in outputs:
            if isinstance(output, Write):
                if (transport := self._transports.get(_number(output.conn))) is not None:
                    transport.write(output.data)
            elif isinstance(output, Answer):
                self._on_answer(output.message)
            elif isinstance(output, Dial):
                self._dials[output.conn] = self._loop.create_task(self._dial(output))
            else:
                self._close(output)
        self._arm()

    def _close(self, close: Close) -> None:
        conn = _number(close.conn)
        if (dial := self._dials.pop(conn, None)) is not None:
            dial.cancel()
        if (transport := self._transports.pop(conn, None)) is not None:
            transport.close()

    async def _dial(self, dial: Dial) -> None:
        host, _, port = dial.address.rpartition(":")
        try:
            await self._loop.create_connection(lambda: _Socket(self, dial.conn), host.strip("[]"), int(port))
        except OSError:
            self._dials.pop(dial.conn, None)
            self._perform(self._machine.connect_failed(dial.conn, self._now()))
        else:
            self._dials.pop(dial.conn, None)

    def _arm(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        deadline = self._machine.next_deadline()
        if deadline is not None and not self._stopped:
            self._wake = self._loop.call_later(max(0, deadline - self._now()) / SECOND, self._tick)

    def _tick(self) -> None:
        self._perform(self._machine.tick(self._now()))


class _Socket(asyncio.Protocol):
    def __init__(self, pump: MachinePump, conn: int) -> None:
        self._pump = pump
        self._conn = conn

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a test: uvloop's transports are no subclass of asyncio's.
        self._pump.opened(self._conn, cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._pump.received(self._conn, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pump.closed(self._conn)


class ReferenceClient:
    """The reference client as a client under test, inside this process."""

    def __init__(self, config: ClientConfig = _DEFAULT_CONFIG, parts: ClientParts = _DEFAULT_PARTS) -> None:
        self._config = config
        self._parts = parts
        self._pump: MachinePump | None = None
        self._open: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._requests = 0

    @property
    def name(self) -> str:
        """``reference``."""
        return NAME

    @property
    def version(self) -> str:
        """Version of the reference client."""
        return VERSION

    @property
    def capabilities(self) -> frozenset[str]:
        """Everything the contract knows, confirmed acknowledgements only when they are configured."""
        return CAPABILITIES if self._config.ack_receipt else ClientMachine.CAPABILITIES

    async def start(self) -> None:
        """Make the machine."""
        self._pump = MachinePump(ClientMachine(self._config, self._parts), self._answered)

    async def request(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """See ``harness.clients.client.Client.request``."""
        if self._pump is None:
            raise AdapterDied("the reference client is not running")
        self._requests += 1
        request_id = self._requests
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._open[request_id] = future
        try:
            self._pump.request({**message, "id": request_id})
            async with asyncio.timeout(timeout):
                answer = await future
        except TimeoutError:
            raise ClientError("timeout", f"no answer to {message.get('op')} within {timeout} s") from None
        finally:
            self._open.pop(request_id, None)
        if "error" in answer:
            error = answer["error"]
            if error["kind"] == MALFORMED:
                raise AdapterRefused(error["message"])
            raise ClientError(error["kind"], error["message"])
        result: dict[str, Any] = answer["ok"]
        return result

    async def stop(self) -> None:
        """Drop everything; calls that are still open end as ``interrupted``."""
        pump, self._pump = self._pump, None
        if pump is not None:
            await pump.stop()
        for future in list(self._open.values()):
            if not future.done():
                future.set_exception(ClientError("interrupted", "the client was stopped"))

    def alive(self) -> bool:
        """Between ``start`` and ``stop``."""
        return self._pump is not None

    def _answered(self, message: dict[str, Any]) -> None:
        future = self._open.get(message["id"])
        if future is not None and not future.done():
            future.set_result(message)


def _number(conn: object) -> int:
    assert isinstance(conn, int)
    return conn
