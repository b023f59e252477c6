"""One connection to one broker: handshake, requests and their answers, keep-alive, and whom a frame is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from harness.reference.client.failure import DISCONNECTED, TIMED_OUT, Failure, from_broker
from harness.reference.client.runtime import Runtime
from harness.reference.client.timers import Timer
from harness.reference.outputs import Close, Dial, Write
from harness.wire.frame import Frame, FrameDecoder, WireError, encode
from harness.wire.pulsar_pb2 import (
    BaseCommand,
    CommandConnect,
    CommandPing,
    CommandPong,
    FeatureFlags,
)

DEFAULT_MAX_MESSAGE_SIZE = 5 * 1024 * 1024
#: What a frame may hold beside its payload (clause SEND-05).
FRAME_PADDING = 10 * 1024


class Attached(Protocol):
    """A producer or consumer registered on a connection."""

    def frame_received(self, frame: Frame) -> None:
        """A frame that names its id."""

    def connection_lost(self, failure: Failure) -> None:
        """The connection is gone."""


class _Request:
    __slots__ = ("on_answer", "on_failure", "timer")

    def __init__(
        self, on_answer: Callable[[BaseCommand], None], on_failure: Callable[[Failure], None], timer: Timer
    ) -> None:
        self.on_answer = on_answer
        self.on_failure = on_failure
        self.timer = timer


class Connection:
    """``proxy_to`` names the broker behind a proxy (clause LOOKUP-04), None when dialled directly.

    ``on_closed`` is told once, before anybody attached hears of the loss (clause CONN-03).
    """

    def __init__(
        self, runtime: Runtime, address: str, proxy_to: str | None, on_closed: Callable[[Connection], None]
    ) -> None:
        self._runtime = runtime
        self.id = runtime.new_connection_id()
        self.address = address
        self._proxy_to = proxy_to
        self._on_closed = on_closed
        self._state = "dialing"
        self._decoder = FrameDecoder()
        self._requests: dict[int, _Request] = {}
        self._waiting: list[tuple[Callable[[], None], Callable[[Failure], None]]] = []
        self._producers: dict[int, Attached] = {}
        self._consumers: dict[int, Attached] = {}
        self._heard = False
        self._pinged = False
        self.peer_protocol_version = 0
        self.max_message_size = DEFAULT_MAX_MESSAGE_SIZE
        runtime.emit(Dial(self.id, address))
        self._timer = runtime.after(runtime.config.connect_timeout, self._dial_timed_out)

    @property
    def ready(self) -> bool:
        """Whether commands may be sent (clause CONN-05)."""
        return self._state == "ready"

    @property
    def closed(self) -> bool:
        """Whether it is gone for good."""
        return self._state == "closed"

    # -- what the outside says

    def established(self) -> None:
        """The dial succeeded: CONNECT is the first frame."""
        if self._state != "dialing":
            return
        self._state = "handshaking"
        self._timer.cancel()
        self._timer = self._runtime.after(self._runtime.config.keep_alive, self._keep_alive)
        connect = CommandConnect(
            client_version=self._runtime.config.client_version,
            protocol_version=self._runtime.config.protocol_version,
            auth_method_name=self._runtime.config.auth_method,
            feature_flags=FeatureFlags(supports_auth_refresh=False),
        )
        if self._runtime.config.auth_data is not None:
            connect.auth_data = self._runtime.config.auth_data.encode()
        if self._proxy_to is not None:
            connect.proxy_to_broker_url = self._proxy_to
        self._write(BaseCommand(type=BaseCommand.CONNECT, connect=connect))

    def received(self, data: bytes) -> None:
        """Bytes from the broker, cut anywhere."""
        self._heard = True
        try:
            frames = self._decoder.feed(data)
        except WireError as error:
            self._handle_all(list(error.frames))
            self.close(Failure("disconnected", f"the broker sent no frame: {error}"))
            return
        self._handle_all(frames)

    def lost(self, failure: Failure = DISCONNECTED) -> None:
        """The connection is gone: fail every request at once, wake everybody attached (clause CONN-11)."""
        if self._state == "closed":
            return
        self._state = "closed"
        self._timer.cancel()
        self._on_closed(self)
        waiting, self._waiting = self._waiting, []
        requests, self._requests = self._requests, {}
        attached = [*self._producers.values(), *self._consumers.values()]
        self._producers.clear()
        self._consumers.clear()
        for request in requests.values():
            request.timer.cancel()
        for _, on_failure in waiting:
            on_failure(failure)
        for request in requests.values():
            request.on_failure(failure)
        for handler in attached:
            handler.connection_lost(failure)

    def close(self, failure: Failure = DISCONNECTED) -> None:
        """Close it ourselves; everybody on it hears ``failure``."""
        if self._state == "closed":
            return
        self._runtime.emit(Close(self.id))
        self.lost(failure)

    # -- what the client says

    def when_ready(self, on_ready: Callable[[], None], on_failure: Callable[[Failure], None]) -> None:
        """Call one of the two, at once or when it is known."""
        if self._state == "ready":
            on_ready()
        elif self._state == "closed":
            on_failure(DISCONNECTED)
        else:
            self._waiting.append((on_ready, on_failure))

    def send(self, command: BaseCommand) -> None:
        """Write a command that has no answer."""
        self._write(command)

    def send_bytes(self, data: bytes) -> None:
        """Write a frame that was encoded before."""
        if self._state == "ready":
            self._runtime.emit(Write(self.id, data))

    def request(
        self,
        request_id: int,
        command: BaseCommand,
        on_answer: Callable[[BaseCommand], None],
        on_failure: Callable[[Failure], None],
        timeout: int | None = None,
    ) -> None:
        """Write ``command`` and call one of the two: answer, or error, loss, timeout (clauses REQ-01, REQ-02)."""
        if self._state != "ready":
            on_failure(DISCONNECTED)
            return
        limit = self._runtime.config.operation_timeout if timeout is None else timeout
        timer = self._runtime.after(limit, lambda: self._timed_out(request_id))
        self._requests[request_id] = _Request(on_answer, on_failure, timer)
        self._write(command)

    def attach_producer(self, producer_id: int, handler: Attached) -> None:
        """Frames for this producer go to ``handler``."""
        self._producers[producer_id] = handler

    def attach_consumer(self, consumer_id: int, handler: Attached) -> None:
        """Frames for this consumer go to ``handler``; call it before SUBSCRIBE leaves (clause CONS-04)."""
        self._consumers[consumer_id] = handler

    def detach(self, handler: Attached) -> None:
        """Frames for ``handler`` are ignored from now on (clauses RCPT-04, CONS-15)."""
        for table in (self._producers, self._consumers):
            for key in [key for key, value in table.items() if value is handler]:
                del table[key]

    # -- inside

    def _write(self, command: BaseCommand) -> None:
        if self._state in ("ready", "handshaking"):
            self._runtime.emit(Write(self.id, encode(Frame(command))))

    def _handle_all(self, frames: list[Frame]) -> None:
        for frame in frames:
            if self._state not in ("ready", "handshaking"):
                return
            self._handle(frame)

    def _handle(self, frame: Frame) -> None:
        command = frame.command
        kind = command.type
        if kind == BaseCommand.PING:
            self._write(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))
        elif kind == BaseCommand.PONG:
            pass
        elif kind == BaseCommand.CONNECTED:
            self._connected(command)
        elif self._state != "ready":
            message = command.error.message if kind == BaseCommand.ERROR else "a command before CONNECTED"
            error = from_broker(command.error.error, message) if kind == BaseCommand.ERROR else None
            self.close(error or Failure("disconnected", message))
        elif kind in _OF_PRODUCER:
            self._dispatch(self._producers, _OF_PRODUCER[kind](command), frame)
        elif kind in _OF_CONSUMER:
            self._dispatch(self._consumers, _OF_CONSUMER[kind](command), frame)
        elif kind in _ANSWERS:
            self._answered(_ANSWERS[kind](command), command)

    def _connected(self, command: BaseCommand) -> None:
        if self._state != "handshaking":
            # CONN-07: a second CONNECTED must not be taken silently.
            self.close(Failure("disconnected", "the broker sent CONNECTED twice"))
            return
        self._state = "ready"
        self.peer_protocol_version = command.connected.protocol_version
        if command.connected.HasField("max_message_size") and command.connected.max_message_size > 0:
            self.max_message_size = command.connected.max_message_size
        self._decoder.max_frame_size = self.max_message_size + FRAME_PADDING
        waiting, self._waiting = self._waiting, []
        for on_ready, _ in waiting:
            on_ready()

    @staticmethod
    def _dispatch(table: dict[int, Attached], key: int, frame: Frame) -> None:
        if (handler := table.get(key)) is not None:
            handler.frame_received(frame)

    def _answered(self, request_id: int, command: BaseCommand) -> None:
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        request.timer.cancel()
        if command.type == BaseCommand.ERROR:
            request.on_failure(from_broker(command.error.error, command.error.message))
        else:
            request.on_answer(command)

    def _timed_out(self, request_id: int) -> None:
        if (request := self._requests.pop(request_id, None)) is not None:
            request.on_failure(TIMED_OUT)

    def _dial_timed_out(self) -> None:
        self.close(Failure("disconnected", f"no connection to {self.address} in time"))

    def _keep_alive(self) -> None:
        """KEEP-01: silence for a whole interval after our PING is death; any inbound byte is life."""
        if self._state == "handshaking" or (self._pinged and not self._heard):
            self.close(Failure("disconnected", "the broker is silent"))
            return
        self._heard = False
        self._pinged = True
        self._write(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))
        self._timer = self._runtime.after(self._runtime.config.keep_alive, self._keep_alive)


_OF_PRODUCER: dict[int, Callable[[BaseCommand], int]] = {
    BaseCommand.SEND_RECEIPT: lambda command: command.send_receipt.producer_id,
    BaseCommand.SEND_ERROR: lambda command: command.send_error.producer_id,
    BaseCommand.CLOSE_PRODUCER: lambda command: command.close_producer.producer_id,
}
_OF_CONSUMER: dict[int, Callable[[BaseCommand], int]] = {
    BaseCommand.MESSAGE: lambda command: command.message.consumer_id,
    BaseCommand.CLOSE_CONSUMER: lambda command: command.close_consumer.consumer_id,
    BaseCommand.ACTIVE_CONSUMER_CHANGE: lambda command: command.active_consumer_change.consumer_id,
    BaseCommand.REACHED_END_OF_TOPIC: lambda command: command.reachedEndOfTopic.consumer_id,
}
_ANSWERS: dict[int, Callable[[BaseCommand], int]] = {
    BaseCommand.SUCCESS: lambda command: command.success.request_id,
    BaseCommand.ERROR: lambda command: command.error.request_id,
    BaseCommand.PRODUCER_SUCCESS: lambda command: command.producer_success.request_id,
    BaseCommand.LOOKUP_RESPONSE: lambda command: command.lookupTopicResponse.request_id,
    BaseCommand.PARTITIONED_METADATA_RESPONSE: lambda command: command.partitionMetadataResponse.request_id,
    BaseCommand.ACK_RESPONSE: lambda command: command.ackResponse.request_id,
}
