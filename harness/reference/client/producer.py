"""A producer: from an accepted message to the one outcome the application hears (clauses PROD, PUB, RCPT, ERR, TMO)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from harness.reference.client.config import MILLISECOND
from harness.reference.client.connection import DEFAULT_MAX_MESSAGE_SIZE, FRAME_PADDING, Connection
from harness.reference.client.counters import Counters
from harness.reference.client.failure import CLOSED, INTERRUPTED, TIMED_OUT, Failure, from_broker
from harness.reference.client.link import Link
from harness.reference.client.lookup import Lookup
from harness.reference.client.outgoing import Outgoing, PendingSend
from harness.reference.client.pool import ConnectionPool
from harness.reference.client.runtime import Runtime
from harness.reference.client.send_frame import batch_envelope, message_metadata, send_frame
from harness.reference.client.timers import Timer
from harness.wire import codec
from harness.wire.frame import Frame
from harness.wire.message_id import Position, stored_position
from harness.wire.pulsar_pb2 import (
    NONE,
    BaseCommand,
    CommandCloseProducer,
    CommandProducer,
    CommandSendReceipt,
    CompressionType,
    MessageMetadata,
    ServerError,
)

State = Literal["creating", "open", "terminated", "failed", "closing", "closed"]
OnDone = Callable[[], None]
OnFailed = Callable[[Failure], None]


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """Caps of a batch; ``max_delay`` in nanoseconds, 0 bytes for no cap."""

    max_messages: int = 1000
    max_bytes: int = 128 * 1024
    max_delay: int = 10 * MILLISECOND


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """``send_timeout`` in nanoseconds, 0 for never; ``max_pending`` in messages, 0 for no limit."""

    topic: str
    name: str
    batching: BatchingOptions | None = None
    chunking: bool = False
    compression: CompressionType = NONE
    send_timeout: int = 30_000 * MILLISECOND
    initial_sequence_id: int | None = None
    max_pending: int = 1000
    block_if_full: bool = False


class Producer:
    """Attached by a ``Link``; owns the parts that decide ids, batches, pieces and what is pending."""

    def __init__(
        self,
        runtime: Runtime,
        pool: ConnectionPool,
        lookup: Lookup,
        counters: Counters,
        options: ProducerOptions,
        on_created: Callable[[int], None],
        on_creation_failed: OnFailed,
    ) -> None:
        parts, config = runtime.parts, runtime.config
        self._runtime = runtime
        self._counters = counters
        self.options = options
        self.id = counters.producer_id()
        self.state: State = "creating"
        self._on_created = on_created
        self._on_creation_failed = on_creation_failed
        self._ids = parts.sequence_ids(options.initial_sequence_id)
        self._pending = parts.pending_queue()
        self._splitter = parts.chunk_splitter()
        batching = options.batching
        self._batch = (
            parts.batch_builder(batching.max_messages, batching.max_bytes, batching.max_delay) if batching else None
        )
        stop = max(config.backoff_initial, options.send_timeout - config.backoff_initial)
        backoff = parts.backoff(config.backoff_initial, config.backoff_maximum, stop)
        self._link = Link(runtime, pool, lookup, options.topic, self, backoff)
        self._connection: Connection | None = None
        self._epoch = -1
        self._last_pushed = -1
        self._limit = DEFAULT_MAX_MESSAGE_SIZE
        self.last_sequence_id = -1
        self._sends = 0
        self._unresolved: dict[int, Outgoing] = {}
        self._permits_taken = 0
        self._blocked: deque[Outgoing] = deque()
        self._flushes: list[tuple[int, OnDone, OnFailed]] = []
        self._closes: list[tuple[OnDone, OnFailed]] = []
        self._batch_timer: Timer | None = None
        self._send_timer: Timer | None = None
        self._link.start()

    # -- what the application asks

    def send(self, message: Outgoing) -> None:
        """Accept, hold back or refuse ``message`` (clauses PUB-01, PUB-03)."""
        refusal = self._state_refusal()
        if refusal is not None:
            message.on_failed(refusal)
            return
        self._sends += 1
        message.number = self._sends
        self._unresolved[message.number] = message
        if not self._has_permit():
            if self.options.block_if_full:
                self._blocked.append(message)
            else:
                full = Failure("queue_full", f"{self.options.max_pending} messages are pending")
                self._resolve(message, lambda: message.on_failed(full))
            return
        self._accept(message)

    def flush(self, on_done: OnDone, on_failed: OnFailed) -> None:
        """A barrier: every send before it is resolved first (clause PUB-11). Fails as the first of them that fails."""
        refusal = self._state_refusal()
        if refusal is not None:
            on_failed(refusal)
            return
        self._flushes.append((self._sends, on_done, on_failed))
        self._close_batch()
        self._finish_flushes()

    def close(self, on_done: OnDone, on_failed: OnFailed) -> None:
        """Give the name free at the broker; nothing is left unresolved (clauses PCLOSE-01 to PCLOSE-04)."""
        if self.state in ("closed", "failed"):
            on_done()
            return
        self._closes.append((on_done, on_failed))
        if self.state == "closing":
            return
        was_creating, self.state = self.state == "creating", "closing"
        self._close_batch()
        for message in self._take_blocked():
            self._fail(message, CLOSED)
        registered_on = self._link.connection
        self._link.stop()
        if was_creating:
            self._on_creation_failed(INTERRUPTED)
        if registered_on is None or not registered_on.ready:
            self._closed(None)
            return
        # Also while PRODUCER is unanswered (PROD-09): the broker then frees the name as soon as it has taken it.
        request_id = self._counters.request_id()
        close = CommandCloseProducer(producer_id=self.id, request_id=request_id)
        command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=close)
        registered_on.request(request_id, command, lambda _: self._closed(None), self._close_failed)

    # -- what the link asks

    def register(self, connection: Connection, timeout: int) -> None:
        """Send PRODUCER (clause PROD-03)."""
        self._epoch += 1
        epoch = self._epoch
        connection.attach_producer(self.id, self)
        request_id = self._counters.request_id()
        producer = CommandProducer(
            topic=self.options.topic,
            producer_id=self.id,
            request_id=request_id,
            producer_name=self.options.name,
            user_provided_producer_name=True,
            epoch=epoch,
        )
        connection.request(
            request_id,
            BaseCommand(type=BaseCommand.PRODUCER, producer=producer),
            lambda answer: self._registered(connection, epoch, answer.producer_success.last_sequence_id),
            lambda failure: self._not_registered(connection, epoch, failure),
            timeout,
        )

    def unregistered(self, failure: Failure) -> None:
        """Keep what is pending; the link reattaches."""
        self._connection = None

    def creation_failed(self, failure: Failure) -> None:
        """No further frame for this producer (clause PROD-15)."""
        self.state = "failed"
        self._on_creation_failed(failure)

    # -- what the connection says

    def frame_received(self, frame: Frame) -> None:
        """SEND_RECEIPT, SEND_ERROR or the broker's CLOSE_PRODUCER."""
        command = frame.command
        if command.type == BaseCommand.SEND_RECEIPT:
            self._receipt(command.send_receipt)
        elif command.type == BaseCommand.SEND_ERROR:
            error = command.send_error
            self._send_error(error.sequence_id, error.error, error.message)
        elif command.type == BaseCommand.CLOSE_PRODUCER:
            self._reattach(Failure("disconnected", "the broker closed the producer"))

    def connection_lost(self, failure: Failure) -> None:
        """Wait for the link (clause PUB-02)."""
        self._connection = None
        self._link.lost(failure)

    # -- registration

    def _registered(self, connection: Connection, epoch: int, last_sequence_id: int) -> None:
        if epoch != self._epoch or self._link.state != "registering":
            return
        first = not self._link.created
        self._link.registered()
        self._connection = connection
        self._limit = connection.max_message_size
        self._ids.registered(last_sequence_id)
        if self._batch is not None:
            self._batch.set_message_limit(self._limit)
        self._resend()
        if first:
            initial = self.options.initial_sequence_id
            self.last_sequence_id = last_sequence_id if initial is None else initial
            self._last_pushed = self.last_sequence_id
            self.state = "open"
            self._on_created(self.last_sequence_id)

    def _not_registered(self, connection: Connection, epoch: int, failure: Failure) -> None:
        if epoch != self._epoch or self._link.state != "registering":
            return
        connection.detach(self)
        if failure is TIMED_OUT:
            self._send_ghost_close(connection)
        if failure.server_error in (ServerError.TopicTerminatedError, ServerError.ProducerFenced):
            self._terminate(failure)
            return
        if failure.server_error == ServerError.ProducerBlockedQuotaExceededException:
            self._fail_everything(failure)  # PROD-13; the other quota policy holds them
        self._link.failed(failure)

    def _send_ghost_close(self, connection: Connection) -> None:
        """REQ-03: a late success must not leave a registered producer behind."""
        request_id = self._counters.request_id()
        close = CommandCloseProducer(producer_id=self.id, request_id=request_id)
        connection.send(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=close))

    def _reattach(self, failure: Failure) -> None:
        """Leave the connection to its other users and register again (clauses PROD-16, ERR-04)."""
        if self._link.state == "stopped":
            return
        if self._link.connection is not None:
            self._link.connection.detach(self)
        self._connection = None
        self._link.lost(failure)

    def _resend(self) -> None:
        for pending in self._pending.to_resend():
            self._write(pending)

    def _terminate(self, failure: Failure) -> None:
        """PROD-14, ERR-05: no message will ever be stored again."""
        creating, self.state = self.state == "creating", "terminated"
        if self._link.connection is not None:
            self._link.connection.detach(self)
        self._link.stop()
        self._connection = None
        self._fail_everything(failure)
        if creating:
            self._on_creation_failed(failure)

    # -- accepting

    def _state_refusal(self) -> Failure | None:
        if self.state in ("closing", "closed"):
            return CLOSED
        if self.state == "terminated":
            return Failure("already_closed", "TopicTerminatedError: the topic was terminated")
        if self.state in ("creating", "failed"):
            return Failure("not_connected", "the producer was never registered")
        return None

    def _has_permit(self) -> bool:
        return not self.options.max_pending or self._permits_taken < self.options.max_pending

    def _accept(self, message: Outgoing) -> None:
        """Everything that can refuse a message comes before it gets its id, so that no id is burnt."""
        self._permits_taken += 1
        message.accepted_at = self._runtime.now
        message.publish_time = self._runtime.now // MILLISECOND
        if message.deliver_after is not None:
            message.deliver_at = message.publish_time + message.deliver_after
        if self._batch is not None and message.deliver_at is None and not self.options.chunking:
            self._accept_into_batch(message)
        else:
            self._accept_alone(message)

    def _accept_into_batch(self, message: Outgoing) -> None:
        assert self._batch is not None
        if len(message.payload) > self._limit:
            self._refuse(message)
            return
        message.sequence_id = self._ids.assign(message.explicit_sequence_id)
        if not self._batch.takes(message, self._last_pushed):
            self._close_batch()
        self._batch.add(message, self._last_pushed)
        self._watch_send_timeout()
        if self._batch.is_full:
            self._close_batch()
        elif len(self._batch) == 1:
            self._batch_timer = self._runtime.after(self._batch.max_delay, self._close_batch)

    def _accept_alone(self, message: Outgoing) -> None:
        payload = codec.compress(self.options.compression, message.payload)
        metadata = message_metadata(message, self.options.name, self.options.compression)
        too_wide = metadata.ByteSize() + min(len(payload), self._limit) > self._limit + FRAME_PADDING
        if too_wide or (len(payload) > self._limit and not self.options.chunking):
            self._refuse(message)
            return
        self._close_batch()  # what was accepted before leaves before (PUB-08)
        message.sequence_id = self._ids.assign(message.explicit_sequence_id)
        metadata.sequence_id = message.sequence_id
        pieces = [(metadata, payload)]
        if self.options.chunking:
            pieces = self._splitter.pieces(metadata, payload, self._limit)
        for number, (piece, part) in enumerate(pieces):
            self._enqueue([message], piece, part, last_piece=number == len(pieces) - 1)

    def _refuse(self, message: Outgoing) -> None:
        text = f"{len(message.payload)} bytes do not fit into {self._limit}"
        self._release_permit()
        self._resolve(message, lambda: message.on_failed(Failure("too_big", text)))

    def _close_batch(self) -> None:
        """The open batch leaves; one message alone leaves as a plain message (clause BATCH-02)."""
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        if self._batch is None or not len(self._batch):
            return
        members = self._batch.take()
        if len(members) == 1:
            metadata = message_metadata(members[0], self.options.name, self.options.compression)
            payload = codec.compress(self.options.compression, members[0].payload)
        else:
            metadata, payload = batch_envelope(members, self.options.name, self.options.compression)
        self._enqueue(members, metadata, payload)

    def _enqueue(
        self, messages: list[Outgoing], metadata: MessageMetadata, payload: bytes, *, last_piece: bool = True
    ) -> None:
        is_batch = metadata.HasField("num_messages_in_batch")
        pending = PendingSend(
            sequence_id=metadata.sequence_id,
            highest_sequence_id=metadata.highest_sequence_id if is_batch else metadata.sequence_id,
            messages=messages,
            data=send_frame(self.id, metadata, payload),
            accepted_at=messages[0].accepted_at,
            is_chunk=metadata.HasField("chunk_id"),
            last_piece=last_piece,
        )
        self._pending.append(pending)
        self._last_pushed = max(self._last_pushed, pending.highest_sequence_id)
        self._watch_send_timeout()
        self._write(pending)

    def _write(self, pending: PendingSend) -> None:
        if self._connection is not None:
            pending.written = True
            self._connection.send_bytes(pending.data)

    # -- answers

    def _receipt(self, receipt: CommandSendReceipt) -> None:
        position = stored_position(receipt.message_id) if receipt.HasField("message_id") else None
        if position is None and not self._is_for_the_head(receipt):
            return
        verdict = self._pending.receipt(receipt.sequence_id, receipt.highest_sequence_id)
        if verdict == "complete":
            self._complete(self._pending.pop_head(), position)
            while self._pending.head_is_answered():
                self._complete(self._pending.pop_head(), None)
        elif verdict == "future":
            self._out_of_step(receipt.sequence_id)

    def _is_for_the_head(self, receipt: CommandSendReceipt) -> bool:
        """Whether a receipt without a position is to be matched with the head like any other.

        One that overtook the others completes nothing now. It names an id from the future, so the first time it makes
        us start over like any such receipt (RCPT-02); then it is known and ignored, else we would start over for ever.
        """
        found = self._pending.note_duplicate(receipt.sequence_id)
        head = self._pending.head
        if found == "new" and head is not None and receipt.sequence_id > head.sequence_id:
            self._out_of_step(receipt.sequence_id)
        return found in ("head", "none")

    def _out_of_step(self, sequence_id: int) -> None:
        """RCPT-02: the two sides disagree about what was sent; start over on a new connection."""
        head = self._pending.head
        expected = None if head is None else head.sequence_id
        if self._connection is not None:
            self._connection.close(Failure("disconnected", f"receipt for {sequence_id} while {expected} is awaited"))

    def _complete(self, pending: PendingSend, position: Position | None) -> None:
        self.last_sequence_id = max(self.last_sequence_id, pending.highest_sequence_id)
        if pending.is_chunk and pending.messages[0].first_chunk is None:
            pending.messages[0].first_chunk = position
        if not pending.last_piece:
            return
        for index, message in enumerate(pending.messages):
            message_id: dict[str, Any] = {}
            result: dict[str, Any] = {"message_id": message_id}
            if position is None:
                result["duplicate"] = True  # RCPT-05: success without a place
            else:
                message_id.update(ledger=position.ledger, entry=position.entry)
                if len(pending.messages) > 1:
                    message_id["batch_index"] = index
                if pending.is_chunk and message.first_chunk is not None:
                    message_id["first_chunk"] = [message.first_chunk.ledger, message.first_chunk.entry]
            self._release_permit()
            self._succeed(message, result)
        self._admit_blocked()

    def _send_error(self, sequence_id: int, error: int, text: str) -> None:
        failure = from_broker(error, text)
        pending = self._pending.named_by_error(sequence_id)
        if error == ServerError.TopicTerminatedError:
            self._terminate(failure)
        elif pending is None and error in (ServerError.ChecksumError, ServerError.NotAllowedError):
            pass  # the message it names timed out already
        elif error == ServerError.ChecksumError and pending is not None:
            self._checksum_refused(pending, failure)
        elif error == ServerError.NotAllowedError and pending is not None:
            self._drop(pending, failure)  # RECEIPT-06: permanent for this message only
        else:
            self._reattach(failure)

    def _checksum_refused(self, pending: PendingSend, failure: Failure) -> None:
        """ERR-01 to ERR-03. Sent again at once only the first time: a link that always flips must not spin."""
        if not self._pending.is_intact(pending):
            self._drop(pending, failure)
            return
        pending.checksum_refusals += 1
        if pending is self._pending.head and pending.checksum_refusals == 1:
            self._resend()
        else:
            self._reattach(failure)

    def _drop(self, pending: PendingSend, failure: Failure) -> None:
        self._pending.remove_message(pending)
        for message in pending.messages:
            self._release_permit()
            self._fail(message, failure)
        self._admit_blocked()

    # -- outcomes

    def _succeed(self, message: Outgoing, result: dict[str, Any]) -> None:
        self._resolve(message, lambda: message.on_sent(result))

    def _fail(self, message: Outgoing, failure: Failure) -> None:
        self._resolve(message, lambda: message.on_failed(failure), failure)

    def _resolve(self, message: Outgoing, tell: Callable[[], None], failure: Failure | None = None) -> None:
        """PUB-09: exactly once. Flushes that wait for it hear of it afterwards."""
        del self._unresolved[message.number]
        tell()
        if failure is not None:
            failed = [flush for flush in self._flushes if flush[0] >= message.number]
            self._flushes = [flush for flush in self._flushes if flush[0] < message.number]
            for _, _, on_failed in failed:
                on_failed(failure)
        self._finish_flushes()

    def _finish_flushes(self) -> None:
        oldest = next(iter(self._unresolved), None)
        while self._flushes and (oldest is None or self._flushes[0][0] < oldest):
            _, on_done, _ = self._flushes.pop(0)
            on_done()

    def _fail_everything(self, failure: Failure) -> None:
        """All of them, also the open batch, with one reason (clauses TMO-02, PACK-06)."""
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        failed: list[tuple[Outgoing, bool]] = []
        for pending in self._pending.clear():
            if pending.last_piece:
                failed += [(message, pending.written) for message in pending.messages]
        if self._batch is not None:
            failed += [(message, False) for message in self._batch.take()]
        for message, written in failed:
            self._release_permit()
            self._fail(message, CLOSED if failure is INTERRUPTED and not written else failure)
        self._admit_blocked()

    def _release_permit(self) -> None:
        self._permits_taken -= 1

    def _admit_blocked(self) -> None:
        while self._blocked and self._has_permit() and self.state == "open":
            self._accept(self._blocked.popleft())

    def _take_blocked(self) -> list[Outgoing]:
        blocked = list(self._blocked)
        self._blocked.clear()
        return blocked

    # -- send timeout

    def _watch_send_timeout(self) -> None:
        if self.options.send_timeout and (self._send_timer is None or not self._send_timer.pending):
            self._arm_send_timer()

    def _arm_send_timer(self) -> None:
        oldest = self._oldest_accepted()
        if oldest is not None:
            self._send_timer = self._runtime.timers.at(oldest + self.options.send_timeout, self._send_timer_due)

    def _oldest_accepted(self) -> int | None:
        head = self._pending.head
        if head is not None:
            return head.accepted_at
        oldest = self._batch.oldest if self._batch is not None else None
        return None if oldest is None else oldest.accepted_at

    def _send_timer_due(self) -> None:
        """TMO-01 to TMO-03: the oldest one's timeout takes all the others with it."""
        if self.state in ("closed", "failed"):
            return
        oldest = self._oldest_accepted()
        if oldest is not None and oldest + self.options.send_timeout <= self._runtime.now:
            self._fail_everything(self._send_timeout_failure())
        self._arm_send_timer()

    def _send_timeout_failure(self) -> Failure:
        return Failure("timeout", f"no receipt within {self.options.send_timeout // MILLISECOND} ms")

    # -- closing

    def _close_failed(self, failure: Failure) -> None:
        # PCLOSE-01: a connection that died took the producer with it.
        self._closed(None if failure.kind == "disconnected" else failure)

    def _closed(self, failure: Failure | None) -> None:
        if self.state == "closed":
            return
        self.state = "closed"
        if self._link.connection is not None:
            self._link.connection.detach(self)
        self._connection = None
        self._fail_everything(INTERRUPTED)
        closes, self._closes = self._closes, []
        for on_done, on_failed in closes:
            if failure is None:
                on_done()
            else:
                on_failed(failure)
