"""The link between the machines of the simulated world: taps on both sides of simulated toxics, under virtual time.

The toxics follow Toxiproxy's behaviour as measured: each direction of a connection is a FIFO; ``timeout`` swallows
data and closes the connection when it is removed; ``limit_data`` closes at exactly its count of bytes; ``reset_peer``
fires only when data arrives. Randomness is absent: toxicity is 1 and jitter 0.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.faults.session_tracker import SessionTracker
from harness.history.event import Layer
from harness.history.recorder import Recorder
from harness.wire.frame import FrameDecoder, WireError, encode
from harness.wire.lookup import rewrite_lookup

MILLISECOND = 1_000_000
HOP_NS = 50_000
MOST_SLICES = 64
"""Slices that arrive one by one of what was written at once; the rest arrives together.

Slices without a delay between them pile up in the receiver's buffer anyway, and a message of 200 kB in slices of nine
bytes would only be slow.
"""

Direction = Literal["to_broker", "to_client"]
Closer = Literal["client", "broker", "tap"]
DIRECTION_OF_STREAM: dict[str, Direction] = {"upstream": "to_broker", "downstream": "to_client"}


class Timeline:
    """Virtual time: callbacks in time order, ties in the order of asking."""

    def __init__(self, start_ns: int) -> None:
        self.now = start_ns
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._tie = itertools.count()

    def at(self, time_ns: int, callback: Callable[[], None]) -> None:
        heapq.heappush(self._due, (max(time_ns, self.now), next(self._tie), callback))

    def next_due(self) -> int | None:
        return self._due[0][0] if self._due else None

    def run_next(self) -> None:
        """Move to the earliest callback's time and carry it out."""
        time_ns, _, callback = heapq.heappop(self._due)
        self.now = time_ns
        callback()


class _SimulatedTap:
    """One recording tap on one simulated connection: decodes both directions, records, passes bytes on."""

    def __init__(self, side: Literal["client", "broker"], number: int, recorder: Recorder) -> None:
        self.layer: Layer = "tap.client" if side == "client" else "tap.broker"
        self._recorder = recorder
        self._tracker = SessionTracker(f"{side}-{number}", self.layer)
        self._decoders: dict[Direction, FrameDecoder | None] = {
            "to_broker": FrameDecoder(),
            "to_client": FrameDecoder(),
        }

    def opened(self) -> None:
        self._recorder.record(**self._tracker.opened())

    def closed(self, by: Closer) -> None:
        self._recorder.record(**self._tracker.closed(by))

    def passes(self, data: bytes, direction: Direction, rewrite_to: str | None = None) -> bytes:
        """Record the frames that ``data`` completes; return the bytes to hand on."""
        decoder = self._decoders[direction]
        if decoder is None:
            return data
        try:
            frames = decoder.feed(data)
        except WireError as error:
            self._decoders[direction] = None
            self._recorder.record(**self._tracker.wire_error(error, direction))
            return data
        for frame in frames:
            self._recorder.record(**self._tracker.frame(frame, direction))
        if rewrite_to is None:
            return data
        # Whole frames only on the rewritten side: half a lookup answer handed on could not be rewritten any more.
        handed_on = [rewrite_lookup(frame, rewrite_to) for frame in frames]
        return b"".join(frame.raw if frame.raw is not None else encode(frame) for frame in handed_on)


@dataclass
class _Flow:
    """One direction of one connection between the two taps."""

    free_at: int = 0
    passed: int = 0
    swallowed: bool = False


@dataclass
class _Connection:
    conn: int
    link: SimulatedLink
    client_tap: _SimulatedTap
    broker_tap: _SimulatedTap
    alive: bool = True
    flows: dict[Direction, _Flow] = field(default_factory=lambda: {"to_broker": _Flow(), "to_client": _Flow()})


@dataclass
class _Toxic:
    type: str
    attributes: dict[str, Any]


class SimulatedLink:
    """What stands between one plan client and the broker. Faults are those of ``harness.faults.toxiproxy.Link``."""

    def __init__(self, network: SimulatedNetwork, url: str) -> None:
        self.url = url
        self.refusing = False
        self.toxics: dict[Direction, list[_Toxic]] = {"to_broker": [], "to_client": []}
        self.connections: dict[int, _Connection] = {}
        self._network = network

    def add_toxic(self, type_: str, stream: str, attributes: dict[str, Any]) -> None:
        toxics = self.toxics[DIRECTION_OF_STREAM[stream]]
        toxics[:] = [toxic for toxic in toxics if toxic.type != type_]
        toxics.append(_Toxic(type_, dict(attributes)))

    def remove_toxics(self, type_: str, stream: str) -> None:
        direction = DIRECTION_OF_STREAM[stream]
        self.toxics[direction] = [toxic for toxic in self.toxics[direction] if toxic.type != type_]
        if type_ == "timeout":
            for connection in list(self.connections.values()):
                if connection.flows[direction].swallowed:
                    self._network.lose(connection)

    def reset(self) -> None:
        """Heal: accept again, take every toxic away (which closes what a ``timeout`` held)."""
        self.refusing = False
        for stream, direction in DIRECTION_OF_STREAM.items():
            for toxic in list(self.toxics[direction]):
                self.remove_toxics(toxic.type, stream)

    def cut(self) -> None:
        for connection in list(self.connections.values()):
            self._network.lose(connection)

    def refuse(self) -> None:
        self.refusing = True
        self.cut()

    def restore(self) -> None:
        self.refusing = False


@dataclass(frozen=True, slots=True)
class Ends:
    """What the network calls at the two machines. ``conn`` is the client machine's connection id."""

    client_connected: Callable[[int], None]
    client_refused: Callable[[int], None]
    client_received: Callable[[int, bytes], None]
    client_lost: Callable[[int], None]
    broker_connected: Callable[[int], None]
    broker_received: Callable[[int, bytes], None]
    broker_lost: Callable[[int], None]


class SimulatedNetwork:
    """Carries bytes between one client machine and one broker machine over links with faults."""

    def __init__(self, timeline: Timeline, recorder: Recorder, ends: Ends) -> None:
        self._timeline = timeline
        self._recorder = recorder
        self._ends = ends
        self.links: dict[str, SimulatedLink] = {}
        self._connections: dict[int, _Connection] = {}
        self._numbers = itertools.count(1)

    def link(self, handle: str) -> SimulatedLink:
        """The link of one plan client; its URL is where that client must dial."""
        if handle not in self.links:
            self.links[handle] = SimulatedLink(self, f"pulsar://127.0.0.1:{10_001 + len(self.links)}")
        return self.links[handle]

    def dial(self, conn: int, address: str) -> None:
        link = next((link for link in self.links.values() if link.url.removeprefix("pulsar://") == address), None)
        now = self._timeline.now
        if link is None or link.refusing:
            self._timeline.at(now + HOP_NS, lambda: self._ends.client_refused(conn))
            return
        number = next(self._numbers)
        connection = _Connection(
            conn, link, _SimulatedTap("client", number, self._recorder), _SimulatedTap("broker", number, self._recorder)
        )
        link.connections[conn] = connection
        self._connections[conn] = connection
        connection.client_tap.opened()
        connection.broker_tap.opened()

        def established() -> None:
            if connection.alive:
                self._ends.broker_connected(conn)
                self._ends.client_connected(conn)

        self._timeline.at(now + HOP_NS, established)

    def client_writes(self, conn: int, data: bytes) -> None:
        connection = self._connections.get(conn)
        if connection is not None:
            self._send(connection, "to_broker", connection.client_tap.passes(data, "to_broker"))

    def broker_writes(self, conn: int, data: bytes) -> None:
        connection = self._connections.get(conn)
        if connection is not None:
            self._send(connection, "to_client", connection.broker_tap.passes(data, "to_client"))

    def client_closes(self, conn: int) -> None:
        self._closes(conn, "client", "to_broker")

    def broker_closes(self, conn: int) -> None:
        self._closes(conn, "broker", "to_client")

    def lose(self, connection: _Connection) -> None:
        """Both ends lose the connection now; what was under way is gone."""
        self._end(connection, "tap")
        self._ends_lost(connection, client=True, broker=True)

    # --- internals -----------------------------------------------------------------------------------------------

    def _closes(self, conn: int, by: Closer, direction: Direction) -> None:
        connection = self._connections.get(conn)
        if connection is None:
            return
        delay = sum(
            int(toxic.attributes.get("delay", 0)) * MILLISECOND
            for toxic in connection.link.toxics[direction]
            if toxic.type == "slow_close"
        )

        def arrives() -> None:
            if connection.alive:
                self._end(connection, by)
                self._ends_lost(connection, client=by == "broker", broker=by == "client")

        flow = connection.flows[direction]
        self._timeline.at(max(flow.free_at, self._timeline.now) + HOP_NS + delay, arrives)

    def _end(self, connection: _Connection, by: Closer) -> None:
        if not connection.alive:
            return
        connection.alive = False
        connection.link.connections.pop(connection.conn, None)
        self._connections.pop(connection.conn, None)
        connection.client_tap.closed(by)
        connection.broker_tap.closed(by)

    def _ends_lost(self, connection: _Connection, *, client: bool, broker: bool) -> None:
        later = self._timeline.now + HOP_NS
        if client:
            self._timeline.at(later, lambda: self._ends.client_lost(connection.conn))
        if broker:
            self._timeline.at(later, lambda: self._ends.broker_lost(connection.conn))

    def _send(self, connection: _Connection, direction: Direction, data: bytes) -> None:
        flow = connection.flows[direction]
        now = self._timeline.now
        due = max(now + HOP_NS, flow.free_at)
        pieces = [data]
        closes_at: int | None = None
        for toxic in connection.link.toxics[direction]:
            value = toxic.attributes.get
            if toxic.type == "latency":
                due = max(due, now + HOP_NS + int(value("latency", 0)) * MILLISECOND)
            elif toxic.type == "bandwidth":
                # Toxiproxy's rate is in units of 1000 bytes a second; 0 stalls for ever.
                rate = int(value("rate", 0)) * 1000
                if rate == 0:
                    flow.swallowed = True
                    return
                due += len(data) * 1_000_000_000 // rate
            elif toxic.type == "slicer":
                pieces = [part for piece in pieces for part in _slices(piece, max(1, int(value("average_size", 1))))]
            elif toxic.type == "timeout":
                flow.swallowed = True
                if int(value("timeout", 0)) > 0:
                    self._lose_at(connection, now + int(value("timeout", 0)) * MILLISECOND)
                return
            elif toxic.type == "reset_peer":
                closes_at = now + int(value("timeout", 0)) * MILLISECOND
            elif toxic.type == "limit_data":
                room = max(0, int(value("bytes", 0)) - flow.passed)
                if len(data) >= room:
                    pieces = [data[:room]]
                    closes_at = due
        if closes_at is not None:
            self._lose_at(connection, closes_at + 1)
        flow.passed += sum(len(piece) for piece in pieces)
        flow.free_at = due
        for piece in pieces:
            if piece:
                self._timeline.at(due, self._delivery(connection, direction, piece))

    def _lose_at(self, connection: _Connection, time_ns: int) -> None:
        def lose() -> None:
            if connection.alive:
                self.lose(connection)

        self._timeline.at(time_ns, lose)

    def _delivery(self, connection: _Connection, direction: Direction, data: bytes) -> Callable[[], None]:
        def deliver() -> None:
            if not connection.alive:
                return
            if direction == "to_broker":
                self._ends.broker_received(connection.conn, connection.broker_tap.passes(data, direction))
            else:
                passed = connection.client_tap.passes(data, direction, rewrite_to=connection.link.url)
                self._ends.client_received(connection.conn, passed)

        return deliver


def _slices(data: bytes, size: int) -> list[bytes]:
    """``data`` in slices of ``size`` bytes; what follows the first ``MOST_SLICES`` of them stays in one piece."""
    sliced = min(len(data), MOST_SLICES * size)
    return [*(data[at : min(at + size, sliced)] for at in range(0, sliced, size)), data[sliced:]]
