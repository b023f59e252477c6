"""Clients that break a promise about what they make of the broker's answers to their messages."""

from __future__ import annotations

from typing import Any

from harness.reference.client.failure import Failure
from harness.reference.client.outgoing import Outgoing, PendingSend
from harness.reference.client.pending_queue import PendingQueue, Verdict
from harness.reference.client.producer import Producer
from harness.reference.mutants.mutant import Mutant
from harness.wire.message_id import Position
from harness.wire.pulsar_pb2 import CommandSendReceipt


class ConfirmsAtOnce(Producer):
    """The application is told of success before any receipt came."""

    def _write(self, pending: PendingSend) -> None:
        super()._write(pending)
        if pending.sequence_id % 4 == 1:
            for message in pending.messages:
                tell, message.on_sent, message.on_failed = message.on_sent, lambda _: None, lambda _: None
                tell({"message_id": {"ledger": 0, "entry": pending.sequence_id}})


class TakesAnyReceipt(PendingQueue):
    def receipt(self, sequence_id: int, highest_sequence_id: int) -> Verdict:
        return "complete" if self.head is not None else "stale"


class TakesEarlyDuplicates(Producer):
    """A receipt without a position completes whatever waits longest."""

    def _is_for_the_head(self, receipt: CommandSendReceipt) -> bool:
        head = self._pending.head
        if head is not None:
            receipt.sequence_id = head.sequence_id
        return True


class IgnoresFutureReceipts(Producer):
    def _out_of_step(self, sequence_id: int) -> None:
        pass


class DropsConnectionOnStale(PendingQueue):
    def receipt(self, sequence_id: int, highest_sequence_id: int) -> Verdict:
        verdict = super().receipt(sequence_id, highest_sequence_id)
        return "future" if verdict == "stale" else verdict


class FailsDuplicates(Producer):
    def _complete(self, pending: PendingSend, position: Position | None) -> None:
        if position is not None or not pending.last_piece:
            super()._complete(pending, position)
            return
        for message in pending.messages:
            self._release_permit()
            self._fail(message, Failure("broker_error", "sent before"))


class TellsOutOfOrder(Producer):
    """Every third success is told after the one that follows it."""

    _held: tuple[Outgoing, dict[str, Any]] | None = None

    def _succeed(self, message: Outgoing, result: dict[str, Any]) -> None:
        if self._held is None and message.number % 3 == 2 and len(self._pending) > 1:
            self._held = message, result
            return
        super()._succeed(message, result)
        if self._held is not None:
            held, self._held = self._held, None
            super()._succeed(*held)


class NumbersMembersAlike(Producer):
    def _succeed(self, message: Outgoing, result: dict[str, Any]) -> None:
        if "batch_index" in result["message_id"]:
            result["message_id"]["batch_index"] = 0
        super()._succeed(message, result)


class FailsWhatIsOpen(Producer):
    def connection_lost(self, failure: Failure) -> None:
        self._fail_everything(Failure("not_connected", "the connection was lost"))
        super().connection_lost(failure)


class TimesOutNewestOnly(Producer):
    def _send_timer_due(self) -> None:
        for newest in list(self._pending)[-1:]:
            self._drop(newest, self._send_timeout_failure())


MUTANTS = (
    Mutant(
        name="client-confirms-at-once",
        family="receipts",
        side="client",
        breaks="A send succeeds before its receipt.",
        expected=("RCPT-01",),
        shown_by="receipts-async-burst",
        parts={"producer": ConfirmsAtOnce},
    ),
    Mutant(
        name="client-takes-early-duplicates",
        family="dedup",
        side="client",
        breaks="A duplicate receipt that overtook others completes another message.",
        expected=("RCPT-01",),
        shown_by="dedup-overtaking",
        parts={"producer": TakesEarlyDuplicates},
    ),
    Mutant(
        name="client-takes-any-receipt",
        family="receipts",
        side="client",
        breaks="Any receipt completes the oldest waiting message.",
        expected=("RCPT-01",),
        shown_by="receipts-late-receipt-of-higher-id",
        parts={"pending_queue": TakesAnyReceipt},
    ),
    Mutant(
        name="client-ignores-future-receipts",
        family="receipts",
        side="client",
        breaks="A receipt from the future does not make the client start over.",
        expected=("RCPT-02",),
        shown_by="receipts-late-receipt-of-higher-id",
        parts={"producer": IgnoresFutureReceipts},
    ),
    Mutant(
        name="client-drops-connection-on-stale",
        family="receipts",
        side="client",
        breaks="A receipt for a message that is settled already costs the connection.",
        expected=("RCPT-03",),
        shown_by="receipts-late-receipts",
        parts={"pending_queue": DropsConnectionOnStale},
    ),
    Mutant(
        name="client-fails-duplicates",
        family="dedup",
        side="client",
        breaks="A receipt without a position is told as a failure.",
        expected=("RCPT-05",),
        shown_by="dedup-again",
        parts={"producer": FailsDuplicates},
    ),
    Mutant(
        name="client-tells-out-of-order",
        family="receipts",
        side="client",
        breaks="Sends succeed in another order than they were made.",
        expected=("O4",),
        shown_by="receipts-async-burst",
        parts={"producer": TellsOutOfOrder},
    ),
    Mutant(
        name="client-numbers-members-alike",
        family="receipts",
        side="client",
        breaks="All members of a batch are told the same batch index.",
        expected=("BATCH-04",),
        shown_by="receipts-batching",
        parts={"producer": NumbersMembersAlike},
    ),
    Mutant(
        name="client-fails-what-is-open",
        family="receipts",
        side="client",
        breaks="A send whose connection was lost is reported as certainly not done.",
        expected=("O7",),
        shown_by="receipts-block-if-full",
        parts={"producer": FailsWhatIsOpen},
    ),
    Mutant(
        name="client-times-out-newest-only",
        family="receipts",
        side="client",
        breaks="A send timeout ends the newest send, and older ones may still succeed.",
        expected=("SEND-03",),
        shown_by="receipts-late-receipts",
        parts={"producer": TimesOutNewestOnly},
    ),
)
