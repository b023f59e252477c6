"""Clients that break a promise about chunked messages."""

from __future__ import annotations

from harness.reference.client.chunk_assembler import Assembled, ChunkAssembler, Evicted
from harness.reference.client.consumer import Consumer
from harness.reference.client.delivery import Delivery
from harness.reference.client.outgoing import PendingSend
from harness.reference.client.producer import Producer
from harness.reference.mutants.mutant import Mutant
from harness.wire.chunk import ChunkLabel
from harness.wire.frame import Frame
from harness.wire.message_id import Position
from harness.wire.pulsar_pb2 import MessageMetadata


class DeliversParts(ChunkAssembler):
    """The second piece already completes the message."""

    def accept(self, label: ChunkLabel, position: Position, data: bytes, now: int) -> Assembled | None:
        whole = super().accept(label, position, data, now)
        context = self._contexts.get(label.uuid)
        if whole is None and context is not None and len(context.pieces) == 2 and context.num_chunks > 2:
            del self._contexts[label.uuid]
            return Assembled(bytes(context.payload), context.pieces[0], tuple(context.entries))
        return whole


class AcksLastPieceOnly(ChunkAssembler):
    def _complete(self, uuid: str, context: object) -> Assembled | None:
        whole = super()._complete(uuid, context)  # type: ignore[arg-type]  # the context's class is the part's own
        return None if whole is None else Assembled(whole.payload, whole.first, whole.entries[-1:])


class NeverExpires(ChunkAssembler):
    def deadline(self) -> int | None:
        return None

    def take_expired(self, now: int) -> list[Position]:
        return []


class ExpiresTooEarly(ChunkAssembler):
    def deadline(self) -> int | None:
        opened = [context.opened_at for context in self._contexts.values()]
        return min(opened) + 1 if opened else None

    def is_expired(self, since: int, now: int) -> bool:
        return True


class AppendsRepeatedPieces(ChunkAssembler):
    def _repeated(self, context: object, position: Position) -> None:
        context.payload += b"x"  # type: ignore[attr-defined]  # the context's class is the part's own


class SpoilsSecondPieces(ChunkAssembler):
    def accept(self, label: ChunkLabel, position: Position, data: bytes, now: int) -> Assembled | None:
        return super().accept(label, position, bytes(len(data)) if label.chunk_id == 1 else data, now)


class LosesLastByte(ChunkAssembler):
    def _complete(self, uuid: str, context: object) -> Assembled | None:
        whole = super()._complete(uuid, context)  # type: ignore[arg-type]  # the context's class is the part's own
        return None if whole is None else Assembled(whole.payload[:-1], whole.first, whole.entries)


class NeverDelivers(ChunkAssembler):
    """Every third message is complete and forgotten."""

    _completed = 0

    def _complete(self, uuid: str, context: object) -> Assembled | None:
        self._completed += 1
        whole = super()._complete(uuid, context)  # type: ignore[arg-type]  # the context's class is the part's own
        return None if self._completed % 3 == 0 else whole


class ForgetsSuperseded(ChunkAssembler):
    def _complete(self, uuid: str, context: object) -> Assembled | None:
        context.superseded.clear()  # type: ignore[attr-defined]  # the context's class is the part's own
        return super()._complete(uuid, context)  # type: ignore[arg-type]


class StopsAtStrayPieces(ChunkAssembler):
    """After a piece that fits nowhere nothing is put together any more."""

    _stuck = False

    def _orphan(self, position: Position, since: int) -> None:
        self._stuck = True
        super()._orphan(position, since)

    def accept(self, label: ChunkLabel, position: Position, data: bytes, now: int) -> Assembled | None:
        return None if self._stuck else super().accept(label, position, data, now)


class ExpiresNothingAfterSuccess(ChunkAssembler):
    _completed = False

    def _complete(self, uuid: str, context: object) -> Assembled | None:
        self._completed = True
        return super()._complete(uuid, context)  # type: ignore[arg-type]  # the context's class is the part's own

    def is_expired(self, since: int, now: int) -> bool:
        return not self._completed and super().is_expired(since, now)

    def deadline(self) -> int | None:
        return None if self._completed else super().deadline()


class ExpiresAtHalfTime(ChunkAssembler):
    def deadline(self) -> int | None:
        full = super().deadline()
        return None if full is None else full - self.expire // 2

    def is_expired(self, since: int, now: int) -> bool:
        return now > since + self.expire // 2


class LeavesEvicted(ChunkAssembler):
    def evict(self) -> list[Evicted]:
        super().evict()
        return []


class DeliversTwice(Consumer):
    def _deliver(self, position: Position, deliveries: list[Delivery], redelivery_count: int) -> None:
        super()._deliver(position, deliveries, redelivery_count)
        if deliveries and deliveries[0].first_chunk is not None:
            self._queue.put(deliveries[0])


class KeepsPermitsOfPieces(Consumer):
    def _piece(self, frame: Frame, metadata: MessageMetadata, label: ChunkLabel, position: Position) -> None:
        owed = self._permits.owed
        super()._piece(frame, metadata, label, position)
        if label.chunk_id < label.num_chunks - 1:
            self._permits.owed = min(owed, self._permits.owed)


class TellsLastAsFirst(Producer):
    def _complete(self, pending: PendingSend, position: Position | None) -> None:
        if pending.is_chunk:
            pending.messages[0].first_chunk = position
        super()._complete(pending, position)


MUTANTS = (
    Mutant(
        name="client-delivers-parts",
        family="chunks",
        side="client",
        breaks="The application gets a chunked message before its last piece.",
        expected=("K1",),
        shown_by="chunks-begun-in-the-middle",
        parts={"chunk_assembler": DeliversParts},
    ),
    Mutant(
        name="client-acks-last-piece-only",
        family="chunks",
        side="client",
        breaks="Acknowledging a chunked message names its last piece only.",
        expected=("CHUNK-10",),
        shown_by="chunks-evicted",
        parts={"chunk_assembler": AcksLastPieceOnly},
    ),
    Mutant(
        name="client-never-expires-pieces",
        family="chunks",
        side="client",
        breaks="Pieces that can never be completed are kept for ever.",
        expected=("CHUNK-EXP-01",),
        shown_by="chunks-orphan-before-success",
        parts={"chunk_assembler": NeverExpires},
    ),
    Mutant(
        name="client-expires-pieces-too-early",
        family="chunks",
        side="client",
        breaks="Incomplete messages are given up before their time.",
        expected=("K5",),
        shown_by="chunks-delivery-torn",
        parts={"chunk_assembler": ExpiresTooEarly},
    ),
    Mutant(
        name="client-appends-repeated-pieces",
        family="chunks",
        side="client",
        breaks="A piece that came twice spoils the message.",
        expected=("CHUNK-07",),
        shown_by="chunks-repeated-pieces",
        parts={"chunk_assembler": AppendsRepeatedPieces},
    ),
    Mutant(
        name="client-spoils-second-pieces",
        family="chunks",
        side="client",
        breaks="The second piece of a chunked message is put together wrongly.",
        expected=("K2",),
        shown_by="chunks-begun-in-the-middle",
        parts={"chunk_assembler": SpoilsSecondPieces},
    ),
    Mutant(
        name="client-loses-last-byte",
        family="chunks",
        side="client",
        breaks="A chunked message is shorter than its pieces together.",
        expected=("CHUNK-06",),
        shown_by="chunks-begun-in-the-middle",
        parts={"chunk_assembler": LosesLastByte},
    ),
    Mutant(
        name="client-never-delivers",
        family="chunks",
        side="client",
        breaks="Some complete chunked messages never reach the application.",
        expected=("K4",),
        shown_by="chunks-interleaved",
        parts={"chunk_assembler": NeverDelivers},
    ),
    Mutant(
        name="client-forgets-superseded-pieces",
        family="chunks",
        side="client",
        breaks="Pieces that were sent again are acknowledged once only.",
        expected=("K7",),
        shown_by="chunks-repeated-pieces",
        parts={"chunk_assembler": ForgetsSuperseded},
    ),
    Mutant(
        name="client-stops-at-stray-pieces",
        family="chunks",
        side="client",
        breaks="A piece that fits nowhere stops all later chunked messages.",
        expected=("CHUNK-09",),
        shown_by="chunks-begun-in-the-middle",
        parts={"chunk_assembler": StopsAtStrayPieces},
    ),
    Mutant(
        name="client-expires-nothing-after-success",
        family="chunks",
        side="client",
        breaks="Once a chunked message was completed, orphans are kept for ever.",
        expected=("CHUNK-EXP-02",),
        shown_by="chunks-orphan-after-success",
        parts={"chunk_assembler": ExpiresNothingAfterSuccess},
    ),
    Mutant(
        name="client-expires-at-half-time",
        family="chunks",
        side="client",
        breaks="A message whose pieces come slowly, but in time, is given up.",
        expected=("CHUNK-EXP-03",),
        shown_by="chunks-slow-in-time",
        parts={"chunk_assembler": ExpiresAtHalfTime},
    ),
    Mutant(
        name="client-leaves-evicted-pieces",
        family="chunks",
        side="client",
        breaks="Pieces pushed out by newer messages are not acknowledged although that was asked for.",
        expected=("CHUNK-EXP-04",),
        shown_by="chunks-evicted",
        parts={"chunk_assembler": LeavesEvicted},
    ),
    Mutant(
        name="client-delivers-twice",
        family="chunks",
        side="client",
        breaks="A chunked message is handed out twice although it arrived once.",
        expected=("K3",),
        shown_by="chunks-begun-in-the-middle",
        parts={"consumer": DeliversTwice},
    ),
    Mutant(
        name="client-keeps-permits-of-pieces",
        family="chunks",
        side="client",
        breaks="Permits of the pieces of a chunked message are not given back.",
        expected=("FLOW-04",),
        shown_by="chunks-shared",
        parts={"consumer": KeepsPermitsOfPieces},
    ),
    Mutant(
        name="client-tells-last-as-first",
        family="chunks",
        side="client",
        breaks="A chunked send tells its last piece as its first.",
        expected=("CHUNK-05",),
        shown_by="chunks-begun-in-the-middle",
        parts={"producer": TellsLastAsFirst},
    ),
)
