"""The auditor: reads every topic of a run in full, straight from the system, around all taps and faults.

It subscribes (durable, Exclusive, from the earliest message) before the first send, which also keeps a broker from
trimming what everybody else has acknowledged, grants no permits, and reads only at the end. What it reads is LOG.

It acknowledges nothing, so that it may lose its subscription as often as the schedule has it (a broker that is killed,
a topic that is unloaded) and take it up again where it was: at the earliest message.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from harness.systems.access import OPEN, Access
from harness.systems.system import Address
from harness.wire import pulsar_pb2 as pb
from harness.wire.frame import Frame, FrameDecoder, WireError, encode
from harness.worlds.audit_event import columns_of_message
from harness.worlds.record import Records

SUBSCRIPTION = "starquake-audit"
ANSWER_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 15.0
PATIENCE_S = 3.0
PATIENCE_AFTER_DOWNTIME_S = 20.0
"""How long nothing may come before the end is reached: a broker that was restarted may read again only later."""

QUIET_S = 0.15
MAX_MESSAGE_SIZE = 128 * 1024 * 1024
PERMITS = 1_000

NOT_YET = (pb.ServiceNotReady, pb.PersistenceError, pb.MetadataError)
"""Answers of a broker that is still coming up: 4.0.7 refuses a topic as long as its bookie is not there yet."""

NOT_READY_S = 10.0
"""How long a broker may say that a topic is not ready (being unloaded, being loaded) before that is its answer."""

NOT_READY_PAUSE_S = 0.2


class AuditError(RuntimeError):
    """The system did not answer the auditor: nothing can be concluded from what it did not read."""


class AuditRefused(AuditError):
    """The system answered a question of the auditor with an error."""


class _NotReady(AuditError):
    """The system asks to be asked again."""


Stored = Callable[[str], Awaitable[tuple[int, int] | None]]
"""The last ``(ledger, entry)`` stored in a topic; None when nothing is, or nothing can be told."""


@dataclass(slots=True)
class _Watched:
    topic: str
    consumer_id: int
    attached: bool
    problem: str = ""


class Auditor:
    """One connection of our own to the system for one session."""

    def __init__(self, address: Address, recorder: Records, access: Access = OPEN) -> None:
        self._address = address
        self._access = access
        self._recorder = recorder
        self._topics: list[_Watched] = []
        self._consumers = 0
        self._requests = 0
        self._answers: dict[int, asyncio.Future[Frame]] = {}
        self._connected: asyncio.Future[Frame] | None = None
        self._messages: dict[int, list[Frame]] = {}
        self._arrived = asyncio.Event()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._pump: asyncio.Task[None] | None = None
        self._lost = ""
        self._away = False
        self._times_away = 0
        self._distrusted = ""

    async def open(self) -> None:
        """Connect and shake hands. Raises AuditError."""
        self._connected = asyncio.get_running_loop().create_future()
        try:
            self._reader, self._writer = await asyncio.wait_for(
                asyncio.open_connection(self._address.host, self._address.port, ssl=self._access.stream_context),
                ANSWER_TIMEOUT_S,
            )
        except (OSError, TimeoutError) as error:
            raise AuditError(f"cannot connect to {self._address.service_url}: {error}") from error
        self._pump = asyncio.get_running_loop().create_task(self._read())
        connect = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        connect.connect.client_version = "starquake-audit"
        connect.connect.protocol_version = 19
        self._access.introduce(connect.connect)
        self._send(connect)
        try:
            await asyncio.wait_for(asyncio.shield(self._connected), ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            raise AuditError("the system did not answer CONNECT") from error

    async def attach(self, topic: str) -> None:
        """Subscribe to a topic before it is used. A refusal is remembered and told at the end, not raised.

        While the broker is away (see ``away``) it waits for ``back``.
        """
        watched = _Watched(topic, consumer_id=0, attached=False)
        self._topics.append(watched)
        if not self._away:
            await self._hold(watched)

    def away(self) -> None:
        """The broker is going to be away on purpose: what it does not answer, and a lost connection, is no problem."""
        self._away = True
        self._times_away += 1

    async def back(self) -> None:
        """The broker is there again: connect if need be, and subscribe to whatever is not. Raises AuditError."""
        if self._lost:
            await self.close()
            self._lost = ""
            await self.open()
        self._away = False
        for watched in self._topics:
            if not watched.attached and not watched.problem:
                await self._hold(watched)

    def distrust(self, reason: str) -> None:
        """What will be read is not all that was stored, through no fault of the system: nothing may be concluded."""
        self._distrusted = reason

    async def _hold(self, watched: _Watched) -> None:
        deadline = asyncio.get_running_loop().time() + NOT_READY_S
        while True:
            try:
                await self._subscribe(watched)
            except _NotReady as error:
                if asyncio.get_running_loop().time() < deadline:
                    await asyncio.sleep(NOT_READY_PAUSE_S)
                    continue
                watched.problem = str(error)
            except AuditError as error:
                # On its way out the broker answers anything or nothing: it is asked again when it is back.
                watched.problem = "" if self._away else str(error)
            return

    async def _subscribe(self, watched: _Watched) -> None:
        lookup = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
        lookup.lookupTopic.topic = watched.topic
        lookup.lookupTopic.request_id = self._next_request()
        await self._ask(lookup, lookup.lookupTopic.request_id)
        subscribe = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        command = subscribe.subscribe
        command.topic = watched.topic
        command.subscription = SUBSCRIPTION
        command.subType = pb.CommandSubscribe.Exclusive
        # A number of its own each time: what an earlier subscription was sent says nothing any more.
        self._consumers += 1
        command.consumer_id = watched.consumer_id = self._consumers
        command.request_id = self._next_request()
        command.consumer_name = SUBSCRIPTION
        command.durable = True
        # Optional in the protocol; without it Pulsar 2.8.0 closes the connection.
        command.read_compacted = False
        command.initialPosition = pb.CommandSubscribe.Earliest
        answer = await self._ask(subscribe, command.request_id)
        if answer.command.type == pb.BaseCommand.ERROR:
            problem = f"subscribe refused: {answer.command.error.message}"
            raise (_NotReady if answer.command.error.error in NOT_YET else AuditRefused)(problem)
        watched.attached = True

    async def read_everything(self, stored: Stored | None = None) -> None:
        """Record ENTRY for each stored entry of each topic in the order delivered, and LOG_END with the outcome.

        ``stored`` tells the last stored position of a topic from another source, where there is one: a broker that does
        not dispatch calls its topic empty, too (seen with 3.0.7 after a restart), and that is no proof of a loss.
        """
        for watched in self._topics:
            if not watched.attached and not watched.problem and not self._lost:
                await self._hold(watched)
            known = None if stored is None else await stored(watched.topic)
            problem = watched.problem or await self._read_topic(watched, known) or self._distrusted
            extra = {"complete": False, "reason": problem} if problem else {"complete": True}
            self._recorder.record(layer="log", kind="LOG_END", topic=watched.topic, extra=extra)

    async def close(self) -> None:
        """Drop the connection. Idempotent."""
        if self._pump is not None:
            self._pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._pump
            self._pump = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    # --- internals -----------------------------------------------------------------------------------------------

    async def _read_topic(self, watched: _Watched, known: tuple[int, int] | None) -> str:
        """Read up to the last message id the system names, and up to ``known``. The problem, empty when complete."""
        refusal = ""
        try:
            last = await self._last_position(watched)
        except AuditRefused as error:
            # pulsar-lite answers an empty topic with an error: taken as empty only if the read agrees.
            last, refusal = None, str(error)
        except AuditError as error:
            return str(error)
        last = max((position for position in (last, known) if position is not None), default=None)
        patience = PATIENCE_S if self._times_away == 0 else PATIENCE_AFTER_DOWNTIME_S
        self._flow(watched.consumer_id)
        frames = self._messages.setdefault(watched.consumer_id, [])
        granted, taken = PERMITS, 0
        began = asyncio.get_running_loop().time()
        reached = last is None
        while True:
            self._arrived.clear()
            for frame in frames[taken:]:
                taken += 1
                granted -= max(1, frame.metadata.num_messages_in_batch if frame.metadata else 1)
                position = frame.command.message.message_id
                columns = columns_of_message(watched.topic, frame)
                self._recorder.record(layer="log", kind="ENTRY", **columns)
                at = (position.ledgerId, position.entryId)
                if last is not None and at >= last:
                    reached = True
                if granted < PERMITS // 2:
                    self._flow(watched.consumer_id)
                    granted += PERMITS
            if self._lost:
                return self._lost
            try:
                # Past the named end the read goes on until the line is quiet: more than it named may be stored.
                await asyncio.wait_for(self._arrived.wait(), QUIET_S if reached else 1.0)
            except TimeoutError:
                if reached:
                    return refusal if taken else ""
                if asyncio.get_running_loop().time() > began + patience:
                    return f"the read stopped after {taken} entries, before the last id the system named ({last})"
            if asyncio.get_running_loop().time() > began + patience + READ_TIMEOUT_S:
                return f"the read did not end in {patience + READ_TIMEOUT_S:.0f} s"

    async def _last_position(self, watched: _Watched) -> tuple[int, int] | None:
        """The last stored position by GET_LAST_MESSAGE_ID, None for an empty topic."""
        ask = pb.BaseCommand(type=pb.BaseCommand.GET_LAST_MESSAGE_ID)
        ask.getLastMessageId.consumer_id = watched.consumer_id
        ask.getLastMessageId.request_id = self._next_request()
        answer = await self._ask(ask, ask.getLastMessageId.request_id)
        if answer.command.type == pb.BaseCommand.ERROR:
            raise AuditRefused(f"GET_LAST_MESSAGE_ID refused: {answer.command.error.message}")
        last = answer.command.getLastMessageIdResponse.last_message_id
        if last.entryId >= 1 << 63:
            return None
        return (last.ledgerId, last.entryId)

    def _flow(self, consumer_id: int) -> None:
        flow = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        flow.flow.consumer_id = consumer_id
        flow.flow.messagePermits = PERMITS
        self._send(flow)

    def _next_request(self) -> int:
        self._requests += 1
        return self._requests

    async def _ask(self, command: pb.BaseCommand, request_id: int) -> Frame:
        if self._lost:
            raise AuditError(self._lost)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._answers[request_id] = future
        self._send(command)
        try:
            return await asyncio.wait_for(future, ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            name = pb.BaseCommand.Type.Name(command.type)
            raise AuditError(f"the system did not answer {name} in {ANSWER_TIMEOUT_S:.0f} s") from error
        finally:
            self._answers.pop(request_id, None)

    def _send(self, command: pb.BaseCommand) -> None:
        if self._writer is not None:
            self._writer.write(encode(Frame(command)))

    async def _read(self) -> None:
        assert self._reader is not None
        decoder = FrameDecoder(max_frame_size=MAX_MESSAGE_SIZE)
        try:
            while data := await self._reader.read(1 << 16):
                for frame in decoder.feed(data):
                    self._take(frame)
            self._lose("the system closed the auditor's connection")
        except (OSError, WireError) as error:
            self._lose(f"the auditor's connection broke: {error}")

    def _lose(self, reason: str) -> None:
        self._lost = reason
        for watched in self._topics:
            watched.attached = False
        for future in self._answers.values():
            if not future.done():
                future.set_exception(AuditError(reason))
        if self._connected is not None and not self._connected.done():
            self._connected.set_exception(AuditError(reason))
        self._arrived.set()

    def _take(self, frame: Frame) -> None:
        command = frame.command
        kind = command.type
        if kind == pb.BaseCommand.CONNECTED:
            if self._connected is not None and not self._connected.done():
                self._connected.set_result(frame)
        elif kind == pb.BaseCommand.PING:
            self._send(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))
        elif kind == pb.BaseCommand.MESSAGE:
            self._messages.setdefault(command.message.consumer_id, []).append(frame)
            self._arrived.set()
        elif kind == pb.BaseCommand.CLOSE_CONSUMER:
            # The topic was unloaded.
            for watched in self._topics:
                if watched.consumer_id == command.close_consumer.consumer_id:
                    watched.attached = False
        else:
            request_id = _request_id(command)
            future = self._answers.get(request_id) if request_id is not None else None
            if future is not None and not future.done():
                future.set_result(frame)


def _request_id(command: pb.BaseCommand) -> int | None:
    """The request_id of an answer, whichever of the command's messages is set."""
    for _, body in command.ListFields():
        if hasattr(body, "request_id"):
            return int(body.request_id)
    return None
