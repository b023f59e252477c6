"""Connections: handshake, keep-alive, liveness, and what goes with a lost one."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from harness.reference.broker import answers
from harness.reference.broker.breach import ProtocolBreach
from harness.reference.broker.connection import Connection
from harness.reference.broker.core import Core
from harness.wire.frame import Frame
from harness.wire.pulsar_pb2 import BaseCommand


class Sessions:
    """All open connections."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.open: dict[Hashable, Connection] = {}

    def opened(self, conn: Hashable) -> Connection:
        config = self.core.config
        # A frame's total size field is part of what the decoder counts.
        limit = config.max_message_size + config.frame_padding
        connection = self.core.parts.connection(conn, self.core.outbox, limit)
        self.open[conn] = connection
        self._watch(connection)
        return connection

    # ------------------------------------------------------------------------------------------------ handshake

    def admit(self, connection: Connection, frame: Frame) -> bool:
        """True when the frame may be served; a handshake is served here (CONN-12). Raises ``ProtocolBreach``."""
        connection.heard = True
        waiting, connection.probes = connection.probes, []
        for proceed in waiting:
            proceed(True)
        # A type of a later revision reads as the first one of the enum, CONNECT.
        kind = frame.command.type if frame.command.HasField("type") else None
        if kind == BaseCommand.CONNECT:
            if connection.shaken:
                raise ProtocolBreach("a second CONNECT")
            connection.shaken = True
            self._welcome(connection, frame)
            return False
        if not connection.shaken:
            raise ProtocolBreach("a command before CONNECT")
        if kind == BaseCommand.PING:
            self.answer_ping(connection)
            return False
        return kind != BaseCommand.PONG

    def _welcome(self, connection: Connection, frame: Frame) -> None:
        config = self.core.config
        command = BaseCommand(type=BaseCommand.CONNECTED)
        connected = command.connected
        connected.server_version = config.server_version
        connected.protocol_version = min(config.protocol_version, frame.command.connect.protocol_version)
        connected.max_message_size = config.max_message_size
        connected.feature_flags.supports_topic_watchers = False
        connection.send(command)

    # ------------------------------------------------------------------------------------------------ life signs

    def answer_ping(self, connection: Connection) -> None:
        """KEEP-02."""
        connection.send(answers.pong())

    def _watch(self, connection: Connection) -> None:
        self.core.timers.set(self.core.now + self.core.config.keep_alive, lambda: self._tick(connection))

    def _tick(self, connection: Connection) -> None:
        """KEEP-01: silent for a whole interval after a ping, or no handshake within one, ends the connection."""
        if not connection.alive:
            return
        if not connection.heard or not connection.shaken:
            self.close(connection)
            return
        connection.heard = False
        connection.send(answers.ping())
        self._watch(connection)

    def probe(self, connection: Connection, proceed: Callable[[bool], None]) -> None:
        """Asks whether the peer still lives; a silent one is dropped before ``proceed(False)`` (PROD-17)."""
        if not connection.alive:
            proceed(False)
            return
        connection.probes.append(proceed)
        if len(connection.probes) == 1:
            connection.send(answers.ping())
            due = self.core.now + self.core.config.liveness_timeout
            waiting = connection.probes
            self.core.timers.set(due, lambda: self._silent(connection, waiting))

    def _silent(self, connection: Connection, waiting: list[Callable[[bool], None]]) -> None:
        # A life sign replaces the list; then this deadline is about a question already answered.
        if connection.alive and connection.probes is waiting:
            self.close(connection)

    # ------------------------------------------------------------------------------------------------ the end

    def close(self, connection: Connection) -> None:
        """The broker ends the connection."""
        connection.close()
        self.lost(connection)

    def lost(self, connection: Connection) -> None:
        """Takes everything that lived on the connection out of its topics."""
        connection.alive = False
        self.open.pop(connection.conn, None)
        for producer in list(connection.producers.values()):
            producer.topic.remove_producer(producer)
        connection.producers.clear()
        consumers = list(connection.consumers.values())
        connection.consumers.clear()
        for consumer in consumers:
            consumer.subscription.detach(consumer)
        waiting, connection.probes = connection.probes, []
        for proceed in waiting:
            proceed(False)
