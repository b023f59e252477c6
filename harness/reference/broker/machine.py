"""The broker as a machine: bytes and time in, bytes out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from harness.reference.broker import answers
from harness.reference.broker.breach import ProtocolBreach, Refusal
from harness.reference.broker.config import BrokerConfig
from harness.reference.broker.connection import Connection
from harness.reference.broker.core import Core
from harness.reference.broker.parts import BrokerParts
from harness.reference.broker.statistics import Statistics
from harness.reference.broker.stored_entry import StoredEntry
from harness.reference.broker.topic import Topic
from harness.reference.broker.topics import Topics
from harness.reference.outputs import BrokerOutput
from harness.wire.frame import Frame, WireError
from harness.wire.message_id import Position
from harness.wire.pulsar_pb2 import BaseCommand

Handler = Callable[[Connection, Frame], None]

_BODY_NAMES = {number: BaseCommand.DESCRIPTOR.fields_by_number[number].name for number in BaseCommand.Type.values()}


def _has_text(number: int) -> bool:
    body = BaseCommand.DESCRIPTOR.fields_by_number[number].message_type
    return body is not None and any(field.type == field.TYPE_STRING for field in body.fields)


_WITH_TEXT = frozenset(filter(_has_text, BaseCommand.Type.values()))


@dataclass(frozen=True, slots=True)
class CursorView:
    """A subscription's progress. ``mark_delete`` None: nothing acknowledged from the start.

    ``individually_deleted``: (ledger, first entry, last entry), ranges never cross a ledger. ``backlog`` in entries.
    """

    mark_delete: Position | None
    individually_deleted: tuple[tuple[int, int, int], ...]
    backlog: int


class BrokerMachine:
    """See ``ARCHITECTURE.md`` for the interface. ``now`` is in nanoseconds since the epoch and must never go back.

    Deadlines that have passed are served, in their order, before the event of a call. ``CAPABILITIES``: what it can,
    in the words of ``harness.systems.system``.
    """

    CAPABILITIES: ClassVar[frozenset[str]] = frozenset(
        {
            "dedup",
            "dedup_switch",
            "batch_index_ack",
            "key_shared",
            "cursor_view",
            "ack_receipt",
            "delayed",
            "partitions",
            "admin",
        }
    )

    def __init__(self, config: BrokerConfig | None = None, parts: BrokerParts | None = None) -> None:
        self.core = Core(config or BrokerConfig(), parts or BrokerParts())
        made = self.core.parts
        self._topics = Topics(self.core)
        self._sessions = made.sessions(self.core)
        self._publish = made.publish(self.core, self._topics, self._sessions)
        self._consume = made.consume(self.core, self._topics, self._sessions)
        self._lookup = made.lookup(self.core, self._topics)
        self._down = False
        self._handlers: dict[int, Handler] = {
            BaseCommand.LOOKUP: self._lookup.lookup,
            BaseCommand.PARTITIONED_METADATA: self._lookup.partitions,
            BaseCommand.GET_TOPICS_OF_NAMESPACE: self._lookup.topics_of_namespace,
            BaseCommand.PRODUCER: self._publish.register,
            BaseCommand.SEND: self._publish.send,
            BaseCommand.CLOSE_PRODUCER: self._publish.close,
            BaseCommand.SUBSCRIBE: self._consume.subscribe,
            BaseCommand.FLOW: self._consume.flow,
            BaseCommand.ACK: self._consume.ack,
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: self._consume.redeliver,
            BaseCommand.GET_LAST_MESSAGE_ID: self._consume.last_message_id,
            BaseCommand.SEEK: self._consume.seek,
            BaseCommand.UNSUBSCRIBE: self._consume.unsubscribe,
            BaseCommand.CLOSE_CONSUMER: self._consume.close,
        }

    # ------------------------------------------------------------------------------------------------ connections

    def connected(self, conn: Hashable, now: int) -> list[BrokerOutput]:
        """A peer has connected; a broker that is down refuses by closing."""
        self._advance(now)
        if self._down:
            self.core.outbox.close(conn)
        else:
            self._sessions.opened(conn)
        return self.core.outbox.drain()

    def received(self, conn: Hashable, data: bytes, now: int) -> list[BrokerOutput]:
        """Bytes, cut anywhere. Bytes of a connection that was closed are ignored."""
        self._advance(now)
        connection = self._sessions.open.get(conn)
        if connection is not None:
            try:
                frames: Sequence[Frame] = connection.decoder.feed(data)
                broken = False
            except WireError as error:
                frames, broken = error.frames, True
            for frame in frames:
                self._serve(connection, frame)
            if broken and connection.alive:
                self._sessions.close(connection)
        return self.core.outbox.drain()

    def disconnected(self, conn: Hashable, now: int) -> list[BrokerOutput]:
        """The peer is gone; safe to call for a connection the machine has closed itself."""
        self._advance(now)
        connection = self._sessions.open.get(conn)
        if connection is not None:
            self._sessions.lost(connection)
        return self.core.outbox.drain()

    def tick(self, now: int) -> list[BrokerOutput]:
        """Serves the deadlines that have passed."""
        self._advance(now)
        return self.core.outbox.drain()

    def next_deadline(self) -> int | None:
        """When ``tick`` has something to do, unless something else happens first."""
        return self.core.timers.next_due()

    def _advance(self, now: int) -> None:
        core = self.core
        while (timer := core.timers.take_due(now)) is not None:
            core.now = max(core.now, timer.due)
            timer.action()
        core.now = max(core.now, now)

    def _serve(self, connection: Connection, frame: Frame) -> None:
        if not connection.alive:
            return
        try:
            if self._sessions.admit(connection, frame):
                self._handle(connection, frame)
        except Refusal as refusal:
            request_id = _request_id(frame.command)
            if request_id is None:
                raise
            connection.send(answers.error(request_id, refusal.error, refusal.message))
        except ProtocolBreach:
            self._sessions.close(connection)

    def _handle(self, connection: Connection, frame: Frame) -> None:
        command = frame.command
        handler = self._handlers.get(command.type) if command.HasField("type") else None
        if handler is not None:
            if command.type in _WITH_TEXT:
                _require_text(command)
            handler(connection, frame)
        elif _request_id(command) is None or _is_answer(command):
            raise ProtocolBreach("a command that no client sends")
        else:
            raise Refusal("NotAllowedError", f"this broker does not serve {BaseCommand.Type.Name(command.type)}")

    # ------------------------------------------------------------------------------------------------ faults

    @property
    def down(self) -> bool:
        return self._down

    def crash(self, now: int) -> list[BrokerOutput]:
        """The process dies: connections are cut, and what was not persisted is lost. Stays down until ``restart``."""
        self._advance(now)
        self._die()
        return self.core.outbox.drain()

    def _die(self) -> None:
        self._down = True
        self.core.timers.clear()
        for connection in list(self._sessions.open.values()):
            connection.close()
        self._sessions.open.clear()
        for topic in self._topics.all():
            topic.recover()

    def restart(self, now: int) -> list[BrokerOutput]:
        """Starts again; a broker that is up is stopped in good order first, which loses nothing (MARKDEL-04)."""
        self._advance(now)
        if not self._down:
            for topic in self._topics.all():
                self._settle(topic)
            self._die()
        self._down = False
        return self.core.outbox.drain()

    def reconfigure(self, *, max_entries_per_ledger: int | None = None, max_message_size: int | None = None) -> None:
        """Settings that hold from the next start on; to be called while it is down. None leaves one as it is."""
        core = self.core
        if max_entries_per_ledger is not None:
            core.config = replace(core.config, max_entries_per_ledger=max_entries_per_ledger)
            for topic in self._topics.all():
                topic.ledgers.limit(max_entries_per_ledger)
        if max_message_size is not None:
            core.config = replace(core.config, max_message_size=max_message_size)

    def unload(self, topic: str, now: int) -> list[BrokerOutput]:
        """Gives the topic up in good order and takes it again: its clients are told to reconnect."""
        self._advance(now)
        found = self._topics.find(topic)
        if found is not None:
            self._settle(found)
            self._expel(found)
            found.recover()
        return self.core.outbox.drain()

    def _expel(self, topic: Topic) -> None:
        for producer in list(topic.producers.values()):
            self._publish.expel(producer)
        for subscription in list(topic.subscriptions.values()):
            for consumer in list(subscription.dispatcher.consumers):
                self._consume.expel(consumer)

    def terminate(self, topic: str, now: int) -> list[BrokerOutput]:
        """Nothing more is stored in the topic: writes under way end first, producers are told and not let in again."""
        self._advance(now)
        found = self._topics.find(topic)
        if found is not None:
            found.finish_writes()
            found.terminated = True
            for producer in list(found.producers.values()):
                self._publish.expel(producer)
        return self.core.outbox.drain()

    def delete_topic(self, topic: str, now: int) -> list[BrokerOutput]:
        """With everything in it, whoever is connected: they are told to come again."""
        self._advance(now)
        found = self._topics.find(topic)
        if found is not None:
            self._topics.remove(found)
            self._expel(found)
        return self.core.outbox.drain()

    def delete_subscription(self, topic: str, subscription: str, now: int) -> list[BrokerOutput]:
        """With what it has acknowledged; consumers are told to come again, and make a new one."""
        self._advance(now)
        found = self._topics.find(topic)
        subscribed = None if found is None else found.subscriptions.get(subscription)
        if found is not None and subscribed is not None:
            found.drop_subscription(subscribed)
            for consumer in list(subscribed.dispatcher.consumers):
                self._consume.expel(consumer)
        return self.core.outbox.drain()

    def set_partitions(self, topic: str, partitions: int) -> None:
        """Of a complete topic name, whose partitions are made on first use."""
        self.core.set_partitions(topic, partitions)

    def fail_writes(self, topic: str, now: int) -> list[BrokerOutput]:
        """Storage refuses every write under way on the topic."""
        self._advance(now)
        found = self._topics.find(topic)
        if found is not None:
            found.fail_writes()
        return self.core.outbox.drain()

    def set_dedup(self, enabled: bool, prefix: str = "") -> None:
        """Switches deduplication for every topic, there is or will be, whose complete name begins with ``prefix``.

        A namespace policy does the same to all topics below it; a prefix lets runs side by side choose each its own.
        """
        self.core.set_dedup(enabled, prefix)
        for topic in self._topics.all():
            if topic.name.complete.startswith(prefix):
                topic.set_dedup(enabled)

    def _settle(self, topic: Topic) -> None:
        topic.finish_writes()
        for subscription in topic.subscriptions.values():
            subscription.save()
        topic.take_snapshot()

    # ------------------------------------------------------------------------------------------------ for judges

    def topics(self) -> list[str]:
        """Complete names, in the order of creation."""
        return [topic.name.complete for topic in self._topics.all()]

    def entries(self, topic: str) -> list[StoredEntry]:
        """Persisted entries in position order; none for a topic that does not exist."""
        found = self._topics.find(topic)
        return [] if found is None else list(found.ledgers.entries)

    def subscriptions(self, topic: str) -> list[str]:
        found = self._topics.find(topic)
        return [] if found is None else list(found.subscriptions)

    def statistics(self, topic: str) -> Statistics | None:
        """The broker's own accounts of a topic; None when there is none of that name."""
        found = self._topics.find(topic)
        return None if found is None else self.core.parts.statistics(found)

    def cursor(self, topic: str, subscription: str) -> CursorView | None:
        """None when there is no such subscription."""
        found = self._topics.find(topic)
        subscribed = None if found is None else found.subscriptions.get(subscription)
        if found is None or subscribed is None:
            return None
        cursor, entries = subscribed.cursor, found.ledgers.entries
        mark = None if cursor.mark_delete < 0 else entries[cursor.mark_delete]
        return CursorView(
            None if mark is None else Position(mark.ledger, mark.entry),
            tuple(part for first, last in cursor.ranges.all() for part in found.ledgers.spans(first, last)),
            cursor.unacked_before(len(entries)),
        )


def _request_id(command: BaseCommand) -> int | None:
    """The request id of any command that has one."""
    if not command.HasField("type"):
        return None
    body = getattr(command, _BODY_NAMES[command.type])
    if "request_id" in body.DESCRIPTOR.fields_by_name and body.HasField("request_id"):
        return int(body.request_id)
    return None


def _is_answer(command: BaseCommand) -> bool:
    """Whether only brokers send this command."""
    name = BaseCommand.Type.Name(command.type)
    return name.endswith(("_RESPONSE", "_SUCCESS")) or name in ("SUCCESS", "ERROR", "CONNECTED")


def _require_text(command: BaseCommand) -> None:
    """Raises ``ProtocolBreach`` for names that are not UTF-8, which protobuf hands over as bytes."""
    body = getattr(command, _BODY_NAMES[command.type])
    for field, value in body.ListFields():
        if field.type == field.TYPE_STRING and isinstance(value, bytes):
            raise ProtocolBreach(f"{field.name} is not UTF-8")
