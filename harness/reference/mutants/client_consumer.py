"""Clients that break a promise on the way from the broker to the application and back."""

from __future__ import annotations

from collections.abc import Iterable

from harness.reference.client.ack_tracker import AckGroup, AckTracker
from harness.reference.client.batch_splitter import BatchSplitter
from harness.reference.client.chunk_assembler import Assembled, ChunkAssembler
from harness.reference.client.dead_letters import DeadLetters
from harness.reference.client.delivery import Delivery
from harness.reference.client.negative_acks import NegativeAcks
from harness.reference.client.permits import Permits
from harness.reference.client.receive_queue import ReceiveQueue
from harness.reference.mutants.mutant import Mutant
from harness.wire.chunk import ChunkLabel
from harness.wire.message_id import Position


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
    def is_expired(self, since: int, now: int) -> bool:
        return False


class ExpiresTooEarly(ChunkAssembler):
    def deadline(self) -> int | None:
        opened = [context.opened_at for context in self._contexts.values()]
        return min(opened) + 1 if opened else None

    def is_expired(self, since: int, now: int) -> bool:
        return True


class AppendsRepeatedPieces(ChunkAssembler):
    def _repeated(self, context: object, position: Position) -> None:
        context.payload += b"x"  # type: ignore[attr-defined]  # the context's class is the part's own


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


class GrantsTwice(Permits):
    def subscribed(self) -> int:
        return super().subscribed() * 2


class KeepsPermits(Permits):
    def give_back(self, count: int) -> int:
        grant = super().give_back(count)
        return max(0, grant - 1) if self.queue > 2 else grant


class GrantsForEveryMessage(Permits):
    def threshold(self) -> int:
        return 1


class NewestFirst(ReceiveQueue):
    def take(self) -> Delivery | None:
        return self._messages.pop() if self._messages else None


class DeliversAcknowledgedMembers(BatchSplitter):
    def wanted(self, count: int, ack_set: Iterable[int]) -> set[int]:
        return set(range(count))


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


class CopiesWithoutProperties(DeadLetters):
    def properties(self, delivery: Delivery, topic: str, subscription: str) -> dict[str, str]:
        properties = super().properties(delivery, topic, subscription)
        return {name: value for name, value in properties.items() if name not in delivery.properties}


MUTANTS = (
    Mutant(
        name="client-delivers-parts",
        family="chunks",
        side="client",
        breaks="The application gets a chunked message before its last piece.",
        parts={"chunk_assembler": DeliversParts},
    ),
    Mutant(
        name="client-acks-last-piece-only",
        family="chunks",
        side="client",
        breaks="Acknowledging a chunked message names its last piece only.",
        parts={"chunk_assembler": AcksLastPieceOnly},
    ),
    Mutant(
        name="client-never-expires-pieces",
        family="chunks",
        side="client",
        breaks="Pieces that can never be completed are kept for ever.",
        parts={"chunk_assembler": NeverExpires},
    ),
    Mutant(
        name="client-expires-pieces-too-early",
        family="chunks",
        side="client",
        breaks="Incomplete messages are given up before their time.",
        parts={"chunk_assembler": ExpiresTooEarly},
    ),
    Mutant(
        name="client-appends-repeated-pieces",
        family="chunks",
        side="client",
        breaks="A piece that came twice spoils the message.",
        parts={"chunk_assembler": AppendsRepeatedPieces},
    ),
    Mutant(
        name="client-acks-in-order-of-calls",
        family="acks",
        side="client",
        breaks="An older cumulative acknowledgement is sent after a newer one.",
        parts={"ack_tracker": AcksInOrderOfCalls},
    ),
    Mutant(
        name="client-drops-acks",
        family="acks",
        side="client",
        breaks="The last acknowledgement of a group is never sent.",
        parts={"ack_tracker": DropsAcks},
    ),
    Mutant(
        name="client-acks-batch-at-first-member",
        family="acks",
        side="client",
        breaks="Acknowledging one message of a batch acknowledges the entry.",
        parts={"ack_tracker": AcksBatchAtFirstMember},
    ),
    Mutant(
        name="client-covers-whole-batch",
        family="acks",
        side="client",
        breaks="A cumulative acknowledgement inside a batch takes the rest of the batch along.",
        parts={"ack_tracker": CoversWholeBatch},
    ),
    Mutant(
        name="client-never-sends-ack-again",
        family="acks",
        side="client",
        breaks="A cumulative acknowledgement that was lost is hidden from the application and never sent again.",
        parts={"ack_tracker": NeverSendsAgain},
    ),
    Mutant(
        name="client-grants-twice",
        family="acks",
        side="client",
        breaks="The opening grant is larger than the receiver queue.",
        parts={"permits": GrantsTwice},
    ),
    Mutant(
        name="client-keeps-permits",
        family="acks",
        side="client",
        breaks="Permits of consumed messages are not all given back.",
        parts={"permits": KeepsPermits},
    ),
    Mutant(
        name="client-hands-out-newest-first",
        family="acks",
        side="client",
        breaks="The application receives messages in another order than the broker sent them.",
        parts={"receive_queue": NewestFirst},
    ),
    Mutant(
        name="client-delivers-acknowledged-members",
        family="acks",
        side="client",
        breaks="Members of a batch that the broker marks as acknowledged reach the application.",
        parts={"batch_splitter": DeliversAcknowledgedMembers},
    ),
    Mutant(
        name="client-loses-nacks",
        family="dead_letter",
        side="client",
        breaks="Some negative acknowledgements never become a redelivery request.",
        parts={"negative_acks": LosesNacks},
    ),
    Mutant(
        name="client-asks-at-once",
        family="dead_letter",
        side="client",
        breaks="Redelivery is asked for before the delay has passed.",
        parts={"negative_acks": AsksAtOnce},
    ),
    Mutant(
        name="client-gives-up-too-early",
        family="dead_letter",
        side="client",
        breaks="A message is dead-lettered one redelivery too early.",
        parts={"dead_letters": GivesUpTooEarly},
    ),
    Mutant(
        name="client-gives-up-too-late",
        family="dead_letter",
        side="client",
        breaks="The application sees a message more often than the policy allows.",
        parts={"dead_letters": GivesUpTooLate},
    ),
    Mutant(
        name="client-drops-instead-of-copying",
        family="dead_letter",
        side="client",
        breaks="An exhausted message is not copied to the dead-letter topic.",
        parts={"dead_letters": DropsInsteadOfCopying},
    ),
    Mutant(
        name="client-copies-twice",
        family="dead_letter",
        side="client",
        breaks="An exhausted message is copied twice.",
        parts={"dead_letters": CopiesTwice},
    ),
    Mutant(
        name="client-copies-without-properties",
        family="dead_letter",
        side="client",
        breaks="The copy lacks the original's properties.",
        parts={"dead_letters": CopiesWithoutProperties},
    ),
)
