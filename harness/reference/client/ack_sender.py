"""When acknowledgements leave, and who waits for the broker's answer (clauses ACK-IND-01 to ACK-IND-04, ACK-03 ff)."""

from __future__ import annotations

from collections.abc import Callable

from harness.reference.client.ack_set import to_words
from harness.reference.client.ack_tracker import AckGroup, AckId, AckTracker
from harness.reference.client.connection import Connection
from harness.reference.client.counters import Counters
from harness.reference.client.failure import CLOSED, Failure, from_broker
from harness.reference.client.runtime import Runtime
from harness.reference.client.timers import Timer
from harness.wire.message_id import Position
from harness.wire.pulsar_pb2 import BaseCommand, CommandAck, MessageIdData

OnDone = Callable[[], None]
OnFailed = Callable[[Failure], None]

#: Peers below take one id in an ACK (clause ACK-06).
_MANY_IDS_SINCE = 12


class AckSender:
    """Sends what a tracker holds, grouped by ``group`` nanoseconds and by number.

    Nothing leaves before ``subscribed`` and after ``unsubscribed``; what is pending is kept (ACK-09, ACK-27).
    """

    def __init__(
        self, runtime: Runtime, counters: Counters, consumer_id: int, tracker: AckTracker, group: int, receipts: bool
    ) -> None:
        self._runtime = runtime
        self._counters = counters
        self._consumer_id = consumer_id
        self._tracker = tracker
        self._group = group
        self._receipts = receipts
        self._connection: Connection | None = None
        self._epoch = 0
        self._wanted: list[tuple[OnDone, OnFailed]] = []
        self._timer: Timer | None = None

    def subscribed(self, connection: Connection, epoch: int) -> None:
        """The broker knows the consumer on this connection; what is pending leaves at once."""
        self._connection = connection
        self._epoch = epoch
        self.flush()

    def unsubscribed(self) -> None:
        """Hold everything back."""
        self._connection = None

    def recorded(self, to_send: bool, on_done: Callable[[bool], None], on_failed: OnFailed) -> None:
        """An acknowledgement call was recorded in the tracker; ``to_send``: it left something to send.

        ``on_done`` is told whether the broker confirmed it: at once and False without receipts (ACK-03).
        """
        if self._receipts and to_send:
            self._wanted.append((lambda: on_done(True), on_failed))
        else:
            on_done(False)
        if to_send:
            self.plan()

    def plan(self) -> None:
        """See to it that what is pending leaves in time."""
        if self._group == 0 or len(self._tracker) >= self._runtime.config.ack_group_size:
            self.flush()
        elif self._timer is None or not self._timer.pending:
            self._timer = self._runtime.after(self._group, self.flush)

    def flush(self) -> None:
        """Send everything that is pending, the cumulative acknowledgement first."""
        connection = self._connection
        if connection is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        groups = self._tracker.take(self._epoch)
        wanted, self._wanted = self._wanted, []
        commands = [command for group in groups for command in self._commands(group, connection)]
        outcome = _Receipts(len(commands), wanted)
        for command in commands:
            self._send(connection, command, outcome if wanted else None)

    def discard(self, entries: list[Position], error: CommandAck.ValidationError) -> None:
        """Acknowledge entries nobody could read, with the reason, at once (CORR-01)."""
        if self._connection is None:
            return
        ack = CommandAck(
            consumer_id=self._consumer_id,
            ack_type=CommandAck.Individual,
            message_id=[position.write() for position in entries],
            validation_error=error,
        )
        self._connection.send(BaseCommand(type=BaseCommand.ACK, ack=ack))

    def stop(self) -> None:
        """The consumer is closed: no frame, no timer; calls whose acknowledgement never left fail."""
        self._connection = None
        if self._timer is not None:
            self._timer.cancel()
        wanted, self._wanted = self._wanted, []
        for _, on_failed in wanted:
            on_failed(CLOSED)

    def _commands(self, group: AckGroup, connection: Connection) -> list[CommandAck]:
        kind = CommandAck.Cumulative if group.kind == "cumulative" else CommandAck.Individual
        ids = [_id_data(ack_id) for ack_id in group.ids]
        sets = [ids] if connection.peer_protocol_version >= _MANY_IDS_SINCE else [[one] for one in ids]
        return [CommandAck(consumer_id=self._consumer_id, ack_type=kind, message_id=some) for some in sets]

    def _send(self, connection: Connection, ack: CommandAck, outcome: _Receipts | None) -> None:
        command = BaseCommand(type=BaseCommand.ACK, ack=ack)
        if outcome is None:
            connection.send(command)
            return
        request_id = self._counters.request_id()
        command.ack.request_id = request_id

        def answered(answer: BaseCommand) -> None:
            response = answer.ackResponse
            outcome.settle(from_broker(response.error, response.message) if response.HasField("error") else None)

        connection.request(request_id, command, answered, outcome.settle)


class _Receipts:
    """The acknowledgement calls that went out together; they end together."""

    def __init__(self, frames: int, wanted: list[tuple[OnDone, OnFailed]]) -> None:
        self._open = frames
        self._wanted = wanted
        self._failure: Failure | None = None
        if not frames:
            self._tell()

    def settle(self, failure: Failure | None) -> None:
        """One frame was answered, or will not be."""
        self._open -= 1
        self._failure = self._failure or failure
        if self._open == 0:
            self._tell()

    def _tell(self) -> None:
        for on_done, on_failed in self._wanted:
            if self._failure is None:
                on_done()
            else:
                on_failed(self._failure)


def _id_data(ack_id: AckId) -> MessageIdData:
    data = ack_id.position.write()
    if ack_id.unacked is not None:
        data.ack_set.extend(to_words(ack_id.unacked, ack_id.size))
        data.batch_size = ack_id.size
    return data
