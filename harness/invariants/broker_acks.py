"""What a broker must remember of the acknowledgements it was sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.history.event import Event
from harness.invariants.acknowledged import Position, acked_ids, bits, position_of
from harness.invariants.calm import Calm, calm_or_storm
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.faults import GRACEFUL, Interruptions, concerns, deletes, kills
from harness.invariants.members import Members
from harness.invariants.remembered import Remembered, written
from harness.invariants.sessions import Session, Sessions


@dataclass
class Ledger:
    """What one subscription was told, as seen at tap A. ``changes``: the acks that moved its cursor."""

    whole: dict[Position, Remembered] = field(default_factory=dict)
    cumulative: list[tuple[Position, Remembered]] = field(default_factory=list)
    changes: list[Remembered] = field(default_factory=list)
    cleared: dict[Position, int] = field(default_factory=dict)
    shown: dict[Position, tuple[int, int, Session]] = field(default_factory=dict)
    basis: dict[Session, tuple[int, int]] = field(default_factory=dict)
    judged: set[tuple[Session, str]] = field(default_factory=set)
    tested: dict[Session, tuple[int, int]] = field(default_factory=dict)


class BrokerAcksState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.members = Members()
        self.sessions = Sessions("tap.broker")
        self.calm = Calm()
        self.work = Interruptions()
        self.ledgers: dict[str, Ledger] = {}
        self.kills: list[Event] = []
        self.graceful: list[int] = []
        self.deleted: dict[str | None, int] = {}


def _skipped(seek: Event) -> dict[Position, int]:
    """The members before the target of a SEEK into a batch: a broker may mark them as acked, as the SEEK says."""
    position, left = position_of(seek), bits(seek.ack_set)
    if position is None or (left is None and seek.batch_index is None):
        return {}
    return {position: ~left if left is not None else (1 << (seek.batch_index or 0)) - 1}


class BrokerAcks(Invariant[BrokerAcksState]):
    """What was acked stays acked, and only what was acked. Keyed by topic, judged at tap A."""

    name = "broker-acks"
    family = "acks"
    clauses = ("C5", "C6", "C7", "ACK-25", "ACK-IND-06", "ACK-BATCH-01", "MARKDEL-04")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer in ("api", "tap.broker") else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> BrokerAcksState:
        return BrokerAcksState(key)

    def step(self, state: BrokerAcksState, event: Event) -> Iterable[Anomaly]:
        state.members.observe(event)
        changed = state.sessions.observe(event)
        if event.layer == "fault":
            if state.calm.observe(event):
                for one in state.sessions.all:
                    if one.live and one.credit > 0:
                        self._put_to_test(state, state.ledgers.get(one.subscription, Ledger()), one)
            self._fault(state, event)
            return
        session = changed or state.sessions.of(event)
        if session is None or not session.durable:
            return
        if event.kind == "CLOSE_CONSUMER" and session.expelled and changed is not None:
            self._expelled(state, session.subscription, event)
        ledger = state.ledgers.setdefault(session.subscription, Ledger())
        if event.kind in ("SUBSCRIBE", "REDELIVER_UNACKNOWLEDGED_MESSAGES"):
            # On a connection that is older, frames of the past may still wait in a link that a fault has slowed.
            if (event.kind == "SUBSCRIBE" and session.fresh) or state.calm.last_fault < 0:
                ledger.basis[session] = (event.index, event.time_ns)
        elif event.kind in ("SEEK", "UNSUBSCRIBE"):
            state.ledgers[session.subscription] = Ledger(basis=ledger.basis, cleared=_skipped(event))
        elif event.kind == "ACK":
            self._acked(state, ledger, session, event)
        elif event.kind == "MESSAGE" and session.live:
            position = position_of(event)
            if position is not None:
                self._put_to_test(state, ledger, session)
                yield from self._again(state, ledger, session, position, event)
                yield from self._members(state, ledger, session, position, event)

    @staticmethod
    def _fault(state: BrokerAcksState, event: Event) -> None:
        state.work.observe(event)
        topic = state.key[0]
        if kills(event):
            state.kills.append(event)
        elif event.kind in GRACEFUL and concerns(event, topic):
            state.graceful.append(event.index)
        elif deletes(event, topic):
            # What it was told is gone with it, also what it is told until its consumers have gone, too.
            state.deleted[event.subscription] = event.index
            for name, ledger in state.ledgers.items():
                if event.subscription in (None, name):
                    state.ledgers[name] = Ledger(basis=ledger.basis)

    @staticmethod
    def _expelled(state: BrokerAcksState, subscription: str, event: Event) -> None:
        """A deletion may take hold just now: what came to it since it was recorded, SUBSCRIBEs too, is gone as well."""
        if subscription in state.deleted or None in state.deleted:
            state.deleted[subscription] = event.index
            if subscription in state.ledgers:
                state.ledgers[subscription] = Ledger(basis=state.ledgers[subscription].basis)

    @staticmethod
    def _acked(state: BrokerAcksState, ledger: Ledger, session: Session, event: Event) -> None:
        deleted = max((state.deleted.get(name, -1) for name in (None, session.subscription)), default=-1)
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
            if session.opened < deleted:
                continue
            known = Remembered(session, event.index, event.time_ns)
            if event.ack_type == "cumulative":
                if not ledger.cumulative or covered > ledger.cumulative[-1][0]:
                    ledger.cumulative.append((covered, known))
                    ledger.changes.append(known)
            elif covered in ledger.whole:
                ledger.whole[covered].times += 1
            else:
                ledger.whole[covered] = known
                if not ledger.cumulative or covered > ledger.cumulative[-1][0]:
                    ledger.changes.append(known)

    def _settled(self, state: BrokerAcksState, known: Remembered, moment_ns: int) -> bool:
        member = state.members.by_name.get(known.session.consumer)
        gone = member.gone_ns if member is not None and member.gone is not None else None
        return known.settled_by(moment_ns, gone, state.work)

    @staticmethod
    def _rule(state: BrokerAcksState, ledger: Ledger, known: Remembered, session: Session, usual: str) -> str | None:
        """The clause that keeps ``known`` from coming back to ``session``; None: a crash may have undone it."""
        killed = next((kill for kill in state.kills if known.before(kill.index) and kill.index < session.opened), None)
        if killed is not None:
            return "C6" if written(known.time_ns, ledger.changes, killed.time_ns, state.work) else None
        if any(known.before(index) and index < session.opened for index in state.graceful):
            return "MARKDEL-04"
        return usual

    def _put_to_test(self, state: BrokerAcksState, ledger: Ledger, session: Session) -> None:
        """Count the rules that this session's deliveries test: something was acked for good before it started."""
        basis = ledger.basis.get(session)
        # Once for each basis: what was acked after it was not acked before the session started.
        if basis is None or ledger.tested.get(session) == basis:
            return
        ledger.tested[session] = basis
        for usual, known in (
            *(("ACK-25", one) for one in ledger.whole.values()),
            *(("ACK-IND-06", one) for one in ledger.whole.values() if one.times > 1),
            *(("C5", one) for _, one in ledger.cumulative),
        ):
            clause = self._rule(state, ledger, known, session, usual)
            if clause is None or (session, clause) in ledger.judged:
                continue
            if self._settled(state, known, basis[1]):
                ledger.judged.add((session, clause))
                state.judged[clause] += 1

    def _again(
        self, state: BrokerAcksState, ledger: Ledger, session: Session, position: Position, event: Event
    ) -> Iterable[Anomaly]:
        basis = ledger.basis.get(session)
        known, usual = ledger.whole.get(position), "ACK-25"
        if known is not None and known.times > 1:
            usual = "ACK-IND-06"
        if known is None or basis is None or not self._settled(state, known, basis[1]):
            for covered, candidate in ledger.cumulative:
                if covered >= position:
                    known, usual = candidate, "C5"
                    break
        if known is None or basis is None:
            return
        key = (*state.key, session.subscription)
        clause = self._rule(state, ledger, known, session, usual)
        if clause is None:
            state.undecided.append(
                Undecided(
                    clause="C6",
                    key=key,
                    witness=(known.index, event.index),
                    reason="the crash came before the cursor had to be written",
                )
            )
        if clause is None or not self._settled(state, known, basis[1]):
            return
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
        if before is not None and any(before[2].opened < kill.index < session.opened for kill in state.kills):
            before = None
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
