"""Clients that break a promise on the way to the broker."""

from __future__ import annotations

from harness.reference.client.batch_builder import BatchBuilder
from harness.reference.client.chunk_splitter import ChunkSplitter
from harness.reference.client.outgoing import Outgoing, PendingSend
from harness.reference.client.pending_queue import PendingQueue, Verdict
from harness.reference.client.producer import Producer
from harness.reference.client.sequence_ids import SequenceIds
from harness.reference.mutants.mutant import Mutant
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
    def _resend(self) -> None:
        for pending in reversed(list(self._pending)):
            self._write(pending)


class TakesAnyReceipt(PendingQueue):
    def receipt(self, sequence_id: int, highest_sequence_id: int) -> Verdict:
        return "complete" if self.head is not None else "stale"


class IgnoresFutureReceipts(PendingQueue):
    def receipt(self, sequence_id: int, highest_sequence_id: int) -> Verdict:
        verdict = super().receipt(sequence_id, highest_sequence_id)
        return "stale" if verdict == "future" else verdict


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
    def piece_size(self, metadata: MessageMetadata, limit: int) -> int:
        return super().piece_size(metadata, limit) // (2 if metadata.sequence_id % 2 else 3)


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


class ConfirmsAtOnce(Producer):
    """The application is told of success before any receipt came."""

    def _write(self, pending: PendingSend) -> None:
        super()._write(pending)
        if pending.sequence_id % 4 == 1:
            for message in pending.messages:
                self._succeed(message, {"message_id": {"ledger": 0, "entry": pending.sequence_id}})


MUTANTS = (
    Mutant(
        name="client-takes-id-from-every-registration",
        family="receipts",
        side="client",
        breaks="Every registration moves the automatic ids to the broker's last id, also back.",
        parts={"sequence_ids": StartsOverAfterReconnect},
    ),
    Mutant(
        name="client-skips-ids",
        family="receipts",
        side="client",
        breaks="Automatic sequence ids leave gaps.",
        parts={"sequence_ids": SkipsIds},
    ),
    Mutant(
        name="client-reuses-ids",
        family="receipts",
        side="client",
        breaks="An automatic sequence id is given to two messages.",
        parts={"sequence_ids": ReusesIds},
    ),
    Mutant(
        name="client-forgets-pending",
        family="receipts",
        side="client",
        breaks="Unconfirmed messages are not sent again after a reconnect.",
        parts={"producer": ForgetsPending},
    ),
    Mutant(
        name="client-resends-backwards",
        family="receipts",
        side="client",
        breaks="Unconfirmed messages are sent again in the wrong order.",
        parts={"producer": ResendsBackwards},
    ),
    Mutant(
        name="client-confirms-at-once",
        family="receipts",
        side="client",
        breaks="A send succeeds before its receipt.",
        parts={"producer": ConfirmsAtOnce},
    ),
    Mutant(
        name="client-overfills-batches",
        family="receipts",
        side="client",
        breaks="A batch holds more messages than its cap.",
        parts={"batch_builder": OverfillsBatches},
    ),
    Mutant(
        name="client-reverses-batches",
        family="receipts",
        side="client",
        breaks="The members of a batch leave in the wrong order.",
        parts={"batch_builder": ReversesBatches},
    ),
    Mutant(
        name="client-loses-last-of-batch",
        family="receipts",
        side="client",
        breaks="The last member of a batch is never sent.",
        parts={"batch_builder": LosesLastOfBatch},
    ),
    Mutant(
        name="client-cuts-unevenly",
        family="chunks",
        side="client",
        breaks="Pieces are smaller than they have to be.",
        parts={"chunk_splitter": CutsUnevenly},
    ),
    Mutant(
        name="client-shares-uuids",
        family="chunks",
        side="client",
        breaks="Different chunked messages carry the same uuid.",
        parts={"chunk_splitter": SharesUuids},
    ),
    Mutant(
        name="client-loses-last-piece",
        family="chunks",
        side="client",
        breaks="The last piece of a chunked message is never sent.",
        parts={"chunk_splitter": LosesLastPiece},
    ),
    Mutant(
        name="client-swaps-pieces",
        family="chunks",
        side="client",
        breaks="The first two pieces of a chunked message leave in the wrong order.",
        parts={"chunk_splitter": SwapsPieces},
    ),
)
