"""Clients that break a promise on the way from the broker to the application and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from harness.reference.client.ack_tracker import AckGroup, AckTracker
from harness.reference.client.batch_splitter import BatchSplitter
from harness.reference.client.consumer import Consumer, OnDone, OnFailed
from harness.reference.client.dead_letters import DeadLetters
from harness.reference.client.delivery import Delivery
from harness.reference.client.negative_acks import NegativeAcks
from harness.reference.client.permits import Permits
from harness.reference.client.receive_queue import ReceiveQueue
from harness.reference.mutants.mutant import Mutant
from harness.wire.message_id import Position


class AcksInOrderOfCalls(AckTracker):
    """The latest cumulative acknowledgement is sent, not the greatest."""

    def is_above(self, point: tuple[Position, int]) -> bool:
        return True


class DropsAcks(AckTracker):
    def take(self, epoch: int) -> list[AckGroup]:
        groups = super().take(epoch)
        return [
            AckGroup(group.kind, group.ids[:-1]) if group.kind == "individual" and len(group.ids) > 1 else group
            for group in groups
        ]


class AcksBatchAtFirstMember(AckTracker):
    def individual(self, delivery: Delivery) -> bool:
        if delivery.batch_index is not None:
            self.whole_entry(delivery.position)
            return True
        return super().individual(delivery)


class CoversWholeBatch(AckTracker):
    """A cumulative acknowledgement inside a batch takes the rest of the batch along."""

    def _point(self, delivery: Delivery) -> tuple[Position, int]:
        return delivery.position, 1 << 62


class NeverSendsAgain(AckTracker):
    def came_again(self, epoch: int) -> bool:
        return self._cumulative_pending


class AcksTheNeighbour(AckTracker):
    def individual(self, delivery: Delivery) -> bool:
        self._entries[Position(delivery.position.ledger, delivery.position.entry + 1)] = None
        return super().individual(delivery)


class AcksBeyondTheCall(AckTracker):
    def _point(self, delivery: Delivery) -> tuple[Position, int]:
        position, member = super()._point(delivery)
        return Position(position.ledger, position.entry + 1), member


class AcksCumulativelyOnShared(Consumer):
    def acknowledge_cumulative(self, delivery: Delivery, on_done: Callable[[bool], None], on_failed: OnFailed) -> None:
        self._ack_sender.recorded(self._acks.cumulative(delivery), on_done, on_failed)


class ClosesBeforeAcks(Consumer):
    def close(self, on_done: OnDone, on_failed: OnFailed) -> None:
        self._acks.reset()
        super().close(on_done, on_failed)


class OwesFromBefore(Permits):
    def subscribed(self) -> int:
        owed = self.owed
        return super().subscribed() + owed


class GrantsTwice(Permits):
    def subscribed(self) -> int:
        return super().subscribed() * 2


class KeepsPermits(Permits):
    def give_back(self, count: int) -> int:
        grant = super().give_back(count)
        return max(0, grant - 1) if self.queue > 2 else grant


class GivesBackTwiceAsMuch(Permits):
    def give_back(self, count: int) -> int:
        return 2 * super().give_back(count)


class GivesBackManyTimesAsMuch(Permits):
    def give_back(self, count: int) -> int:
        return 8 * super().give_back(count)


class GrantsForEveryMessage(Permits):
    def threshold(self) -> int:
        return 1


class NewestFirst(ReceiveQueue):
    def take(self) -> Delivery | None:
        return self._messages.pop() if self._messages else None


class DeliversAcknowledgedMembers(BatchSplitter):
    def wanted(self, count: int, ack_set: Iterable[int]) -> set[int]:
        return set(range(count))


class _Retells(Consumer):
    """What the application is told of a message differs from what arrived."""

    def receive(
        self, timeout: int, on_message: Callable[[int, Delivery], None], on_nothing: OnDone, on_failed: OnFailed
    ) -> None:
        super().receive(timeout, lambda ref, it: on_message(ref, self._retold(it)), on_nothing, on_failed)

    def _retold(self, delivery: Delivery) -> Delivery:
        return delivery


class ChangesPayloads(_Retells):
    def _retold(self, delivery: Delivery) -> Delivery:
        return replace(delivery, payload=delivery.payload + b"!")


class TellsIdsThatNeverCame(_Retells):
    def _retold(self, delivery: Delivery) -> Delivery:
        position = delivery.position
        return replace(delivery, position=Position(position.ledger, position.entry + 1_000_000))


class TellsOneIdForAll(_Retells):
    def _retold(self, delivery: Delivery) -> Delivery:
        return replace(delivery, position=Position(delivery.position.ledger, 1_000_000))


class TellsAnotherCount(_Retells):
    def _retold(self, delivery: Delivery) -> Delivery:
        return replace(delivery, redelivery_count=delivery.redelivery_count + 5)


class LosesNacks(NegativeAcks):
    def add(self, delivery: Delivery, now: int) -> None:
        if delivery.position.entry % 2 == 0:
            super().add(delivery, now)


class AsksAtOnce(NegativeAcks):
    def add(self, delivery: Delivery, now: int) -> None:
        self._due.setdefault(delivery.position, (now, delivery))


class GivesUpTooEarly(DeadLetters):
    def is_last_chance(self, redelivery_count: int) -> bool:
        return redelivery_count + 1 >= self.max_redeliver

    def is_exhausted(self, redelivery_count: int) -> bool:
        return redelivery_count >= self.max_redeliver


class GivesUpTooLate(DeadLetters):
    def is_last_chance(self, redelivery_count: int) -> bool:
        return redelivery_count > self.max_redeliver

    def is_exhausted(self, redelivery_count: int) -> bool:
        return redelivery_count > self.max_redeliver + 1


class DropsInsteadOfCopying(DeadLetters):
    def start_transfer(self, position: Position, unacked: set[int]) -> list[Delivery]:
        self._candidates.pop(position)
        return []


class CopiesTwice(DeadLetters):
    def start_transfer(self, position: Position, unacked: set[int]) -> list[Delivery]:
        copies = super().start_transfer(position, unacked) * 2
        if copies:
            self._open_copies[position] = len(copies)
        return copies


class AcksBeforeTheCopy(Consumer):
    def _transfer(self, position: Position) -> None:
        super()._transfer(position)
        self._acks.whole_entry(position)
        self._ack_sender.flush()


class CopiesWithoutOrigin(DeadLetters):
    def properties(self, delivery: Delivery, topic: str, subscription: str) -> dict[str, str]:
        return dict(delivery.properties)


class RemembersFirstDeliveries(Consumer):
    """What is copied is what arrived first, whatever was acknowledged since."""

    def _deliver(self, position: Position, deliveries: list[Delivery], redelivery_count: int) -> None:
        first = self.__dict__.setdefault("_first", {}).setdefault(position, deliveries)
        super()._deliver(position, deliveries, redelivery_count)
        if self._dead is not None and self._dead.is_candidate(position):
            self._dead.arrived(position, first)


class CopiesAcknowledgedMembers(DeadLetters):
    def start_transfer(self, position: Position, acked: set[int]) -> list[Delivery]:
        return super().start_transfer(position, set())


class CopiesWithoutProperties(DeadLetters):
    def properties(self, delivery: Delivery, topic: str, subscription: str) -> dict[str, str]:
        properties = super().properties(delivery, topic, subscription)
        return {name: value for name, value in properties.items() if name not in delivery.properties}


MUTANTS = (
    Mutant(
        name="client-gives-back-twice-as-much",
        family="receipts",
        side="client",
        breaks="Each refill grants twice the room there is, so more is under way than the queue holds.",
        expected=("FLOW-03",),
        shown_by="receipts-flow-after-reconnect",
        parts={"permits": GivesBackTwiceAsMuch},
    ),
    Mutant(
        name="client-prefetches-without-bound",
        family="receipts",
        side="client",
        breaks="The client holds many times more messages than its queue is to hold.",
        expected=("PERMIT-13",),
        shown_by="receipts-slow-consumer",
        parts={"permits": GivesBackManyTimesAsMuch},
    ),
    Mutant(
        name="client-acks-in-order-of-calls",
        family="acks",
        side="client",
        breaks="An older cumulative acknowledgement is sent after a newer one.",
        expected=("C1",),
        shown_by="acks-repeated",
        parts={"ack_tracker": AcksInOrderOfCalls},
    ),
    Mutant(
        name="client-drops-acks",
        family="acks",
        side="client",
        breaks="The last acknowledgement of a group is never sent.",
        expected=("ACK-IND-01",),
        shown_by="acks-failover-lost-link",
        parts={"ack_tracker": DropsAcks},
    ),
    Mutant(
        name="client-acks-batch-at-first-member",
        family="acks",
        side="client",
        breaks="Acknowledging one message of a batch acknowledges the entry.",
        expected=("ACK-BATCH-02",),
        shown_by="acks-batch-cumulative",
        parts={"ack_tracker": AcksBatchAtFirstMember},
    ),
    Mutant(
        name="client-covers-whole-batch",
        family="acks",
        side="client",
        breaks="A cumulative acknowledgement inside a batch takes the rest of the batch along.",
        expected=("ACK-CUM-06",),
        shown_by="acks-batch-cumulative-plain",
        parts={"ack_tracker": CoversWholeBatch},
    ),
    Mutant(
        name="client-never-sends-ack-again",
        family="acks",
        side="client",
        breaks="A cumulative acknowledgement that was lost is hidden from the application and never sent again.",
        expected=("ACK-CUM-05",),
        shown_by="acks-lost-cumulative",
        parts={"ack_tracker": NeverSendsAgain},
    ),
    Mutant(
        name="client-grants-twice",
        family="acks",
        side="client",
        breaks="The opening grant is larger than the receiver queue.",
        expected=("PERMIT-02",),
        shown_by="acks-after-redelivery-request",
        parts={"permits": GrantsTwice},
    ),
    Mutant(
        name="client-keeps-permits",
        family="acks",
        side="client",
        breaks="Permits of consumed messages are not all given back.",
        expected=("PERMIT-05",),
        shown_by="acks-shared-two",
        parts={"permits": KeepsPermits},
    ),
    Mutant(
        name="client-hands-out-newest-first",
        family="acks",
        side="client",
        breaks="The application receives messages in another order than the broker sent them.",
        expected=("RECV-01",),
        shown_by="acks-batch-cumulative-plain",
        parts={"receive_queue": NewestFirst},
    ),
    Mutant(
        name="client-delivers-acknowledged-members",
        family="acks",
        side="client",
        breaks="Members of a batch that the broker marks as acknowledged reach the application.",
        expected=("BIDX-01",),
        shown_by="acks-batch-cumulative",
        parts={"batch_splitter": DeliversAcknowledgedMembers},
    ),
    Mutant(
        name="client-loses-nacks",
        family="dead_letter",
        side="client",
        breaks="Some negative acknowledgements never become a redelivery request.",
        expected=("REDEL-01",),
        shown_by="dead_letter-nack-delay",
        parts={"negative_acks": LosesNacks},
    ),
    Mutant(
        name="client-asks-at-once",
        family="dead_letter",
        side="client",
        breaks="Redelivery is asked for before the delay has passed.",
        expected=("REDEL-01",),
        shown_by="dead_letter-nack-delay",
        parts={"negative_acks": AsksAtOnce},
    ),
    Mutant(
        name="client-gives-up-too-early",
        family="dead_letter",
        side="client",
        breaks="A message is dead-lettered one redelivery too early.",
        expected=("Q3",),
        shown_by="dead_letter-batch-acked-members",
        parts={"dead_letters": GivesUpTooEarly},
    ),
    Mutant(
        name="client-gives-up-too-late",
        family="dead_letter",
        side="client",
        breaks="The application sees a message more often than the policy allows.",
        expected=("Q2",),
        shown_by="dead_letter-batch-acked-members",
        parts={"dead_letters": GivesUpTooLate},
    ),
    Mutant(
        name="client-drops-instead-of-copying",
        family="dead_letter",
        side="client",
        breaks="An exhausted message is not copied to the dead-letter topic.",
        expected=("Q4",),
        shown_by="dead_letter-batch-acked-members",
        parts={"dead_letters": DropsInsteadOfCopying},
    ),
    Mutant(
        name="client-copies-twice",
        family="dead_letter",
        side="client",
        breaks="An exhausted message is copied twice.",
        expected=("Q6",),
        shown_by="dead_letter-batch-acked-members",
        parts={"dead_letters": CopiesTwice},
    ),
    Mutant(
        name="client-copies-without-properties",
        family="dead_letter",
        side="client",
        breaks="The copy lacks the original's properties.",
        expected=("Q7",),
        shown_by="dead_letter-properties",
        parts={"dead_letters": CopiesWithoutProperties},
    ),
    Mutant(
        name="client-acks-before-the-copy-is-stored",
        family="dead_letter",
        side="client",
        breaks="The source is acknowledged before its copy is confirmed.",
        expected=("Q5",),
        shown_by="dead_letter-batch-acked-members",
        parts={"consumer": AcksBeforeTheCopy},
    ),
    Mutant(
        name="client-copies-without-origin",
        family="dead_letter",
        side="client",
        breaks="The copy does not say where it comes from.",
        expected=("DLQ-02",),
        shown_by="dead_letter-batch-acked-members",
        parts={"dead_letters": CopiesWithoutOrigin},
    ),
    Mutant(
        name="client-copies-acknowledged-members",
        family="dead_letter",
        side="client",
        breaks="Members of a batch that were acknowledged are copied to the dead-letter topic.",
        expected=("DLQ-03",),
        shown_by="dead_letter-batch-acked-members",
        parts={"consumer": RemembersFirstDeliveries, "dead_letters": CopiesAcknowledgedMembers},
    ),
    Mutant(
        name="client-tells-another-count",
        family="dead_letter",
        side="client",
        breaks="The application is told another redelivery count than the broker sent.",
        expected=("RECV-06",),
        shown_by="dead_letter-batch-acked-members",
        parts={"consumer": TellsAnotherCount},
    ),
    Mutant(
        name="client-grants-for-every-message",
        family="acks",
        side="client",
        breaks="Each message consumed is given back by a FLOW of its own.",
        expected=("PERMIT-04",),
        shown_by="acks-after-redelivery-request",
        parts={"permits": GrantsForEveryMessage},
    ),
    Mutant(
        name="client-owes-from-before",
        family="acks",
        side="client",
        breaks="After a reconnect the opening grant holds permits owed on the connection before.",
        expected=("PERMIT-07",),
        shown_by="acks-batch-cut",
        parts={"permits": OwesFromBefore},
    ),
    Mutant(
        name="client-acks-the-neighbour",
        family="acks",
        side="client",
        breaks="An individual acknowledgement names the next message too.",
        expected=("ACK-IND-03",),
        shown_by="acks-after-redelivery-request",
        parts={"ack_tracker": AcksTheNeighbour},
    ),
    Mutant(
        name="client-acks-beyond-the-call",
        family="acks",
        side="client",
        breaks="A cumulative acknowledgement names the message after the one it was called for.",
        expected=("ACK-CUM-02",),
        shown_by="acks-cumulative",
        parts={"ack_tracker": AcksBeyondTheCall},
    ),
    Mutant(
        name="client-acks-cumulatively-on-shared",
        family="acks",
        side="client",
        breaks="A cumulative acknowledgement is sent for a Shared subscription.",
        expected=("ACK-CUM-04",),
        shown_by="acks-cumulative-on-shared",
        parts={"consumer": AcksCumulativelyOnShared},
    ),
    Mutant(
        name="client-closes-before-acks",
        family="acks",
        side="client",
        breaks="Acknowledgements that wait for their group time are forgotten by close.",
        expected=("CCLOSE-02",),
        shown_by="acks-crossing-ledgers",
        parts={"consumer": ClosesBeforeAcks},
    ),
    Mutant(
        name="client-changes-payloads",
        family="acks",
        side="client",
        breaks="The application receives other bytes under an id than were published there.",
        expected=("LEDGER-04",),
        shown_by="acks-after-redelivery-request",
        parts={"consumer": ChangesPayloads},
    ),
    Mutant(
        name="client-tells-one-id-for-all",
        family="acks",
        side="client",
        breaks="The application is told of different messages under one id.",
        expected=("LEDGER-04",),
        shown_by="acks-after-redelivery-request",
        parts={"consumer": TellsOneIdForAll},
    ),
    Mutant(
        name="client-tells-ids-that-never-came",
        family="acks",
        side="client",
        breaks="The application receives messages under ids that no frame brought.",
        expected=("RECV-02",),
        shown_by="acks-after-redelivery-request",
        parts={"consumer": TellsIdsThatNeverCame},
    ),
)
