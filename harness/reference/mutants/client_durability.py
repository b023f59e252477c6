"""Clients that break a promise when the broker goes away, or when a topic has ended."""

from __future__ import annotations

from harness.reference.client.backoff import Backoff
from harness.reference.client.failure import Failure
from harness.reference.client.producer import Producer
from harness.reference.mutants.mutant import Mutant

NEVER = 10**18


class GivesUpWhileTheBrokerIsAway(Backoff):
    """Nothing is tried any more after three attempts in a row that failed."""

    _failed = 0

    def next_delay(self, now: int) -> int:
        self._failed += 1
        return super().next_delay(now) if self._failed <= 3 else NEVER

    def succeeded(self) -> None:
        self._failed = 0
        super().succeeded()


class RegistersAgainAfterTheEnd(Producer):
    def _terminate(self, failure: Failure) -> None:
        self._link.failed(failure)


class ForgetsWhatWasPending(Producer):
    """What was pending when the broker itself closed the producer, or went away, is not sent again."""

    def _resend(self) -> None:
        for pending in self._pending.to_resend():
            if not pending.written:
                self._write(pending)


MUTANTS = (
    Mutant(
        name="client-gives-up-while-the-broker-is-away",
        family="acks",
        side="client",
        breaks="A consumer whose broker stays away for a while does not come back.",
        expected=("CONS-07",),
        shown_by="acks-broker-away",
        parts={"backoff": GivesUpWhileTheBrokerIsAway},
    ),
    Mutant(
        name="client-registers-again-after-termination",
        family="receipts",
        side="client",
        breaks="A producer that was told that its topic is terminated tries to register again.",
        expected=("PROD-14",),
        shown_by="receipts-topic-terminated",
        parts={"producer": RegistersAgainAfterTheEnd},
    ),
    Mutant(
        name="client-forgets-what-was-pending-on-a-crash",
        family="receipts",
        side="client",
        breaks="What was sent and not answered when the broker crashed is not sent again.",
        expected=("SEND-02",),
        shown_by="receipts-kill-under-load",
        parts={"producer": ForgetsWhatWasPending},
    ),
)
