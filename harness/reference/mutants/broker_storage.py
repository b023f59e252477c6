"""Brokers that break a promise between SEND and the entry in its ledger: deduplication and receipts."""

from __future__ import annotations

from dataclasses import replace

from harness.reference.broker import answers
from harness.reference.broker.dedup import DedupMarks, Judgement
from harness.reference.broker.ledger import LedgerChain
from harness.reference.broker.producer import Producer
from harness.reference.broker.stored_entry import StoredEntry
from harness.reference.broker.topic import Publication, Topic
from harness.reference.mutants.mutant import Mutant
from harness.wire.frame import Frame, encode
from harness.wire.pulsar_pb2 import MessageMetadata


class StoresDuplicates(DedupMarks):
    def judge(self, producer: str, lowest: int) -> Judgement:
        return Judgement.FRESH


class ForgetsOnReconnect(Topic):
    def add_producer(self, producer: Producer) -> None:
        super().add_producer(producer)
        self.dedup.pushed.pop(producer.name, None)
        self.dedup.persisted.pop(producer.name, None)


class TakesGapsForDuplicates(DedupMarks):
    def judge(self, producer: str, lowest: int) -> Judgement:
        if lowest > self.pushed.get(producer, -1) + 1 and producer in self.pushed:
            return Judgement.DUPLICATE
        return super().judge(producer, lowest)


class ReportsLastIdTooLow(DedupMarks):
    def last_sequence_id(self, producer: str) -> int:
        return max(-1, super().last_sequence_id(producer) - 1)


class ReportsLastIdTooHigh(DedupMarks):
    def last_sequence_id(self, producer: str) -> int:
        return super().last_sequence_id(producer) + 5


class JudgesEveryPiece(DedupMarks):
    def judged(self, metadata: MessageMetadata) -> bool:
        return True


class StoresWhatItIsStoring(DedupMarks):
    def judge(self, producer: str, lowest: int) -> Judgement:
        judgement = super().judge(producer, lowest)
        return Judgement.FRESH if judgement is Judgement.UNDETERMINED else judgement


class NeverDecides(DedupMarks):
    """Marks of what is persisted are never set, so that a repeat stays undecided for ever."""

    def persist(self, producer: str, highest: int) -> None:
        pass


class JudgesBatchesByHighest(Topic):
    def publish(self, producer: Producer, publication: Publication) -> None:
        last = publication.last_sequence_id
        fresh = self.dedup.judge(producer.name, last) is Judgement.FRESH
        if self.dedup_enabled and fresh and publication.num_messages > 1:
            self.dedup.push(producer.name, last)
            self._write(producer, publication)
            return
        super().publish(producer, publication)


class SpoilsWhatItStores(Topic):
    """Every fourth plain message is stored with its last byte changed, and a checksum that fits."""

    def _write(self, producer: Producer, publication: Publication) -> None:
        plain = not publication.metadata.compression and publication.num_messages == 1
        if plain and publication.payload and publication.sequence_id % 4 == 3:
            payload = publication.payload[:-1] + bytes([publication.payload[-1] ^ 1])
            raw = encode(Frame(answers.ping(), publication.metadata, payload))
            body = raw[8 + int.from_bytes(raw[4:8], "big") :]
            publication = replace(publication, payload=payload, body=body)
        super()._write(producer, publication)


class LedgerForEachProducer(Topic):
    """Producers write to ledgers of their own: ids ascend for each of them, but not over all."""

    def _write(self, producer: Producer, publication: Publication) -> None:
        ledgers = self.ledgers
        own = self.__dict__.setdefault("_own", {})
        kept = own.get(producer.name)
        former = ledgers._open, ledgers._reserved
        ledgers._open, ledgers._reserved = kept if kept is not None else (None, 0)
        super()._write(producer, publication)
        own[producer.name] = ledgers._open, ledgers._reserved
        ledgers._open, ledgers._reserved = former


class StoresTwice(Topic):
    def _persist(self, stored: StoredEntry, producer: Producer) -> None:
        super()._persist(stored, producer)
        if stored.sequence_id % 4 == 3:
            ledger, entry = self.ledgers.reserve()
            self.ledgers.store(replace(stored, ledger=ledger, entry=entry))


class AnswersFreshAsDuplicate(Topic):
    def publish(self, producer: Producer, publication: Publication) -> None:
        if self.dedup_enabled and publication.sequence_id % 5 == 4:
            producer.receipt(publication.sequence_id, publication.highest_sequence_id, None)
            return
        super().publish(producer, publication)


class StoresWithDedupOffOnlyOnce(Topic):
    def publish(self, producer: Producer, publication: Publication) -> None:
        if not self.dedup_enabled:
            if self.dedup.judge(producer.name, publication.sequence_id) is not Judgement.FRESH:
                producer.receipt(publication.sequence_id, publication.highest_sequence_id, None)
                return
            self.dedup.push(producer.name, publication.last_sequence_id)
            self.dedup.persist(producer.name, publication.last_sequence_id)
        super().publish(producer, publication)


class ConfirmsWithoutStoring(Topic):
    def _write(self, producer: Producer, publication: Publication) -> None:
        if publication.sequence_id % 6 == 5:
            producer.receipt(publication.sequence_id, publication.highest_sequence_id, self.ledgers.reserve())
            return
        super()._write(producer, publication)


class HoldsReceiptsBack(Producer):
    _held: tuple[int, int | None, tuple[int, int] | None] | None = None

    def receipt(self, sequence_id: int, highest: int | None, at: tuple[int, int] | None) -> None:
        if self._held is None and sequence_id % 3 == 1:
            self._held = (sequence_id, highest, at)
            return
        super().receipt(sequence_id, highest, at)
        if self._held is not None:
            held, self._held = self._held, None
            super().receipt(*held)


class AnswersTwice(Producer):
    def receipt(self, sequence_id: int, highest: int | None, at: tuple[int, int] | None) -> None:
        super().receipt(sequence_id, highest, at)
        if sequence_id % 3 == 2:
            super().receipt(sequence_id, highest, at)


class NamesTheNextEntry(Producer):
    def receipt(self, sequence_id: int, highest: int | None, at: tuple[int, int] | None) -> None:
        super().receipt(sequence_id, highest, at if at is None else (at[0], at[1] + 1))


class RepeatsAPosition(Producer):
    """Every third receipt names the position of the one before it."""

    _last: tuple[int, int] | None = None

    def receipt(self, sequence_id: int, highest: int | None, at: tuple[int, int] | None) -> None:
        if at is not None and self._last is not None and sequence_id % 3 == 2:
            at = self._last
        self._last = at or self._last
        super().receipt(sequence_id, highest, at)


class SwallowsReceipts(Producer):
    def receipt(self, sequence_id: int, highest: int | None, at: tuple[int, int] | None) -> None:
        if sequence_id % 4 != 3:
            super().receipt(sequence_id, highest, at)


class AnswersAnotherSequenceId(Producer):
    def receipt(self, sequence_id: int, highest: int | None, at: tuple[int, int] | None) -> None:
        super().receipt(sequence_id + (7 if sequence_id % 5 == 4 else 0), highest, at)


class LeavesHolesInLedgers(LedgerChain):
    def reserve(self) -> tuple[int, int]:
        ledger, entry = super().reserve()
        return ledger, entry * 2


class GrowsLedgerIdsDownwards(LedgerChain):
    def reserve(self) -> tuple[int, int]:
        ledger, entry = super().reserve()
        return 1_000_000 - ledger, entry


MUTANTS = (
    Mutant(
        name="broker-stores-duplicates",
        family="dedup",
        side="broker",
        breaks="A sequence id that is persisted already is stored again.",
        expected=("DEDUP-01",),
        shown_by="dedup-again",
        parts={"dedup": StoresDuplicates},
    ),
    Mutant(
        name="broker-forgets-marks-on-reconnect",
        family="dedup",
        side="broker",
        breaks="Deduplication marks are gone when a producer comes back under its name.",
        expected=("DEDUP-04",),
        shown_by="dedup-automatic-ids",
        parts={"topic": ForgetsOnReconnect},
    ),
    Mutant(
        name="broker-takes-gaps-for-duplicates",
        family="dedup",
        side="broker",
        breaks="An id after a gap is answered as a duplicate and lost.",
        expected=("DEDUP-03",),
        shown_by="dedup-gaps",
        parts={"dedup": TakesGapsForDuplicates},
    ),
    Mutant(
        name="broker-reports-last-id-too-low",
        family="dedup",
        side="broker",
        breaks="PRODUCER_SUCCESS names a last sequence id below one that was confirmed.",
        expected=("DEDUP-07",),
        shown_by="dedup-automatic-ids",
        parts={"dedup": ReportsLastIdTooLow},
    ),
    Mutant(
        name="broker-reports-last-id-too-high",
        family="dedup",
        side="broker",
        breaks="PRODUCER_SUCCESS names a last sequence id that was never sent.",
        expected=("D1.8",),
        shown_by="dedup-again",
        parts={"dedup": ReportsLastIdTooHigh},
    ),
    Mutant(
        name="broker-deduplicates-pieces",
        family="dedup",
        side="broker",
        breaks="Pieces of one chunked message are taken for duplicates of its first.",
        expected=("DEDUP-08",),
        shown_by="dedup-chunks-again",
        parts={"dedup": JudgesEveryPiece},
    ),
    Mutant(
        name="broker-stores-twice",
        family="dedup",
        side="broker",
        breaks="One SEND leaves two entries.",
        expected=("D1.1",),
        shown_by="dedup-again",
        parts={"topic": StoresTwice},
    ),
    Mutant(
        name="broker-answers-fresh-as-duplicate",
        family="dedup",
        side="broker",
        breaks="A fresh id is answered as a duplicate and not stored.",
        expected=("D1.4",),
        shown_by="dedup-again",
        parts={"topic": AnswersFreshAsDuplicate},
    ),
    Mutant(
        name="broker-deduplicates-when-off",
        family="dedup",
        side="broker",
        breaks="Repeated ids are dropped although deduplication is off.",
        expected=("DEDUP-09",),
        shown_by="dedup-off",
        parts={"topic": StoresWithDedupOffOnlyOnce},
    ),
    Mutant(
        name="broker-stores-what-it-is-storing",
        family="dedup",
        side="broker",
        breaks="A repeat that comes while its first transmission is being stored is stored as well.",
        expected=("DEDUP-02",),
        shown_by="dedup-repeat-in-flight",
        parts={"dedup": StoresWhatItIsStoring},
    ),
    Mutant(
        name="broker-never-decides",
        family="dedup",
        side="broker",
        breaks="A repeat is refused as undecided for ever, although its first transmission is stored.",
        expected=("D1.7",),
        shown_by="dedup-repeat-patient",
        parts={"dedup": NeverDecides},
    ),
    Mutant(
        name="broker-judges-batches-by-highest",
        family="dedup",
        side="broker",
        breaks="A batch that begins with a known id is stored because it ends with a fresh one.",
        expected=("DEDUP-05",),
        shown_by="dedup-batch-begins-known",
        parts={"topic": JudgesBatchesByHighest},
    ),
    Mutant(
        name="broker-spoils-what-it-stores",
        family="dedup",
        side="broker",
        breaks="Some messages are stored with a content that nobody sent.",
        expected=("D1.2",),
        shown_by="dedup-again",
        parts={"topic": SpoilsWhatItStores},
    ),
    Mutant(
        name="broker-gives-producers-ledgers",
        family="receipts",
        side="broker",
        breaks="Each producer writes to a ledger of its own: what was sent later may be stored at a lower position.",
        expected=("O5",),
        shown_by="receipts-batching",
        parts={"topic": LedgerForEachProducer},
    ),
    Mutant(
        name="broker-confirms-without-storing",
        family="receipts",
        side="broker",
        breaks="A receipt is sent for an entry that does not exist.",
        expected=("RECEIPT-05",),
        shown_by="receipts-async-burst",
        parts={"topic": ConfirmsWithoutStoring},
    ),
    Mutant(
        name="broker-holds-receipts-back",
        family="receipts",
        side="broker",
        breaks="A receipt is overtaken by the receipt of a later SEND.",
        expected=("O2",),
        shown_by="receipts-async-burst",
        parts={"producer": HoldsReceiptsBack},
    ),
    Mutant(
        name="broker-answers-twice",
        family="receipts",
        side="broker",
        breaks="One SEND is answered by two receipts.",
        expected=("O1",),
        shown_by="receipts-async-burst",
        parts={"producer": AnswersTwice},
    ),
    Mutant(
        name="broker-names-the-next-entry",
        family="receipts",
        side="broker",
        breaks="The receipt's message id is not where the message is stored.",
        expected=("LEDGER-04",),
        shown_by="receipts-async-burst",
        parts={"producer": NamesTheNextEntry},
    ),
    Mutant(
        name="broker-repeats-a-position",
        family="receipts",
        side="broker",
        breaks="Two receipts of one producer name the same position.",
        expected=("RECEIPT-02",),
        shown_by="receipts-async-burst",
        parts={"producer": RepeatsAPosition},
    ),
    Mutant(
        name="broker-swallows-receipts",
        family="receipts",
        side="broker",
        breaks="A SEND that was stored is never answered on a connection that lives.",
        expected=("RECEIPT-01",),
        shown_by="receipts-async-burst",
        parts={"producer": SwallowsReceipts},
    ),
    Mutant(
        name="broker-answers-another-sequence-id",
        family="receipts",
        side="broker",
        breaks="A receipt names a sequence id that was never sent.",
        expected=("O1",),
        shown_by="receipts-async-burst",
        parts={"producer": AnswersAnotherSequenceId},
    ),
    Mutant(
        name="broker-leaves-holes-in-ledgers",
        family="receipts",
        side="broker",
        breaks="Entry ids within a ledger are not dense.",
        expected=("LEDGER-01",),
        shown_by="receipts-async-burst",
        parts={"ledgers": LeavesHolesInLedgers},
    ),
    Mutant(
        name="broker-grows-ledger-ids-downwards",
        family="receipts",
        side="broker",
        breaks="A ledger opened later has a smaller id, so positions no longer follow the order of appends.",
        expected=("LEDGER-03",),
        shown_by="receipts-async-burst",
        parts={"ledgers": GrowsLedgerIdsDownwards},
    ),
)
