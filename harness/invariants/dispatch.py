"""What the broker sends to whom, judged from the frames at tap A."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.history.event import Event
from harness.invariants.acknowledged import Acknowledged, Position, acked_ids, position_of
from harness.invariants.calm import Calm, calm_or_storm
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.faults import Deletions, evicts, reloads
from harness.invariants.sessions import SINGLE_ACTIVE, Session, Sessions

SETTLE_NS = 1_000_000_000
"""A second: how long a broker that is not under stress may take to act on a frame it has got."""


def digests(event: Event) -> list[str]:
    """The application digests of the messages in a SEND, MESSAGE or ENTRY; empty for chunk pieces."""
    if event.chunk_uuid is not None:
        return []
    if event.payload_digest is not None:
        return [event.payload_digest]
    return [str(message["digest"]) for message in event.extra.get("messages") or () if message.get("digest")]


def published(event: Event, sent: dict[str, int]) -> int | None:
    """Index of the first SEND of a message in this frame, or None when no SEND of it was seen."""
    keys = digests(event) or ([event.payload_digest] if event.payload_digest else [])
    found = [sent[digest] for digest in keys if digest in sent]
    return min(found) if found else None


def note_send(event: Event, sent: dict[str, int]) -> None:
    """Remember when each message first passed tap A on its way to the broker."""
    for digest in digests(event) or ([event.payload_digest] if event.payload_digest else []):
        sent.setdefault(digest, event.index)


@dataclass
class Line:
    """A subscription with one active consumer at a time."""

    acked: Acknowledged = field(default_factory=Acknowledged)
    dispatched: dict[Position, int] = field(default_factory=dict)
    last: dict[Session, Position] = field(default_factory=dict)
    rewinds: Counter[Session] = field(default_factory=Counter)
    due: dict[Session, list[Position]] = field(default_factory=dict)
    turns: list[tuple[Session, int]] = field(default_factory=list)
    moved: bool = False
    free: bool = False
    cumulative_only: bool = True
    shared_exclusive_told: bool = False


class SingleActiveState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sessions = Sessions("tap.broker")
        self.lines: dict[str, Line] = {}
        self.sent: dict[str, int] = {}
        self.evicted = False
        self.deletions = Deletions(key[0])


class SingleActiveDispatch(Invariant[SingleActiveState]):
    """Order, exclusiveness and completeness after a rewind of Exclusive and Failover subscriptions. Keyed by topic."""

    name = "single-active-dispatch"
    family = "delivery"
    clauses = ("DISPATCH-01", "DISPATCH-02", "DISPATCH-03", "ACK-CUM-01")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer == "tap.broker" else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> SingleActiveState:
        return SingleActiveState(key)

    def step(self, state: SingleActiveState, event: Event) -> Iterable[Anomaly]:
        changed = state.sessions.observe(event)
        if event.kind == "CONNECTION_CLOSED" or reloads(event, state.key[0]):
            for line in state.lines.values():
                self._reset(line)
            return
        if event.layer == "fault":
            state.evicted |= evicts(event)
            state.deletions.observe(event)
            for name, line in state.lines.items():
                line.moved |= state.deletions.hit(name)
        if event.layer != "tap.broker":
            return
        if event.kind == "SEND":
            note_send(event, state.sent)
            return
        session = changed or state.sessions.of(event)
        if session is None or session.kind not in SINGLE_ACTIVE:
            return
        line = state.lines.setdefault(session.subscription, Line(moved=state.deletions.hit(session.subscription)))
        if changed is not None:
            self._reset(line)
            line.free = False
            if event.kind == "UNSUBSCRIBE":
                line.moved = True
        if event.kind == "SUBSCRIBE":
            line.due[session] = sorted(line.dispatched)
        elif event.kind == "ACTIVE_CONSUMER_CHANGE":
            self._reset(line)
        elif event.kind == "SEEK":
            line.moved = line.free = True
        elif event.kind == "ACK":
            line.acked.take(event)
            line.cumulative_only &= event.ack_type == "cumulative"
        elif event.kind == "REDELIVER_UNACKNOWLEDGED_MESSAGES":
            line.rewinds[session] += 1 + len(acked_ids(event))
        elif event.kind == "MESSAGE" and session.live:
            position = position_of(event)
            if position is not None:
                yield from self._message(state, line, session, position, event)

    @staticmethod
    def _reset(line: Line) -> None:
        line.last.clear()
        line.rewinds.clear()
        line.turns.clear()

    def _message(
        self, state: SingleActiveState, line: Line, session: Session, position: Position, event: Event
    ) -> Iterable[Anomaly]:
        yield from self._alone(state, line, session, event)
        before = line.last.get(session)
        if before is not None and not line.free:
            state.judged["DISPATCH-02"] += 1
            if position <= before:
                if line.rewinds[session] > 0:
                    line.rewinds[session] -= 1
                else:
                    yield Anomaly(
                        name="dispatch-went-back",
                        clause="DISPATCH-02",
                        key=(*state.key, session.subscription),
                        witness=(line.dispatched.get(before, event.index), event.index),
                        message=f"entry {position} was sent after {before} and nothing asked for a rewind",
                    )
        line.last[session] = position
        yield from self._rewound(state, line, session, position, event)
        line.dispatched[position] = event.index

    def _rewound(
        self, state: SingleActiveState, line: Line, session: Session, position: Position, event: Event
    ) -> Iterable[Anomaly]:
        due = line.due.get(session)
        if not due or line.moved or state.evicted or not session.durable:
            return
        clause = "ACK-CUM-01" if line.cumulative_only and line.acked.cumulative else "DISPATCH-03"
        state.judged[clause] += 1
        passed = bisect_left(due, position)
        skipped = [entry for entry in due[:passed] if not line.acked.touched(entry)]
        remains = due[passed + 1 :] if passed < len(due) and due[passed] == position else due[passed:]
        line.due[session] = remains
        if skipped:
            yield Anomaly(
                name="unacked-entry-skipped",
                clause=clause,
                key=(*state.key, session.subscription),
                witness=(line.dispatched[skipped[0]], session.opened, event.index),
                message=f"entry {skipped[0]} was never acked, but the new session was sent {position} without it",
            )

    def _alone(self, state: SingleActiveState, line: Line, session: Session, event: Event) -> Iterable[Anomaly]:
        others = [other for other in state.sessions.live(session.subscription) if other is not session]
        if not others:
            return
        state.judged["DISPATCH-01"] += 1
        born = published(event, state.sent)
        if born is None:
            return
        for other in others:
            if (
                session.kind == other.kind == "exclusive"
                and other.opened > session.opened
                and other.first_flow is not None
                and born > other.first_flow
                and not line.shared_exclusive_told
            ):
                line.shared_exclusive_told = True
                yield Anomaly(
                    name="two-exclusive-consumers",
                    clause="DISPATCH-01",
                    key=(*state.key, session.subscription),
                    witness=(session.opened, other.opened, other.first_flow, event.index),
                    message="a second exclusive consumer was admitted while the first went on receiving",
                )
        if not line.turns:
            line.turns.append((session, event.index))
        elif line.turns[-1][0] is not session and born > line.turns[-1][1]:
            line.turns.append((session, event.index))
            if len(line.turns) == 3 and session.kind == "failover":
                yield Anomaly(
                    name="two-active-consumers",
                    clause="DISPATCH-01",
                    key=(*state.key, session.subscription),
                    witness=tuple(index for _, index in line.turns),
                    message="new messages went to one consumer, then another, then the first; nobody joined or left",
                )

    def finish(self, state: SingleActiveState) -> Iterable[Anomaly]:
        return ()


@dataclass
class Held:
    """The dispatches of one entry of a Shared subscription."""

    session: Session
    first: int
    last: int
    deliveries: int = 1
    asked: int = 0
    piece: bool = False
    crashes: int = 0


@dataclass
class Pool:
    """A Shared or Key_Shared subscription."""

    acked: Acknowledged = field(default_factory=Acknowledged)
    held: dict[Position, Held] = field(default_factory=dict)
    changes: list[int] = field(default_factory=list)
    by_key: dict[str, list[Position]] = field(default_factory=dict)
    newest: dict[str, tuple[Position, int, Session]] = field(default_factory=dict)
    moved: bool = False

    def changes_since(self, index: int) -> bool:
        return any(change > index for change in self.changes)


@dataclass
class Suspicion:
    """A breach unless a session in it turns out to have been lost: its frames may have been read late or never."""

    anomaly: Anomaly
    sessions: tuple[Session, ...]


class SharedDispatchState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sessions = Sessions("tap.broker")
        self.pools: dict[str, Pool] = {}
        self.evicted = False
        self.deletions = Deletions(key[0])
        self.reloaded = False
        self.calm = Calm()
        self.suspicions: list[Suspicion] = []


class SharedDispatch(Invariant[SharedDispatchState]):
    """Who holds an entry of a Shared or Key_Shared subscription, and whether it may be sent again. Keyed by topic.

    A suspicion is told at the end only: a broker drops a session before the tap can read that it did.
    """

    name = "shared-dispatch"
    family = "acks"
    clauses = ("DISP-02", "UNACK-01", "UNACK-16", "KEYSHARED-01")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer == "tap.broker" else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> SharedDispatchState:
        return SharedDispatchState(key)

    def step(self, state: SharedDispatchState, event: Event) -> Iterable[Anomaly]:
        changed = state.sessions.observe(event)
        if state.calm.observe(event):
            yield from self._drained(state, event)
            return
        if event.kind == "CONNECTION_CLOSED" or event.layer == "fault":
            state.evicted |= evicts(event)
            reloaded = reloads(event, state.key[0])
            state.reloaded |= reloaded
            state.deletions.observe(event)
            for name, pool in state.pools.items():
                if event.kind == "CONNECTION_CLOSED" or reloaded:
                    pool.changes.append(event.index)
                pool.moved |= state.deletions.hit(name)
            return
        session = changed or state.sessions.of(event)
        if session is None or session.kind not in ("shared", "key_shared"):
            return
        pool = state.pools.setdefault(session.subscription, Pool(moved=state.deletions.hit(session.subscription)))
        if changed is not None:
            pool.changes.append(event.index)
        if event.kind in ("SEEK", "UNSUBSCRIBE"):
            pool.moved = True
        elif event.kind == "ACK":
            pool.acked.take(event)
        elif event.kind == "REDELIVER_UNACKNOWLEDGED_MESSAGES":
            self._asked(pool, session, event)
        elif event.kind == "MESSAGE" and session.live and not pool.moved:
            self._message(state, pool, session, event)

    @staticmethod
    def _asked(pool: Pool, session: Session, event: Event) -> None:
        named = [acked.position for acked in acked_ids(event)]
        for position in named or list(pool.held):
            held = pool.held.get(position)
            if held is not None:
                held.asked += 1

    def _message(self, state: SharedDispatchState, pool: Pool, session: Session, event: Event) -> None:
        position = position_of(event)
        if position is None:
            return
        held = pool.held.get(position)
        if held is None:
            pool.held[position] = Held(session, event.index, event.index, piece=event.chunk_uuid is not None)
            self._by_key(state, pool, session, position, event)
            return
        held.deliveries += 1
        state.judged["UNACK-16"] += session.kind == "shared" and not held.session.live
        excuses = held.asked + sum(change > held.first for change in pool.changes)
        clause = "UNACK-01" if held.session is session else "DISP-02"
        state.judged[clause] += 1
        if held.deliveries > 1 + excuses:
            found = Anomaly(
                name="unasked-redelivery",
                clause=clause,
                key=(*state.key, session.subscription),
                witness=(held.last, event.index),
                message=f"entry {position} was sent again although nobody left and nobody asked for it",
            )
            state.suspicions.append(Suspicion(found, (held.session, session)))
        held.session, held.last = session, event.index

    def _by_key(
        self, state: SharedDispatchState, pool: Pool, session: Session, position: Position, event: Event
    ) -> None:
        """KEYSHARED-01: a key's next entry goes to somebody else only after its earlier ones are settled."""
        key = (event.extra.get("metadata") or {}).get("partition_key")
        if session.kind != "key_shared" or not isinstance(key, str) or (event.num_messages or 1) > 1:
            return
        earlier = pool.by_key.setdefault(key, [])
        if earlier:
            state.judged["KEYSHARED-01"] += 1
        newest = pool.newest.get(key)
        if newest is not None and newest[0] > position and newest[2] is session and not pool.changes_since(newest[1]):
            found = Anomaly(
                name="key-out-of-order",
                clause="KEYSHARED-01",
                key=(*state.key, session.subscription),
                witness=(newest[1], event.index),
                message=f"key {key}: entry {position} was first sent after entry {newest[0]}",
            )
            state.suspicions.append(Suspicion(found, (session,)))
        else:
            pool.newest[key] = (position, event.index, session)
        open_elsewhere = [
            before
            for before in earlier
            if not pool.acked.touched(before)
            and pool.held[before].session is not session
            and pool.held[before].session.live
            and not pool.held[before].asked
        ]
        if open_elsewhere:
            held = pool.held[open_elsewhere[0]]
            found = Anomaly(
                name="key-at-two-consumers",
                clause="KEYSHARED-01",
                key=(*state.key, session.subscription),
                witness=(held.last, event.index),
                message=f"key {key}: {position} went to another consumer while {open_elsewhere[0]} was outstanding",
            )
            state.suspicions.append(Suspicion(found, (held.session, session)))
        insort(earlier, position)

    def _drained(self, state: SharedDispatchState, event: Event) -> Iterable[Anomaly]:
        for subscription, pool in state.pools.items():
            ready = [
                session
                for session in state.sessions.live(subscription)
                if session.kind == "shared" and session.credit > 0 and event.time_ns - session.opened_ns > SETTLE_NS
            ]
            if not ready or pool.moved or state.evicted:
                continue
            for position, held in pool.held.items():
                gone = held.session
                if gone.live or held.piece or event.time_ns - gone.ended_ns < SETTLE_NS:
                    continue
                state.judged["UNACK-16"] += 1
                if not pool.acked.touched(position):
                    yield Anomaly(
                        name="stranded-with-a-departed-consumer",
                        clause="UNACK-16",
                        severity="liveness",
                        key=(*state.key, subscription),
                        witness=(held.last, gone.ended or held.last, event.index),
                        message=f"entry {position} was held by a consumer that left; those that stay never got it",
                    )

    def finish(self, state: SharedDispatchState) -> Iterable[Anomaly]:
        for suspicion in state.suspicions:
            if state.reloaded or any(session.lost for session in suspicion.sessions):
                state.undecided.append(
                    Undecided(
                        clause=suspicion.anomaly.clause,
                        key=suspicion.anomaly.key,
                        reason="the broker may have dropped the holder before",
                        witness=suspicion.anomaly.witness,
                    )
                )
            else:
                yield suspicion.anomaly


class ContentState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sent: dict[tuple[str, int, int | None], dict[str, int]] = {}


class MessageContent(Invariant[ContentState]):
    """DISPATCH-04: the metadata and payload of a MESSAGE are byte for byte those of a SEND. Keyed by topic."""

    name = "message-content"
    family = "delivery"
    clauses = ("DISPATCH-04",)

    def key(self, event: Event) -> Key | None:
        wanted = event.layer == "tap.broker" and event.kind in ("SEND", "MESSAGE")
        return (event.topic,) if wanted and event.topic else None

    def start(self, key: Key) -> ContentState:
        return ContentState(key)

    def step(self, state: ContentState, event: Event) -> Iterable[Anomaly]:
        number = event.sequence_id
        if event.kind == "SEND":
            number = (event.extra.get("metadata") or {}).get("sequence_id", number)
        digest = event.extra.get("frame_digest")
        if event.producer is None or number is None or not isinstance(digest, str):
            return
        name = (event.producer, number, event.chunk_id)
        if event.kind == "SEND":
            state.sent.setdefault(name, {}).setdefault(digest, event.index)
            return
        known = state.sent.get(name)
        if known is None:
            return
        state.judged["DISPATCH-04"] += 1
        if digest not in known:
            yield Anomaly(
                name="content-changed",
                clause="DISPATCH-04",
                key=state.key,
                witness=(max(known.values()), event.index),
                message=f"message {number} of {event.producer} was delivered with bytes that were never sent",
            )

    def finish(self, state: ContentState) -> Iterable[Anomaly]:
        return ()


DISPATCH_NS = 100_000_000
"""A tenth of a second: what a broker may take from storing an entry to sending it to a consumer that waits."""


@dataclass
class Reach:
    """What one subscription was sent, and what held at the moment of calm."""

    dispatched: set[Position] = field(default_factory=set)
    earliest: bool = True
    moved: bool = False
    kinds: set[str] = field(default_factory=set)
    ready: bool = False
    starved: bool = False
    opened: int = 0


class CompletenessState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sessions = Sessions("tap.broker")
        self.calm = Calm()
        self.reaches: dict[str, Reach] = {}
        self.entries: list[Event] = []
        self.complete = False
        self.stored: dict[Position, int] = {}
        self.drained_ns = 0
        self.evicted = False
        self.deletions = Deletions(key[0])

    @property
    def too_late(self) -> Position | None:
        """The first entry that was stored when the consumers had been drained already, or just then.

        What a slow link held back may reach the broker long after the faults were healed.
        """
        late = [position for position, time_ns in self.stored.items() if time_ns > self.drained_ns - DISPATCH_NS]
        return min(late, default=None)


class Completeness(Invariant[CompletenessState]):
    """CONS-12 and, for chunk pieces, K8: a drained subscription was sent every stored entry. Keyed by topic."""

    name = "complete-dispatch"
    family = "delivery"
    clauses = ("CONS-12", "K8")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer in ("tap.broker", "log") else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> CompletenessState:
        return CompletenessState(key)

    def step(self, state: CompletenessState, event: Event) -> Iterable[Anomaly]:
        changed = state.sessions.observe(event)
        if event.kind == "SEND_RECEIPT":
            position = position_of(event)
            if position is not None:
                state.stored.setdefault(position, event.time_ns)
        if event.layer == "fault":
            state.evicted |= evicts(event)
            state.deletions.observe(event)
        if state.calm.observe(event):
            state.drained_ns = event.time_ns
            for subscription, reach in state.reaches.items():
                settled = [
                    one
                    for one in state.sessions.live(subscription)
                    if one.durable and event.time_ns - one.opened_ns > SETTLE_NS
                ]
                reach.ready = any(session.credit > 0 for session in settled)
                reach.starved = bool(settled) and not reach.ready
        elif event.kind == "ENTRY":
            state.entries.append(event)
        elif event.kind == "LOG_END":
            state.complete = event.extra.get("complete") is True
        session = changed or state.sessions.of(event)
        if session is None:
            return ()
        reach = state.reaches.setdefault(session.subscription, Reach(opened=session.opened))
        if event.kind == "SUBSCRIBE":
            reach.earliest &= session.earliest
            reach.kinds.add(session.kind)
        elif event.kind in ("SEEK", "UNSUBSCRIBE"):
            reach.moved = True
        elif event.kind == "MESSAGE":
            position = position_of(event)
            if position is not None:
                reach.dispatched.add(position)
        return ()

    def finish(self, state: CompletenessState) -> Iterable[Anomaly]:
        late = state.too_late
        for subscription, reach in state.reaches.items():
            if reach.moved or state.deletions.hit(subscription):
                continue
            if not reach.earliest or "key_shared" in reach.kinds:
                continue
            missing = [
                entry
                for entry in state.entries
                if (position := position_of(entry)) is not None
                and position not in reach.dispatched
                and (late is None or position < late)
            ]
            pieces = any(entry.chunk_uuid is not None for entry in state.entries)
            for clause, of_it in (
                ("CONS-12", [entry for entry in missing if entry.chunk_uuid is None]),
                ("K8", [entry for entry in missing if entry.chunk_uuid is not None]),
            ):
                if of_it and state.evicted:
                    state.undecided.append(
                        Undecided(
                            clause=clause,
                            key=(*state.key, subscription),
                            reason="entries were not sent, but a backlog quota may have skipped them",
                        )
                    )
                    continue
                if not state.complete or not state.calm.drained or not reach.ready:
                    if of_it and reach.starved:
                        state.undecided.append(
                            Undecided(
                                clause=clause,
                                key=(*state.key, subscription),
                                reason="entries were not sent, but the consumers had no permits left",
                            )
                        )
                    continue
                if clause == "CONS-12" or pieces:
                    state.judged[clause] += 1
                waiting = [
                    entry for entry in of_it if (entry.extra.get("metadata") or {}).get("deliver_at_time") is None
                ]
                if waiting:
                    yield Anomaly(
                        name="never-dispatched",
                        clause=clause,
                        key=(*state.key, subscription),
                        severity="liveness",
                        witness=(reach.opened, waiting[0].index),
                        message=f"{len(waiting)} stored entries, the first {position_of(waiting[0])}, were never sent "
                        "to a drained subscription whose consumers had permits",
                    )
