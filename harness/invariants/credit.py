"""Permits: what the broker may push (tap A) and what the client may grant (tap B)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.history.event import Event
from harness.invariants.acknowledged import Position, bits, position_of
from harness.invariants.calm import Calm, calm_or_storm
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.members import Members
from harness.invariants.sessions import Session, Sessions


def charge(event: Event) -> int:
    """Permits one MESSAGE costs: its messages that are not acked yet, at least one."""
    count = event.num_messages or 1
    left = bits(event.ack_set)
    if left is not None:
        count = (left & ((1 << count) - 1)).bit_count()
    return max(1, count)


@dataclass
class Credit:
    """The account of one consumer session at tap A."""

    granted: int = 0
    sent: int = 0
    entries: int = 0
    batched: bool = False
    settling: int | None = None
    flows: int = 0


class BrokerCreditState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.accounts: dict[int, Credit] = {}


class BrokerCredit(Invariant[BrokerCreditState]):
    """FLOW-01, PERMIT-01, FLOW-02: keyed by broker-side connection; a FLOW is recorded before the broker can see it."""

    name = "broker-credit"
    family = "delivery"
    clauses = ("FLOW-01", "PERMIT-01", "FLOW-02")

    def key(self, event: Event) -> Key | None:
        return (event.connection,) if event.layer == "tap.broker" and event.connection else None

    def start(self, key: Key) -> BrokerCreditState:
        return BrokerCreditState(key)

    def step(self, state: BrokerCreditState, event: Event) -> Iterable[Anomaly]:
        consumer_id = event.extra.get("consumer_id")
        if event.kind in ("SUCCESS", "ERROR"):
            for settling in state.accounts.values():
                if settling.settling is not None and settling.settling == event.request_id:
                    settling.settling = None
            return
        if not isinstance(consumer_id, int):
            return
        if event.kind == "SUBSCRIBE":
            again = consumer_id in state.accounts
            # A second SUBSCRIBE on a connection: messages of the old session may still come until its answer.
            state.accounts[consumer_id] = Credit(settling=event.request_id if again else None)
            return
        if event.kind == "UNSUBSCRIBE":
            state.accounts.pop(consumer_id, None)
            return
        account = state.accounts.get(consumer_id)
        if account is None:
            return
        if event.kind == "FLOW":
            account.granted += event.permits or 0
            account.flows += 1
        elif event.kind == "MESSAGE" and account.settling is None:
            yield from self._message(state, account, event)

    def _message(self, state: BrokerCreditState, account: Credit, event: Event) -> Iterable[Anomaly]:
        account.batched |= (event.num_messages or 1) > 1
        state.judged["FLOW-01"] += 1
        if account.flows == 0:
            yield Anomaly(
                name="push-before-flow",
                clause="FLOW-01",
                key=state.key,
                witness=(event.index,),
                message="the broker sent a MESSAGE to a consumer that had not granted any permit",
            )
            return
        account.entries += 1
        if account.batched:
            # Real brokers read entries, not messages, for the permits they have: only entries are bounded by credit.
            state.judged["FLOW-02"] += 1
            if account.entries == account.granted + 1:
                yield Anomaly(
                    name="push-beyond-credit",
                    clause="FLOW-02",
                    key=state.key,
                    witness=(event.index,),
                    message=f"entry number {account.entries} was sent on {account.granted} permits",
                )
        else:
            state.judged["PERMIT-01"] += 1
            if account.sent == account.granted:
                yield Anomaly(
                    name="push-beyond-credit",
                    clause="PERMIT-01",
                    key=state.key,
                    witness=(event.index,),
                    message=f"{account.sent} messages had used up {account.granted} permits; one more was sent",
                )
        account.sent += charge(event)

    def finish(self, state: BrokerCreditState) -> Iterable[Anomaly]:
        return ()


@dataclass
class Grants:
    """What one session granted and got, as tap B saw it."""

    session: Session
    granted: int = 0
    charged: int = 0
    received: int = 0
    largest: int = 1
    opening: int | None = None
    exact: bool = True
    pieces: int = 0
    seen: set[Position] = field(default_factory=set)
    last_message: int = -1
    witness: int = -1


class ClientGrantsState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sessions = Sessions("tap.client")
        self.members = Members()
        self.calm = Calm()
        self.grants: dict[Session, Grants] = {}
        self.answered: set[tuple[str | None, int | None]] = set()
        self.openings: dict[str, tuple[int, int]] = {}
        self.taken: dict[str, int] = {}
        self.waiting: dict[str, set[int]] = {}
        self.invoked: dict[int, tuple[int, int]] = {}
        self.emptied: dict[str, tuple[int, int]] = {}


DEFAULT_QUEUE = 1000
EMPTY_WAIT_NS = 50_000_000


class ClientGrants(Invariant[ClientGrantsState]):
    """Grants of a consumer against its queue size. Keyed by topic, because the queue size is known to the API only."""

    name = "client-grants"
    family = "delivery"
    clauses = ("FLOW-03", "FLOW-04", "PERMIT-02", "PERMIT-04", "PERMIT-05", "PERMIT-07", "PERMIT-11", "PERMIT-13")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer in ("api", "tap.client") else None

    def broadcast(self, event: Event) -> bool:
        nameless_answer = event.layer == "tap.client" and event.kind == "SUCCESS" and event.topic is None
        return nameless_answer or calm_or_storm(event)

    def start(self, key: Key) -> ClientGrantsState:
        return ClientGrantsState(key)

    def step(self, state: ClientGrantsState, event: Event) -> Iterable[Anomaly]:
        if state.calm.observe(event):
            yield from self._quiescent(state)
            return
        state.members.observe(event)
        if event.layer == "api":
            self._api(state, event)
            return
        if event.kind == "SUCCESS":
            state.answered.add((event.connection, event.request_id))
        state.sessions.observe(event)
        session = state.sessions.of(event)
        if session is None:
            return
        grants = state.grants.setdefault(session, Grants(session))
        if event.kind == "FLOW":
            yield from self._flow(state, grants, event)
        elif event.kind == "MESSAGE":
            yield from self._message(state, grants, event)

    def _api(self, state: ClientGrantsState, event: Event) -> None:
        if event.kind != "receive" or event.consumer is None or event.op is None:
            return
        waiting = state.waiting.setdefault(event.consumer, set())
        if event.phase == "invoke":
            waiting.add(event.op)
            state.invoked[event.op] = (event.index, event.time_ns)
            return
        waiting.discard(event.op)
        begun = state.invoked.pop(event.op, None)
        if event.phase != "ok":
            return
        if event.payload_digest is None:
            if begun is not None and event.time_ns - begun[1] >= EMPTY_WAIT_NS:
                state.emptied[event.consumer] = (begun[0], event.index)
        else:
            state.taken[event.consumer] = state.taken.get(event.consumer, 0) + 1

    def _queue(self, state: ClientGrantsState, session: Session) -> int | None:
        member = state.members.by_name.get(session.consumer)
        if member is None or session.consumer in state.members.names_reused:
            return None
        value = member.options.get("queue")
        return DEFAULT_QUEUE if value is None else int(value)

    def _flow(self, state: ClientGrantsState, grants: Grants, event: Event) -> Iterable[Anomaly]:
        permits = event.permits or 0
        state.judged["PERMIT-11"] += 1
        if permits <= 0 or permits >= 1 << 31:
            yield Anomaly(
                name="flow-without-permits",
                clause="PERMIT-11",
                key=state.key,
                witness=(event.index,),
                message=f"a FLOW granted {permits} permits",
                severity="conformance",
            )
            return
        session = grants.session
        if session.request_id is not None and (session.connection, session.request_id) not in state.answered:
            return  # A broker knows no such consumer yet: this grant is void, and a breach of ACK-27 already.
        queue = self._queue(state, session)
        first = grants.opening is None
        grants.granted += permits
        if first:
            grants.opening = permits
            yield from self._opening(state, grants, event, queue)
        if queue is None or queue == 0:
            return
        if not first:
            state.judged["PERMIT-04"] += 1
            if permits < queue // 2:
                yield Anomaly(
                    name="refill-too-small",
                    clause="PERMIT-04",
                    key=state.key,
                    severity="conformance",
                    witness=(event.index,),
                    message=f"a refill of {permits} permits with a queue of {queue}: less than half of it",
                )
        if grants.session.number == 0:
            state.judged["FLOW-03"] += 1
            if grants.granted - grants.received > queue:
                yield Anomaly(
                    name="granted-beyond-queue",
                    clause="FLOW-03",
                    key=state.key,
                    witness=(event.index,),
                    message=f"{grants.granted} permits granted, {grants.received} messages received, queue {queue}",
                )

    def _opening(self, state: ClientGrantsState, grants: Grants, event: Event, queue: int | None) -> Iterable[Anomaly]:
        permits = event.permits or 0
        name = grants.session.consumer
        if queue:
            state.judged["PERMIT-02"] += 1
            before = state.openings.get(name)
            if before is not None:
                state.judged["PERMIT-07"] += 1
                if permits != before[0]:
                    yield Anomaly(
                        name="opening-grant-changed",
                        clause="PERMIT-07",
                        key=state.key,
                        severity="conformance",
                        witness=(before[1], event.index),
                        message=f"the first grant was {before[0]} permits, that of a later session {permits}",
                    )
            elif permits != queue:
                yield Anomaly(
                    name="opening-grant",
                    clause="PERMIT-02",
                    key=state.key,
                    severity="conformance",
                    witness=(event.index,),
                    message=f"the opening grant was {permits}, the queue holds {queue}",
                )
            state.openings.setdefault(name, (permits, event.index))

    def _message(self, state: ClientGrantsState, grants: Grants, event: Event) -> Iterable[Anomaly]:
        session = grants.session
        grants.last_message = event.index
        grants.charged += charge(event)
        grants.received += event.num_messages or 1
        grants.largest = max(grants.largest, event.num_messages or 1)
        position = position_of(event)
        odd = (
            event.ack_set is not None
            or event.extra.get("checksum_ok") is False
            or position is None
            or position in grants.seen
        )
        grants.exact &= event.ack_set is None and event.extra.get("checksum_ok") is not False
        grants.pieces += odd or event.chunk_uuid is not None or (event.redelivery_count or 0) > 0
        if position is not None:
            grants.seen.add(position)
        queue = self._queue(state, session)
        if not queue or grants.pieces or session.number or not session.live or self._sessions_of(state, session) > 1:
            return
        # A receive that is still open may have taken its message already.
        held = grants.received - state.taken.get(session.consumer, 0) - len(state.waiting.get(session.consumer, ()))
        state.judged["PERMIT-13"] += 1
        if held > queue + grants.largest and grants.granted - grants.charged > -grants.largest:
            yield Anomaly(
                name="unbounded-prefetch",
                clause="PERMIT-13",
                key=state.key,
                witness=(event.index,),
                message=f"the client holds {held} messages with a queue of {queue}, having granted more itself",
            )

    @staticmethod
    def _sessions_of(state: ClientGrantsState, session: Session) -> int:
        return sum(other.consumer == session.consumer for other in state.grants)

    def _quiescent(self, state: ClientGrantsState) -> Iterable[Anomaly]:
        for grants in state.grants.values():
            session = grants.session
            queue = self._queue(state, session)
            member = state.members.by_name.get(session.consumer)
            if not session.live or not queue or member is None or not member.alive or grants.received == 0:
                continue
            clause = "FLOW-04" if grants.pieces else "PERMIT-05"
            emptied = state.emptied.get(session.consumer)
            if emptied is None or emptied[0] < max(grants.last_message, state.calm.last_fault) or session.number:
                state.undecided.append(
                    Undecided(clause=clause, key=state.key, reason="the local queue was not seen empty at the end")
                )
                continue
            if not grants.exact:
                state.undecided.append(
                    Undecided(clause=clause, key=state.key, reason="partly acked or damaged entries were delivered")
                )
                continue
            state.judged[clause] += 1
            owed = grants.charged - (grants.granted - queue)
            if owed >= max(1, queue // 2) and owed > 0:
                yield Anomaly(
                    name="permits-leaked",
                    clause=clause,
                    key=state.key,
                    witness=(session.opened, grants.last_message),
                    severity="liveness",
                    message=f"{owed} permits of a queue of {queue} were not given back although all was consumed",
                )

    def finish(self, state: ClientGrantsState) -> Iterable[Anomaly]:
        return ()
