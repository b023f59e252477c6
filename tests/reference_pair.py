"""Reference client and reference broker joined in memory under virtual time: a small deterministic pump for tests."""

from __future__ import annotations

import base64
import heapq
import itertools
from collections.abc import Callable
from typing import Any, Literal

from harness.reference.broker.config import BrokerConfig
from harness.reference.broker.machine import BrokerMachine
from harness.reference.client.config import ClientConfig
from harness.reference.client.machine import ClientMachine
from harness.reference.client.parts import ClientParts
from harness.reference.outputs import Answer, Close, Dial, Write
from harness.wire.frame import Frame, FrameDecoder, command_name, encode

MS = 1_000_000
HOP = MS // 20
Direction = Literal["to_broker", "to_client"]


class PairError(Exception):
    """An answer that is an error; ``kind`` and ``text`` are the adapter's."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class Pair:
    """``frames`` holds every frame that arrived: (time, direction, connection, frame).

    ``tamper`` sees each frame on its way; it returns the frame to hand on (changed or not), or None to swallow it.
    """

    def __init__(
        self,
        *,
        broker: BrokerConfig | None = None,
        client: ClientConfig | None = None,
        parts: ClientParts | None = None,
    ) -> None:
        self.now = 1_000_000 * MS
        self.broker = BrokerMachine(broker or BrokerConfig(service_url="pulsar://broker:6650"))
        self.client = ClientMachine(client or ClientConfig(), parts or ClientParts())
        self.frames: list[tuple[int, Direction, int, Frame]] = []
        self.tamper: Callable[[Direction, Frame], Frame | None] = lambda direction, frame: frame
        self.refusing = False
        self.answers: dict[int, dict[str, Any]] = {}
        self._ids = itertools.count(1)
        self._tie = itertools.count()
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._alive: dict[int, dict[Direction, FrameDecoder]] = {}
        self._last_id = 0
        self.ask("client", client="a", url="pulsar://broker:6650")

    # --- operations

    def begin(self, op: str, **parameters: Any) -> int:
        number = next(self._ids)
        self._client_does(self.client.request({"id": number, "op": op, **parameters}, self.now))
        return number

    def end(self, number: int, within_ms: int = 120_000) -> dict[str, Any]:
        self.run(within_ms, until=lambda: number in self.answers)
        answer = self.answers.pop(number)
        if "error" in answer:
            raise PairError(answer["error"]["kind"], answer["error"]["message"])
        result: dict[str, Any] = answer["ok"]
        return result

    def ask(self, op: str, **parameters: Any) -> dict[str, Any]:
        return self.end(self.begin(op, **parameters))

    def producer(self, handle: str = "p", **options: Any) -> dict[str, Any]:
        return self.ask("producer", **{"client": "a", "producer": handle, "topic": "t", "name": handle, **options})

    def consumer(self, handle: str = "c", **options: Any) -> dict[str, Any]:
        given = {"client": "a", "consumer": handle, "topic": "t", "subscription": "s", "name": handle}
        return self.ask("consumer", **{**given, "type": "exclusive", "initial_position": "earliest", **options})

    def begin_send(self, payload: bytes, handle: str = "p", **options: Any) -> int:
        return self.begin("send", producer=handle, payload=base64.b64encode(payload).decode(), **options)

    def send(self, payload: bytes, handle: str = "p", **options: Any) -> dict[str, Any]:
        return self.end(self.begin_send(payload, handle, **options))

    def receive(self, handle: str = "c", timeout_ms: int = 1000) -> dict[str, Any] | None:
        message: dict[str, Any] | None = self.ask("receive", consumer=handle, timeout_ms=timeout_ms)["message"]
        return message

    def drain(self, handle: str = "c", timeout_ms: int = 1000) -> list[bytes]:
        """Payloads until nothing comes for ``timeout_ms``."""
        payloads = []
        while (message := self.receive(handle, timeout_ms)) is not None:
            payloads.append(base64.b64decode(message["payload"]))
        return payloads

    # --- the network

    def run(self, duration_ms: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let ``duration_ms`` of virtual time pass, or stop when ``until`` holds."""
        end = self.now + int(duration_ms * MS)
        for _ in range(1_000_000):
            if until():
                return
            times = [self.client.next_deadline(), self.broker.next_deadline(), self._due[0][0] if self._due else None]
            known = [time for time in times if time is not None]
            if not known or min(known) > end:
                self.now = end
                return
            self.now = max(self.now, min(known))
            if self._due and self._due[0][0] <= self.now:
                heapq.heappop(self._due)[2]()
            elif times[0] is not None and times[0] <= self.now:
                self._client_does(self.client.tick(self.now))
            else:
                self._broker_does(self.broker.tick(self.now))
        raise AssertionError("the machines go on without end")

    def cut(self) -> None:
        """Both sides lose every connection now; bytes on their way are gone."""
        for conn in list(self._alive):
            del self._alive[conn]
            self._broker_does(self.broker.disconnected(conn, self.now))
            self._client_does(self.client.disconnected(conn, self.now))

    def from_broker(self, conn: int, frame: Frame) -> None:
        """A frame the broker never sent reaches the client now."""
        self._client_does(self.client.received(conn, encode(frame), self.now))

    def sent(self, name: str, direction: Direction = "to_broker") -> list[Frame]:
        """The frames of one command that arrived, in order."""
        return [f for _, way, _, f in self.frames if way == direction and command_name(f.command) == name]

    @property
    def connections(self) -> list[int]:
        return list(self._alive)

    def _later(self, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + HOP, next(self._tie), action))

    def _client_does(self, outputs: list[Any]) -> None:
        for output in outputs:
            match output:
                case Dial(conn=conn):
                    self._later(lambda conn=conn: self._dialled(conn))
                case Write(conn=conn, data=data):
                    self._later(lambda conn=conn, data=data: self._arrive(conn, data, "to_broker"))
                case Close(conn=conn):
                    self._later(lambda conn=conn: self._closed(conn, "to_broker"))
                case Answer(message=message):
                    assert message["id"] not in self.answers
                    self.answers[message["id"]] = message

    def _broker_does(self, outputs: list[Any]) -> None:
        for output in outputs:
            match output:
                case Write(conn=conn, data=data):
                    self._later(lambda conn=conn, data=data: self._arrive(conn, data, "to_client"))
                case Close(conn=conn):
                    self._later(lambda conn=conn: self._closed(conn, "to_client"))

    def _dialled(self, conn: int) -> None:
        if self.refusing:
            self._client_does(self.client.connect_failed(conn, self.now))
            return
        self._alive[conn] = {"to_broker": FrameDecoder(), "to_client": FrameDecoder()}
        self._broker_does(self.broker.connected(conn, self.now))
        self._client_does(self.client.connected(conn, self.now))

    def _closed(self, conn: int, direction: Direction) -> None:
        if self._alive.pop(conn, None) is None:
            return
        if direction == "to_broker":
            self._broker_does(self.broker.disconnected(conn, self.now))
        else:
            self._client_does(self.client.disconnected(conn, self.now))

    def _arrive(self, conn: int, data: bytes, direction: Direction) -> None:
        if conn not in self._alive:
            return
        for frame in self._alive[conn][direction].feed(data):
            handed_on = self.tamper(direction, frame)
            if handed_on is None or conn not in self._alive:
                continue
            self.frames.append((self.now, direction, conn, handed_on))
            raw = handed_on.raw if handed_on.raw is not None else encode(handed_on)
            if direction == "to_broker":
                self._broker_does(self.broker.received(conn, raw, self.now))
            else:
                self._client_does(self.client.received(conn, raw, self.now))
