"""Acknowledgements: what clients may send, what brokers must remember, where the mark-delete position stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.history.event import Event
from harness.invariants.acknowledged import Acknowledged, Position, acked_ids, bits, position_of
from harness.invariants.calm import Calm, calm_or_storm
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.members import Members
from harness.invariants.sessions import Session, Sessions

WHOLE_ENTRY = 1 << 62
"""Rank of "all members" in the order (ledger, entry, member)."""

SETTLE_NS = 1_000_000_000
"""A second: how long a broker that is not under stress may take to act on an ACK it has got."""

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


@dataclass
class Remembered:
    """An acknowledgement that reached the broker side through a subscribed session."""

    session: Session
    index: int
    time_ns: int
    times: int = 1

    def settled_by(self, moment_ns: int, gone_ns: int | None) -> bool:
        """Whether a working broker had to know it at ``moment_ns``.

        Either it had a second with the connection still up, or the consumer was closed properly (``gone_ns``).
        """
        session = self.session
        kept = session.live or not session.lost or session.ended_ns - self.time_ns >= SETTLE_NS
        if kept and moment_ns - self.time_ns >= SETTLE_NS:
            return True
        return not session.live and not session.lost and gone_ns is not None and self.time_ns < gone_ns <= moment_ns


@dataclass
class Ledger:
    """What one subscription was told, as seen at tap A."""

    whole: dict[Position, Remembered] = field(default_factory=dict)
    cumulative: list[tuple[Position, Remembered]] = field(default_factory=list)
    cleared: dict[Position, int] = field(default_factory=dict)
    shown: dict[Position, tuple[int, int, Session]] = field(default_factory=dict)
    basis: dict[Session, tuple[int, int]] = field(default_factory=dict)
    judged: set[tuple[Session, str]] = field(default_factory=set)


class BrokerAcksState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.members = Members()
        self.sessions = Sessions("tap.broker")
        self.calm = Calm()
        self.ledgers: dict[str, Ledger] = {}
        self.crashes: list[int] = []


def _skipped(seek: Event) -> dict[Position, int]:
    """The members before the target of a SEEK into a batch: a broker may mark them as acked, as the SEEK says."""
    position, left = position_of(seek), bits(seek.ack_set)
    if position is None or (left is None and seek.batch_index is None):
        return {}
    return {position: ~left if left is not None else (1 << (seek.batch_index or 0)) - 1}


CURSOR_FLUSH_NS = 60_000_000_000
"""A dirty cursor is written at the latest after this time (MARKDEL-04)."""


class BrokerAcks(Invariant[BrokerAcksState]):
    """What was acked stays acked, and only what was acked. Keyed by topic, judged at tap A."""

    name = "broker-acks"
    family = "acks"
    clauses = ("C5", "C6", "C7", "ACK-25", "ACK-IND-06", "ACK-BATCH-01")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer in ("api", "tap.broker") else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> BrokerAcksState:
        return BrokerAcksState(key)

    def step(self, state: BrokerAcksState, event: Event) -> Iterable[Anomaly]:
        state.members.observe(event)
        changed = state.sessions.observe(event)
        if state.calm.observe(event):
            for one in state.sessions.all:
                if one.live and one.credit > 0:
                    self._put_to_test(state, state.ledgers.get(one.subscription, Ledger()), one)
            return
        if event.layer == "fault" and event.kind == "broker_kill":
            state.crashes.append(event.time_ns)
            for each in state.ledgers.values():
                each.shown.clear()
            return
        session = changed or state.sessions.of(event)
        if session is None:
            return
        ledger = state.ledgers.setdefault(session.subscription, Ledger())
        if event.kind in ("SUBSCRIBE", "REDELIVER_UNACKNOWLEDGED_MESSAGES"):
            # On a connection that is older, frames of the past may still wait in a link that a fault has slowed.
            if (event.kind == "SUBSCRIBE" and session.number == 0) or state.calm.last_fault < 0:
                ledger.basis[session] = (event.index, event.time_ns)
        elif event.kind in ("SEEK", "UNSUBSCRIBE"):
            state.ledgers[session.subscription] = Ledger(basis=ledger.basis, cleared=_skipped(event))
        elif event.kind == "ACK":
            self._acked(ledger, session, event)
        elif event.kind == "MESSAGE" and session.live:
            position = position_of(event)
            if position is not None:
                self._put_to_test(state, ledger, session)
                yield from self._again(state, ledger, session, position, event)
                yield from self._members(state, ledger, session, position, event)

    @staticmethod
    def _acked(ledger: Ledger, session: Session, event: Event) -> None:
        for acked in acked_ids(event):
            if event.ack_type == "cumulative":
                if session.kind in ("shared", "key_shared"):
                    continue
                if acked.remaining:
                    # Every member whose bit is gone: the client names those it acknowledged one by one before, too.
                    done = ~acked.remaining
                    ledger.cleared[acked.position] = ledger.cleared.get(acked.position, 0) | done
                    covered = (acked.position[0], acked.position[1] - 1)
                else:
                    covered = acked.position
            elif acked.remaining:
                ledger.cleared[acked.position] = ledger.cleared.get(acked.position, 0) | ~acked.remaining
                continue
            elif acked.batch_index is not None:
                ledger.cleared[acked.position] = ledger.cleared.get(acked.position, 0) | 1 << acked.batch_index
                continue
            else:
                covered = acked.position
                ledger.cleared[covered] = -1
            # A broker drops acks of a consumer that is not subscribed yet; a FLOW is the proof that it was. It drops
            # those of one that has left, too: pulsar-client flushes acks after its UNSUBSCRIBE.
            if session.first_flow is None or session.first_flow > event.index or not session.live:
                continue
            known = Remembered(session, event.index, event.time_ns)
            if event.ack_type == "cumulative":
                if not ledger.cumulative or covered > ledger.cumulative[-1][0]:
                    ledger.cumulative.append((covered, known))
            elif covered in ledger.whole:
                ledger.whole[covered].times += 1
            else:
                ledger.whole[covered] = known

    def _settled(self, state: BrokerAcksState, known: Remembered, moment_ns: int) -> bool:
        member = state.members.by_name.get(known.session.consumer)
        gone = member.gone_ns if member is not None and member.gone is not None else None
        return known.settled_by(moment_ns, gone)

    def _put_to_test(self, state: BrokerAcksState, ledger: Ledger, session: Session) -> None:
        """Count the rules that this session's deliveries test: something was acked for good before it started."""
        basis = ledger.basis.get(session)
        if basis is None:
            return
        for clause, known in (
            *(("ACK-25", one) for one in ledger.whole.values()),
            *(("ACK-IND-06", one) for one in ledger.whole.values() if one.times > 1),
            *(("C5", one) for _, one in ledger.cumulative),
            *(
                ("C6", one)
                for one in (*ledger.whole.values(), *(known for _, known in ledger.cumulative))
                if any(crash - one.time_ns >= CURSOR_FLUSH_NS for crash in state.crashes)
            ),
        ):
            if (session, clause) not in ledger.judged and self._settled(state, known, basis[1]):
                ledger.judged.add((session, clause))
                state.judged[clause] += 1

    def _again(
        self, state: BrokerAcksState, ledger: Ledger, session: Session, position: Position, event: Event
    ) -> Iterable[Anomaly]:
        basis = ledger.basis.get(session)
        known, clause = ledger.whole.get(position), "ACK-25"
        if known is not None and known.times > 1:
            clause = "ACK-IND-06"
        if known is None or basis is None or not self._settled(state, known, basis[1]):
            for covered, candidate in ledger.cumulative:
                if covered >= position:
                    known, clause = candidate, "C5"
                    break
        if known is None or basis is None or not self._settled(state, known, basis[1]):
            return
        key = (*state.key, session.subscription)
        since = [crash for crash in state.crashes if crash > known.time_ns]
        if since:
            if since[0] - known.time_ns < CURSOR_FLUSH_NS:
                state.undecided.append(
                    Undecided(
                        clause="C6",
                        key=key,
                        witness=(known.index, event.index),
                        reason="the crash came before the cursor had to be written",
                    )
                )
                return
            clause = "C6"
        yield Anomaly(
            name="acked-message-came-back",
            clause=clause,
            key=key,
            witness=(known.index, basis[0], event.index),
            message=f"entry {position} had been acknowledged for good and was sent again",
        )

    @staticmethod
    def _members(
        state: BrokerAcksState, ledger: Ledger, session: Session, position: Position, event: Event
    ) -> Iterable[Anomaly]:
        everything = (1 << (event.num_messages or 1)) - 1
        left = bits(event.ack_set)
        now = everything if left is None else left & everything
        key = (*state.key, session.subscription)
        if left is not None and now != everything:
            state.judged["ACK-BATCH-01"] += 1
            allowed = ledger.cleared.get(position, 0)
            for covered, _ in ledger.cumulative:
                allowed |= -1 if covered >= position else 0
            wrong = everything & ~now & ~allowed
            if wrong:
                yield Anomaly(
                    name="member-acked-by-nobody",
                    clause="ACK-BATCH-01",
                    key=key,
                    witness=(event.index,),
                    message=f"entry {position}: members {wrong:b} (bits) are marked as acked, no ACK frame named them",
                )
        before = ledger.shown.get(position)
        if before is not None and (before[2] is session or session.opened > before[1]):
            if before[0] != everything:
                state.judged["C7"] += 1
            if now & ~before[0]:
                yield Anomaly(
                    name="acked-member-came-back",
                    clause="C7",
                    key=key,
                    witness=(before[1], event.index),
                    message=f"entry {position}: members that were marked as acked are un-acked again",
                )
        ledger.shown[position] = (now, event.index, session)

    def finish(self, state: BrokerAcksState) -> Iterable[Anomaly]:
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


@dataclass
class Mark:
    """The mark-delete samples of one subscription."""

    acked: Acknowledged = field(default_factory=Acknowledged)
    newest: Position | None = None
    newest_index: int = -1
    newest_ns: int = 0
    samples: list[tuple[int, Position, int]] = field(default_factory=list)
    stale: list[int] = field(default_factory=list)
    moved: bool = False
    earliest: bool = True
    backlog: int | None = None
    final: Position | None = None
    final_index: int = -1
    recovered: Position | None = None
    crash_ns: int | None = None
    touched_ns: int = 0


class CursorState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sessions = Sessions("tap.broker")
        self.calm = Calm()
        self.marks: dict[str, Mark] = {}
        self.entries: list[Event] = []
        self.complete = False


class CursorPosition(Invariant[CursorState]):
    """Mark-delete positions sampled by the admin layer against the ACK frames at tap A. Keyed by topic."""

    name = "cursor-position"
    family = "acks"
    clauses = ("C2", "C3", "C4", "C8", "ACK-CUM-03", "MARKDEL-01", "MARKDEL-02", "MARKDEL-03")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer in ("tap.broker", "admin", "log") else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> CursorState:
        return CursorState(key)

    def step(self, state: CursorState, event: Event) -> Iterable[Anomaly]:
        state.calm.observe(event)
        changed = state.sessions.observe(event)
        if event.layer == "fault" and event.kind == "broker_kill":
            for mark in state.marks.values():
                mark.crash_ns = event.time_ns
            return
        if event.kind == "ENTRY":
            state.entries.append(event)
        elif event.kind == "LOG_END":
            state.complete = event.extra.get("complete") is True
        elif event.kind == "CURSOR" and event.subscription is not None:
            yield from self._sample(state, state.marks.setdefault(event.subscription, Mark()), event)
        session = changed or state.sessions.of(event)
        if session is None:
            return
        mark = state.marks.setdefault(session.subscription, Mark())
        if event.kind == "SUBSCRIBE":
            mark.earliest &= session.earliest
        elif event.kind in ("SEEK", "UNSUBSCRIBE"):
            mark.moved = True
        elif event.kind == "ACK":
            if event.ack_type == "cumulative" and session.kind in ("shared", "key_shared"):
                return
            mark.acked.take(event)
            mark.touched_ns = event.time_ns
            if event.ack_type == "cumulative" and mark.newest is not None:
                named = [acked.position for acked in acked_ids(event)]
                if named and max(named) < mark.newest:
                    mark.stale.append(event.index)

    def _sample(self, state: CursorState, mark: Mark, event: Event) -> Iterable[Anomaly]:
        backlog = event.extra.get("backlog")
        mark.backlog = backlog if isinstance(backlog, int) else None
        position = position_of(event)
        if position is None or mark.moved:
            return
        key = (*state.key, event.subscription or "")
        if mark.newest is not None and mark.crash_ns is None:
            clause = "ACK-CUM-03" if mark.stale else "C2"
            state.judged[clause] += 1
            if position < mark.newest:
                yield Anomaly(
                    name="mark-delete-went-back",
                    clause=clause,
                    key=key,
                    witness=(mark.newest_index, *mark.stale[-1:], event.index),
                    message=f"the mark-delete position fell from {mark.newest} to {position}",
                )
        elif mark.crash_ns is not None:
            kept = [
                place for time_ns, place, _ in mark.samples if time_ns <= mark.crash_ns - CURSOR_FLUSH_NS - SETTLE_NS
            ]
            floor = max([*kept, *([mark.recovered] if mark.recovered else [])], default=None)
            if floor is not None:
                state.judged["C3"] += 1
                if position < floor:
                    yield Anomaly(
                        name="crash-lost-too-much",
                        clause="C3",
                        key=key,
                        witness=(mark.newest_index, event.index),
                        message=f"after the crash the cursor was at {position}, although {floor} had been persisted",
                    )
            mark.recovered, mark.crash_ns, mark.samples = position, None, []
        mark.newest, mark.newest_index, mark.newest_ns = position, event.index, event.time_ns
        mark.stale.clear()
        mark.samples.append((event.time_ns, position, event.index))
        if state.calm.drained and event.time_ns - mark.touched_ns > SETTLE_NS:
            mark.final, mark.final_index = position, event.index

    def finish(self, state: CursorState) -> Iterable[Anomaly]:
        for subscription, mark in state.marks.items():
            key = (*state.key, subscription)
            if mark.newest is None and mark.backlog is None:
                continue
            if mark.moved or not mark.earliest:
                state.undecided.append(
                    Undecided(clause="C4", key=key, reason="a seek, an unsubscribe or a start at the end")
                )
                continue
            yield from self._nothing_skipped(state, mark, key)
            if state.complete and state.calm.drained:
                yield from self._caught_up(state, mark, key)

    @staticmethod
    def _nothing_skipped(state: CursorState, mark: Mark, key: Key) -> Iterable[Anomaly]:
        for entry in state.entries:
            position = position_of(entry)
            if position is None or mark.newest is None or position > mark.newest:
                continue
            reached = next((index for _, place, index in mark.samples if place >= position), mark.newest_index)
            partial = position in mark.acked.partial
            clause = "MARKDEL-03" if partial else "C4"
            state.judged[clause] += 1
            since = mark.acked.since(position)
            if since is None and partial and not mark.acked.left(position, entry.num_messages or 1):
                continue
            if since is None or since > reached:
                yield Anomaly(
                    name="unacked-entry-deleted",
                    clause=clause,
                    key=key,
                    witness=(entry.index, reached),
                    message=f"the mark-delete position passed {position}, which nobody had acknowledged",
                )
                return

    @staticmethod
    def _caught_up(state: CursorState, mark: Mark, key: Key) -> Iterable[Anomaly]:
        behind = [entry for entry in state.entries if mark.final and (position_of(entry) or mark.final) > mark.final]
        if behind and mark.final is not None:
            following = position_of(behind[0])
            if following is not None and following not in mark.acked.partial:
                clause = "MARKDEL-01" if following[0] == mark.final[0] else "MARKDEL-02"
                since = mark.acked.since(following)
                state.judged[clause] += 1
                if since is not None:
                    yield Anomaly(
                        name="mark-delete-behind",
                        clause=clause,
                        key=key,
                        severity="liveness",
                        witness=(since, mark.final_index),
                        message=f"{following} was acked and follows {mark.final}, where the mark-delete stayed",
                    )
        elif mark.final is not None and state.entries:
            ledgers = {entry.ledger_id for entry in state.entries}
            state.judged["MARKDEL-02" if len(ledgers) > 1 else "MARKDEL-01"] += 1
        everything = bool(state.entries) and all(
            mark.acked.since(position_of(entry) or (0, 0)) is not None for entry in state.entries
        )
        if everything and mark.backlog is not None and mark.final_index >= 0:
            state.judged["C8"] += 1
            if mark.backlog > 0:
                yield Anomaly(
                    name="backlog-after-all-acks",
                    clause="C8",
                    key=key,
                    severity="liveness",
                    witness=(mark.final_index,),
                    message=f"everything was acked and time passed, the backlog is {mark.backlog}",
                )


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
