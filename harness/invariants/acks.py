"""Acknowledgements: what clients may send, how brokers answer, and what a lost one may not do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.history.event import Event
from harness.invariants.acknowledged import Acknowledged, Position, acked_ids, bits, position_of
from harness.invariants.broker_acks import BrokerAcks
from harness.invariants.calm import Calm, calm_or_storm
from harness.invariants.core import Anomaly, FoldState, Invariant, Key
from harness.invariants.cursor_position import CursorPosition
from harness.invariants.faults import deletes
from harness.invariants.members import Members
from harness.invariants.remembered import SETTLE_NS
from harness.invariants.sessions import Session, Sessions

WHOLE_ENTRY = 1 << 62
"""Rank of "all members" in the order (ledger, entry, member)."""

Rank = tuple[int, int, int]


def frame_rank(position: Position, remaining: int | None, batch_index: int | None) -> Rank:
    """The last member a cumulative id covers, as (ledger, entry, member)."""
    if remaining:
        return (*position, (remaining & -remaining).bit_length() - 2)
    return (*position, WHOLE_ENTRY if batch_index is None or remaining == 0 else batch_index)


@dataclass
class Asked:
    """What the application acknowledged through one consumer."""

    members: dict[Position, set[int | None]] = field(default_factory=dict)
    indices: dict[Position, int] = field(default_factory=dict)
    cumulative: Rank | None = None
    cumulative_index: int = -1
    pieces: bool = False

    def covers(self, position: Position, size: int | None) -> bool | None:
        """Whether every member of the entry was acknowledged; None when the size of the batch is not known."""
        if self.cumulative is not None and (*position, WHOLE_ENTRY) <= self.cumulative:
            return True
        named = set(self.members.get(position, ()))
        if None in named:
            return True
        if self.cumulative is not None and self.cumulative[:2] == position:
            named.update(range(self.cumulative[2] + 1))
        if size is None:
            return None
        return len({index for index in named if index is not None}) >= size


class ClientAcksState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.members = Members()
        self.sessions = Sessions("tap.client")
        self.calm = Calm()
        self.asked: dict[str, Asked] = {}
        self.sizes: dict[Position, int] = {}
        self.acked_before: dict[Position, int] = {}
        self.pieces: set[Position] = set()
        self.last_rank: dict[Session, tuple[Rank, int]] = {}
        self.sent: dict[str, Acknowledged] = {}
        self.pending: dict[str, dict[Position, tuple[int, int]]] = {}
        self.ops: dict[int, tuple[str, Position, int]] = {}
        self.shared_cumulative: dict[str, int] = {}
        self.copies: dict[tuple[str, Position], int] = {}


class ClientAcks(Invariant[ClientAcksState]):
    """ACK frames at tap B against the calls of the application. Keyed by topic; invocations precede their frames."""

    name = "client-acks"
    family = "acks"
    clauses = ("C1", "ACK-IND-01", "ACK-IND-03", "ACK-CUM-02", "ACK-CUM-04", "ACK-CUM-06", "ACK-BATCH-02", "CCLOSE-02")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer in ("api", "tap.client") else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> ClientAcksState:
        return ClientAcksState(key)

    def step(self, state: ClientAcksState, event: Event) -> Iterable[Anomaly]:
        state.members.observe(event)
        if event.layer == "tap.client" and event.kind == "CLOSE_CONSUMER":
            yield from self._closing(state, event)
        changed = state.sessions.observe(event)
        if event.kind == "CONNECTION_CLOSED" or (changed is not None and event.layer == "tap.client"):
            for consumer in list(state.pending):
                # An ack that was pending when its session ended may be lost with it; only later ones are owed.
                if event.kind == "CONNECTION_CLOSED" or event.consumer == consumer:
                    state.pending[consumer].clear()
        if state.calm.observe(event):
            yield from self._drained(state, event)
        elif event.layer == "api":
            self._called(state, event)
        elif event.layer == "tap.client" and event.kind == "MESSAGE":
            position = position_of(event)
            if position is not None:
                state.sizes[position] = max(state.sizes.get(position, 0), event.num_messages or 1)
                copy = (event.consumer or "", position)
                state.copies[copy] = state.copies.get(copy, 0) + 1
                left = bits(event.ack_set)
                if left is not None:
                    state.acked_before[position] = state.acked_before.get(position, 0) | ~left
                if event.chunk_uuid is not None:
                    state.pieces.add(position)
        elif event.layer == "tap.client" and event.kind == "ACK":
            session = state.sessions.of(event)
            if session is not None:
                yield from self._frame(state, session, event)

    @staticmethod
    def _called(state: ClientAcksState, event: Event) -> None:
        if event.consumer is None or event.kind not in ("ack", "ack_cumulative"):
            return
        if event.phase != "invoke":
            call = state.ops.pop(event.op or -1, None)
            if event.phase == "ok" and call is not None:
                state.pending.setdefault(call[0], {}).setdefault(call[1], (event.index, event.time_ns))
            return
        asked = state.asked.setdefault(event.consumer, Asked())
        position = position_of(event)
        if position is None:
            return
        asked.pieces |= event.extra.get("first_chunk") is not None
        if event.kind == "ack":
            asked.members.setdefault(position, set()).add(event.batch_index)
            asked.indices.setdefault(position, event.index)
            if event.op is not None:
                state.ops[event.op] = (event.consumer, position, event.index)
            return
        rank = (*position, WHOLE_ENTRY if event.batch_index is None else event.batch_index)
        if asked.cumulative is None or rank > asked.cumulative:
            asked.cumulative, asked.cumulative_index = rank, event.index
        member = state.members.by_name.get(event.consumer)
        if member is not None and member.kind in ("shared", "key_shared"):
            state.shared_cumulative[event.consumer] = event.index
            state.judged["ACK-CUM-04"] += 1

    def _frame(self, state: ClientAcksState, session: Session, event: Event) -> Iterable[Anomaly]:
        sent = state.sent.setdefault(session.consumer, Acknowledged())
        sent.take(event)
        pending = state.pending.get(session.consumer, {})
        for acked in acked_ids(event):
            pending.pop(acked.position, None)
        if event.ack_type == "cumulative":
            for position in [one for one in pending if sent.since(one) is not None]:
                pending.pop(position)
            yield from self._cumulative(state, session, event)
        elif event.error is None:
            yield from self._individual(state, session, event)

    def _cumulative(self, state: ClientAcksState, session: Session, event: Event) -> Iterable[Anomaly]:
        key = (*state.key, session.consumer)
        if session.kind in ("shared", "key_shared"):
            if session.consumer not in state.shared_cumulative:
                state.judged["ACK-CUM-04"] += 1
            yield Anomaly(
                name="cumulative-ack-on-shared",
                clause="ACK-CUM-04",
                key=key,
                witness=(session.opened, event.index),
                message="a cumulative ACK was sent for a subscription that many consumers share",
                severity="conformance",
            )
            return
        ids = acked_ids(event)
        if not ids:
            return
        rank = max(frame_rank(acked.position, acked.remaining, acked.batch_index) for acked in ids)
        member = state.members.by_name.get(session.consumer)
        grouped = member is not None and member.options.get("ack_group_ms") != 0
        before = state.last_rank.get(session)
        if before is not None and grouped:
            state.judged["C1"] += 1
            if rank <= before[0]:
                yield Anomaly(
                    name="cumulative-acks-not-increasing",
                    clause="C1",
                    key=key,
                    witness=(before[1], event.index),
                    message=f"a cumulative ACK of {rank[:2]} followed one of {before[0][:2]} in the same session",
                    severity="conformance",
                )
        state.last_rank[session] = (rank, event.index)
        asked = state.asked.get(session.consumer, Asked())
        if member is None or asked.pieces or state.pieces:
            return
        limit = asked.cumulative
        clause = "ACK-CUM-02"
        if limit is not None and limit[:2] == rank[:2] and limit[2] != WHOLE_ENTRY:
            clause = "ACK-CUM-06"
            limit = self._with_neighbours(state, asked, limit)
        state.judged[clause] += 1
        if limit is None or rank > limit:
            wanted = () if limit is None else (asked.cumulative_index,)
            yield Anomaly(
                name="acked-beyond-the-call",
                clause=clause,
                key=key,
                witness=(*wanted, event.index),
                message=f"the client acked up to {rank}, the application had asked for {limit}",
            )

    @staticmethod
    def _with_neighbours(state: ClientAcksState, asked: Asked, limit: Rank) -> Rank:
        """How far a cumulative ack reaches inside its batch, with the members behind it that were acked one by one."""
        position, last = limit[:2], limit[2]
        named = asked.members.get(position, set())
        gone = state.acked_before.get(position, 0)
        size = state.sizes.get(position, WHOLE_ENTRY)
        while last + 1 < size and (last + 1 in named or gone >> last + 1 & 1):
            last += 1
        return (*position, WHOLE_ENTRY if last + 1 >= size or None in named else last)

    def _individual(self, state: ClientAcksState, session: Session, event: Event) -> Iterable[Anomaly]:
        member = state.members.by_name.get(session.consumer)
        if member is None or member.options.get("dead_letter") or session.consumer in state.members.names_reused:
            return
        asked = state.asked.get(session.consumer, Asked())
        for acked in acked_ids(event):
            position = acked.position
            if position in state.pieces or acked.first_chunk is not None or acked.remaining:
                continue
            if acked.batch_index is not None:
                continue
            size = state.sizes.get(position)
            clause = "ACK-BATCH-02" if size is not None and size > 1 else "ACK-IND-03"
            covered = asked.covers(position, size)
            if covered is None:
                continue
            if clause == "ACK-BATCH-02" and not covered:
                gone = state.acked_before.get(position, 0)
                members = {one for one in asked.members.get(position, ()) if one is not None}
                covered = all(index in members or gone >> index & 1 for index in range(size or 0))
            state.judged[clause] += 1
            if not covered:
                wanted = asked.indices.get(position)
                yield Anomaly(
                    name="acked-without-being-asked",
                    clause=clause,
                    key=(*state.key, session.consumer),
                    witness=(event.index,) if wanted is None else (wanted, event.index),
                    message=f"the client acked entry {position}; the application had not acknowledged all of it",
                )

    def _closing(self, state: ClientAcksState, event: Event) -> Iterable[Anomaly]:
        session = state.sessions.of(event)
        if session is None or not session.live or event.extra.get("direction") != "to_broker":
            return
        yield from self._owed(state, session, event, "CCLOSE-02", "closed-before-acks")

    def _drained(self, state: ClientAcksState, event: Event) -> Iterable[Anomaly]:
        for session in state.sessions.all:
            member = state.members.by_name.get(session.consumer)
            if session.live and member is not None and member.alive and session.number == 0:
                yield from self._owed(state, session, event, "ACK-IND-01", "ack-never-sent")

    @staticmethod
    def _owed(state: ClientAcksState, session: Session, event: Event, clause: str, name: str) -> Iterable[Anomaly]:
        """Acks whose call was ok while this session lived must have reached the wire (whole entries only)."""
        asked = state.asked.get(session.consumer)
        member = state.members.by_name.get(session.consumer)
        if asked is None or member is None or session.consumer in state.members.names_reused:
            return
        sent = state.sent.get(session.consumer, Acknowledged())
        whole = [place for place in asked.members if asked.covers(place, state.sizes.get(place))]
        # A client counts the members of each copy of a batch by itself; the calls do not tell which copy they mean.
        ours = [
            place
            for place in whole
            if asked.indices[place] > session.opened
            and (state.sizes.get(place, 1) <= 1 or state.copies.get((session.consumer, place), 0) <= 1)
        ]
        if ours:
            state.judged[clause] += 1
        group = member.milliseconds("ack_group_ms", 100)
        for place, (called, called_ns) in state.pending.get(session.consumer, {}).items():
            late = clause == "CCLOSE-02" or event.time_ns > called_ns + group + SETTLE_NS
            if place in ours and late and not sent.touched(place):
                yield Anomaly(
                    name=name,
                    clause=clause,
                    key=(*state.key, session.consumer),
                    severity="liveness",
                    witness=(called, event.index),
                    message=f"the ack of entry {place} succeeded in the client, but no ACK frame named it",
                )
                return

    def finish(self, state: ClientAcksState) -> Iterable[Anomaly]:
        return ()


class ReceiptState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.asked: dict[int, tuple[int, int]] = {}
        self.answered: dict[int, int] = {}
        self.closed = False
        self.ended: set[int] = set()


class AckReceipts(Invariant[ReceiptState]):
    """ACK-IND-04: one ACK_RESPONSE for each ACK that asks for one. Keyed by broker-side connection."""

    name = "ack-receipts"
    family = "acks"
    clauses = ("ACK-IND-04",)

    def key(self, event: Event) -> Key | None:
        return (event.connection,) if event.layer == "tap.broker" and event.connection else None

    def broadcast(self, event: Event) -> bool:
        return event.layer == "fault" and event.kind == "quiescent"

    def start(self, key: Key) -> ReceiptState:
        return ReceiptState(key)

    def step(self, state: ReceiptState, event: Event) -> Iterable[Anomaly]:
        number = event.request_id
        consumer = event.extra.get("consumer_id", -1)
        if event.kind == "CONNECTION_CLOSED":
            state.closed = True
        elif event.kind in ("CLOSE_CONSUMER", "UNSUBSCRIBE"):
            state.ended.add(consumer)
        elif event.kind == "SUBSCRIBE":
            state.ended.discard(consumer)
        elif event.kind == "ACK" and number is not None and consumer not in state.ended:
            state.asked[number] = (event.index, event.time_ns)
        elif event.kind == "ACK_RESPONSE" and number is not None:
            state.judged["ACK-IND-04"] += 1
            if number in state.answered:
                yield Anomaly(
                    name="ack-answered-twice",
                    clause="ACK-IND-04",
                    key=state.key,
                    severity="conformance",
                    witness=(state.answered[number], event.index),
                    message=f"request {number} got two answers",
                )
            elif number not in state.asked and not state.ended:
                yield Anomaly(
                    name="answer-without-ack",
                    clause="ACK-IND-04",
                    key=state.key,
                    severity="conformance",
                    witness=(event.index,),
                    message=f"an ACK_RESPONSE named request {number}, which no ACK carried",
                )
            state.answered[number] = event.index
        elif event.kind == "quiescent" and event.extra.get("drained") is True and not state.closed:
            for request, (index, time_ns) in state.asked.items():
                if request not in state.answered and event.time_ns - time_ns > 2 * SETTLE_NS and not state.ended:
                    state.judged["ACK-IND-04"] += 1
                    yield Anomaly(
                        name="ack-not-answered",
                        clause="ACK-IND-04",
                        key=state.key,
                        severity="liveness",
                        witness=(index, event.index),
                        message=f"an ACK asked for an answer ({request}) and got none",
                    )

    def finish(self, state: ReceiptState) -> Iterable[Anomaly]:
        return ()


class StrandedState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.members = Members()
        self.sessions = Sessions("tap.client")
        self.broker_sessions = Sessions("tap.broker")
        self.calm = Calm()
        self.cumulative: dict[str, tuple[Position, int]] = {}
        self.arrived: dict[str, Acknowledged] = {}
        self.resent: dict[Session, Acknowledged] = {}
        self.shown: dict[Session, dict[Position, int]] = {}
        self.received: dict[str, dict[Position, int]] = {}
        self.ops: dict[int, tuple[str, Position]] = {}


class StrandedAcks(Invariant[StrandedState]):
    """ACK-CUM-05: what a lost cumulative ACK covered is acked again or handed out again. Keyed by topic."""

    name = "stranded-acks"
    family = "acks"
    clauses = ("ACK-CUM-05",)

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer in ("api", "tap.client", "tap.broker") else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> StrandedState:
        return StrandedState(key)

    def step(self, state: StrandedState, event: Event) -> Iterable[Anomaly]:
        state.members.observe(event)
        state.sessions.observe(event)
        state.broker_sessions.observe(event)
        if deletes(event, state.key[0]):
            # What the acks were about is gone; a subscription made anew knows nothing of them.
            state.cumulative.clear()
        if state.calm.observe(event):
            yield from self._drained(state, event)
        elif event.layer == "tap.broker":
            if event.kind == "ACK" and event.subscription is not None:
                state.arrived.setdefault(event.subscription, Acknowledged()).take(event)
        elif event.layer == "tap.client":
            session = state.sessions.of(event)
            position = position_of(event)
            if session is not None and event.kind == "ACK":
                state.resent.setdefault(session, Acknowledged()).take(event)
            elif session is not None and event.kind == "MESSAGE" and position is not None:
                state.shown.setdefault(session, {}).setdefault(position, event.index)
        elif event.layer == "api" and event.consumer is not None:
            self._called(state, event, event.consumer)

    @staticmethod
    def _called(state: StrandedState, event: Event, consumer: str) -> None:
        position = position_of(event)
        if event.kind == "receive" and event.phase == "ok" and position is not None:
            state.received.setdefault(consumer, {})[position] = event.index
        elif event.kind == "ack_cumulative" and event.phase == "invoke" and position is not None and event.op:
            covered = position if event.batch_index is None else (position[0], position[1] - 1)
            state.ops[event.op] = (consumer, covered)
        elif event.kind == "ack_cumulative" and event.phase == "ok" and event.op in state.ops:
            consumer, covered = state.ops.pop(event.op)
            before = state.cumulative.get(consumer)
            if before is None or covered > before[0]:
                state.cumulative[consumer] = (covered, event.index)

    @staticmethod
    def _drained(state: StrandedState, event: Event) -> Iterable[Anomaly]:
        for consumer, (covered, called) in state.cumulative.items():
            member = state.members.by_name.get(consumer)
            if member is None or not member.alive or consumer in state.members.names_reused:
                continue
            for session in state.sessions.live(member.subscription):
                if session.consumer != consumer or session.opened < called:
                    continue
                if event.time_ns - session.opened_ns < 2 * SETTLE_NS:
                    continue
                state.judged["ACK-CUM-05"] += 1
                arrived = state.arrived.get(member.subscription, Acknowledged())
                again = state.resent.get(session, Acknowledged())
                received = state.received.get(consumer, {})
                for position, shown in state.shown.get(session, {}).items():
                    if (
                        position <= covered
                        and arrived.since(position) is None
                        and not again.touched(position)
                        and received.get(position, -1) < shown
                    ):
                        yield Anomaly(
                            name="stranded-cumulative-ack",
                            clause="ACK-CUM-05",
                            key=(*state.key, consumer),
                            severity="liveness",
                            witness=(called, session.opened, shown, event.index),
                            message=f"the ack up to {covered} was lost; {position} came again and was neither acked "
                            "nor handed to the application",
                        )
                        break

    def finish(self, state: StrandedState) -> Iterable[Anomaly]:
        return ()


INVARIANTS: tuple[Invariant[Any], ...] = (
    ClientAcks(),
    BrokerAcks(),
    AckReceipts(),
    CursorPosition(),
    StrandedAcks(),
)
