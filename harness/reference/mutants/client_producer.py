"""Clients that break a promise on the way to the broker."""

from __future__ import annotations

from collections.abc import Callable

from harness.reference.client.batch_builder import BatchBuilder
from harness.reference.client.chunk_splitter import ChunkSplitter
from harness.reference.client.connection import Connection
from harness.reference.client.counters import Counters
from harness.reference.client.lookup import Lookup
from harness.reference.client.outgoing import Outgoing, PendingSend
from harness.reference.client.pool import ConnectionPool
from harness.reference.client.producer import OnDone, OnFailed, Producer, ProducerOptions
from harness.reference.client.runtime import Runtime
from harness.reference.client.sequence_ids import SequenceIds
from harness.reference.mutants.mutant import Mutant
from harness.reference.mutants.one_request_id import OneRequestId
from harness.wire.frame import decode, encode
from harness.wire.pulsar_pb2 import MessageMetadata


class StartsOverAfterReconnect(SequenceIds):
    def registered(self, last_sequence_id: int) -> None:
        self._settled = True
        self._next = last_sequence_id + 1


class SkipsIds(SequenceIds):
    def assign(self, explicit: int | None) -> int:
        assigned = super().assign(explicit)
        if explicit is None and assigned % 4 == 2:
            self._next += 1
        return assigned


class ReusesIds(SequenceIds):
    def assign(self, explicit: int | None) -> int:
        assigned = super().assign(explicit)
        if explicit is None and assigned % 5 == 3:
            self._next -= 1
        return assigned


class ForgetsPending(Producer):
    """After a reconnect only what is newest is sent again."""

    def _resend(self) -> None:
        while len(self._pending) > 1:
            self._pending.pop_head()
        super()._resend()


class ResendsBackwards(Producer):
    _resent = False

    def _resend(self) -> None:
        # Once only: the broker's answers to it cost the connection, and for ever is no end of a run.
        first, self._resent = not self._resent and len(self._pending) > 1, self._resent or len(self._pending) > 1
        for pending in reversed(list(self._pending)) if first else self._pending:
            self._write(pending)


class OverfillsBatches(BatchBuilder):
    def _fits(self, message: Outgoing) -> bool:
        return len(self._members) <= self.max_messages

    @property
    def is_full(self) -> bool:
        return len(self._members) > self.max_messages


class ReversesBatches(BatchBuilder):
    def take(self) -> list[Outgoing]:
        return list(reversed(super().take()))


class LosesLastOfBatch(BatchBuilder):
    def take(self) -> list[Outgoing]:
        members = super().take()
        return members[:-1] if len(members) > 2 else members


class CutsUnevenly(ChunkSplitter):
    """The first piece is larger than the second."""

    def pieces(self, metadata: MessageMetadata, payload: bytes, limit: int) -> list[tuple[MessageMetadata, bytes]]:
        pieces = super().pieces(metadata, payload, limit - 64)
        if len(pieces) > 2:
            (first, head), (second, tail) = pieces[:2]
            pieces[:2] = [(first, head + tail[:32]), (second, tail[32:])]
        return pieces


class SharesUuids(ChunkSplitter):
    def uuid(self, metadata: MessageMetadata) -> str:
        return metadata.producer_name


class LosesLastPiece(ChunkSplitter):
    def pieces(self, metadata: MessageMetadata, payload: bytes, limit: int) -> list[tuple[MessageMetadata, bytes]]:
        pieces = super().pieces(metadata, payload, limit)
        return pieces[:-1] if len(pieces) > 2 else pieces


class SwapsPieces(ChunkSplitter):
    def pieces(self, metadata: MessageMetadata, payload: bytes, limit: int) -> list[tuple[MessageMetadata, bytes]]:
        pieces = super().pieces(metadata, payload, limit)
        if len(pieces) > 2:
            pieces[0], pieces[1] = pieces[1], pieces[0]
        return pieces


class MixesSuspects(BatchBuilder):
    @staticmethod
    def is_suspect(message: Outgoing, last_pushed: int) -> bool:
        return False


class DelaysInBatches(Producer):
    """Messages with a delivery time join the batch like any other."""

    def _accept(self, message: Outgoing) -> None:
        if self._batch is not None:
            message.deliver_after = None
        super()._accept(message)

    def _enqueue(
        self, messages: list[Outgoing], metadata: MessageMetadata, payload: bytes, *, last_piece: bool = True
    ) -> None:
        if len(messages) > 1:
            metadata.deliver_at_time = messages[0].publish_time + 1
        super()._enqueue(messages, metadata, payload, last_piece=last_piece)


class DeclaresWrongSize(Producer):
    def _enqueue(
        self, messages: list[Outgoing], metadata: MessageMetadata, payload: bytes, *, last_piece: bool = True
    ) -> None:
        if metadata.compression and len(messages) == 1:
            metadata.uncompressed_size += 1
        super()._enqueue(messages, metadata, payload, last_piece=last_piece)


class DeclaresWrongBatchSize(Producer):
    def _enqueue(
        self, messages: list[Outgoing], metadata: MessageMetadata, payload: bytes, *, last_piece: bool = True
    ) -> None:
        if metadata.compression and len(messages) > 1:
            metadata.uncompressed_size += 1
        super()._enqueue(messages, metadata, payload, last_piece=last_piece)


class NamesNoProducer(Producer):
    def _enqueue(
        self, messages: list[Outgoing], metadata: MessageMetadata, payload: bytes, *, last_piece: bool = True
    ) -> None:
        metadata.producer_name = ""
        super()._enqueue(messages, metadata, payload, last_piece=last_piece)


class SendsWithoutChecksum(Producer):
    def _write(self, pending: PendingSend) -> None:
        if self._connection is not None:
            pending.written = True
            self._connection.send_bytes(encode(decode(pending.data), checksum=False))


class IgnoresSizeLimit(Producer):
    def _registered(self, connection: Connection, epoch: int, last_sequence_id: int) -> None:
        super()._registered(connection, epoch, last_sequence_id)
        self._limit = connection.max_message_size + 1024


class SendsBeforeRegistration(Producer):
    def register(self, connection: Connection, timeout: int) -> None:
        super().register(connection, timeout)
        for pending in self._pending:
            connection.send_bytes(pending.data)


class SendsAfterClose(Producer):
    _last: PendingSend | None = None

    def _write(self, pending: PendingSend) -> None:
        self._last = pending
        super()._write(pending)

    def close(self, on_done: OnDone, on_failed: OnFailed) -> None:
        super().close(on_done, on_failed)
        if self._last is not None and self._connection is not None:
            self._connection.send_bytes(self._last.data)


class RewritesWhatItResends(Producer):
    def _resend(self) -> None:
        for pending in self._pending:
            frame = decode(pending.data)
            if frame.metadata is not None:
                frame.metadata.publish_time += 1
            pending.data = encode(frame)
        super()._resend()


class NumbersRequestsAlike(Producer):
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
        super().__init__(runtime, pool, lookup, OneRequestId(counters), options, on_created, on_creation_failed)


MUTANTS = (
    Mutant(
        name="client-takes-id-from-every-registration",
        family="receipts",
        side="client",
        breaks="Every registration moves the automatic ids to the broker's last id, also back.",
        expected=("PROD-05",),
        shown_by="receipts-block-if-full",
        parts={"sequence_ids": StartsOverAfterReconnect},
    ),
    Mutant(
        name="client-skips-ids",
        family="receipts",
        side="client",
        breaks="Automatic sequence ids leave gaps.",
        expected=("SEQ-01",),
        shown_by="receipts-async-burst",
        parts={"sequence_ids": SkipsIds},
    ),
    Mutant(
        name="client-reuses-ids",
        family="receipts",
        side="client",
        breaks="An automatic sequence id is given to two messages.",
        expected=("PROD-05",),
        shown_by="receipts-async-burst",
        parts={"sequence_ids": ReusesIds},
    ),
    Mutant(
        name="client-forgets-pending",
        family="receipts",
        side="client",
        breaks="Unconfirmed messages are not sent again after a reconnect.",
        expected=("SEND-02",),
        shown_by="receipts-block-if-full",
        parts={"producer": ForgetsPending},
    ),
    Mutant(
        name="client-resends-backwards",
        family="receipts",
        side="client",
        breaks="Unconfirmed messages are sent again in the wrong order.",
        expected=("SEND-02",),
        shown_by="receipts-block-if-full",
        parts={"producer": ResendsBackwards},
    ),
    Mutant(
        name="client-overfills-batches",
        family="receipts",
        side="client",
        breaks="A batch holds more messages than its cap.",
        expected=("BATCH-01",),
        shown_by="receipts-batching",
        parts={"batch_builder": OverfillsBatches},
    ),
    Mutant(
        name="client-reverses-batches",
        family="receipts",
        side="client",
        breaks="The members of a batch leave in the wrong order.",
        expected=("BATCH-02",),
        shown_by="receipts-batching",
        parts={"batch_builder": ReversesBatches},
    ),
    Mutant(
        name="client-loses-last-of-batch",
        family="receipts",
        side="client",
        breaks="The last member of a batch is never sent.",
        expected=("SEND-02",),
        shown_by="receipts-batching",
        parts={"batch_builder": LosesLastOfBatch},
    ),
    Mutant(
        name="client-cuts-unevenly",
        family="chunks",
        side="client",
        breaks="Pieces are smaller than they have to be.",
        expected=("CHUNK-02",),
        shown_by="chunks-begun-in-the-middle",
        parts={"chunk_splitter": CutsUnevenly},
    ),
    Mutant(
        name="client-shares-uuids",
        family="chunks",
        side="client",
        breaks="Different chunked messages carry the same uuid.",
        expected=("CHUNK-03",),
        shown_by="chunks-begun-in-the-middle",
        parts={"chunk_splitter": SharesUuids},
    ),
    Mutant(
        name="client-loses-last-piece",
        family="chunks",
        side="client",
        breaks="The last piece of a chunked message is never sent.",
        expected=("CHUNK-05",),
        shown_by="chunks-begun-in-the-middle",
        parts={"chunk_splitter": LosesLastPiece},
    ),
    Mutant(
        name="client-swaps-pieces",
        family="chunks",
        side="client",
        breaks="The first two pieces of a chunked message leave in the wrong order.",
        expected=("CHUNK-03",),
        shown_by="chunks-begun-in-the-middle",
        parts={"chunk_splitter": SwapsPieces},
    ),
    Mutant(
        name="client-mixes-suspects",
        family="dedup",
        side="client",
        breaks="A batch holds ids that were sent before together with fresh ones.",
        expected=("BATCH-03",),
        shown_by="dedup-batches",
        parts={"batch_builder": MixesSuspects},
    ),
    Mutant(
        name="client-delays-in-batches",
        family="receipts",
        side="client",
        breaks="Messages with a delivery time travel in a batch.",
        expected=("BATCH-05",),
        shown_by="receipts-batching",
        parts={"producer": DelaysInBatches},
    ),
    Mutant(
        name="client-declares-wrong-size",
        family="receipts",
        side="client",
        breaks="A compressed message declares another size than it has when it is decompressed.",
        expected=("META-05",),
        shown_by="receipts-compression",
        parts={"producer": DeclaresWrongSize},
    ),
    Mutant(
        name="client-declares-wrong-batch-size",
        family="receipts",
        side="client",
        breaks="A compressed batch declares another size than it has when it is decompressed.",
        expected=("COMP-02",),
        shown_by="receipts-compression",
        parts={"producer": DeclaresWrongBatchSize},
    ),
    Mutant(
        name="client-names-no-producer",
        family="receipts",
        side="client",
        breaks="The metadata of a message does not name its producer.",
        expected=("META-04",),
        shown_by="receipts-async-burst",
        parts={"producer": NamesNoProducer},
    ),
    Mutant(
        name="client-sends-without-checksum",
        family="receipts",
        side="client",
        breaks="Messages leave without magic number and checksum.",
        expected=("META-02",),
        shown_by="receipts-async-burst",
        parts={"producer": SendsWithoutChecksum},
    ),
    Mutant(
        name="client-ignores-size-limit",
        family="chunks",
        side="client",
        breaks="Messages beyond the broker's size limit are sent.",
        expected=("SEND-05",),
        shown_by="chunks-begun-in-the-middle",
        parts={"producer": IgnoresSizeLimit},
    ),
    Mutant(
        name="client-sends-before-registration",
        family="receipts",
        side="client",
        breaks="After a reconnect messages are sent before the producer is registered again.",
        expected=("PROD-07",),
        shown_by="receipts-block-if-full",
        parts={"producer": SendsBeforeRegistration},
    ),
    Mutant(
        name="client-sends-after-close",
        family="receipts",
        side="client",
        breaks="A message follows CLOSE_PRODUCER.",
        expected=("PCLOSE-04",),
        shown_by="receipts-async-burst",
        parts={"producer": SendsAfterClose},
    ),
    Mutant(
        name="client-rewrites-what-it-resends",
        family="receipts",
        side="client",
        breaks="A message that is sent again has other bytes than the first time.",
        expected=("O6",),
        shown_by="receipts-block-if-full",
        parts={"producer": RewritesWhatItResends},
    ),
    Mutant(
        name="client-numbers-requests-alike",
        family="receipts",
        side="client",
        breaks="All requests of producers have the same request id.",
        expected=("CLIENT-05",),
        shown_by="receipts-batching",
        parts={"producer": NumbersRequestsAlike},
    ),
)
