"""Negative acknowledgement, redelivery counts, dead letters.

A dead-letter topic must be judged together with its source, so the key is a name both can compute without state: the
topic's name up to the first ``-`` of its last path segment (``persistent://public/default/orders`` for ``orders-1``,
``orders-1-partition-0`` and the default ``orders-1-s-DLQ``). A dead-letter topic with another beginning is never joined
to its source; the clauses that need the join are then undecided.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.history.event import Event
from harness.invariants.acknowledged import Acknowledged, Position, acked_ids, bits, position_of
from harness.invariants.calm import Calm, calm_or_storm
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.faults import RELOADS, reloads
from harness.invariants.members import Member, Members
from harness.invariants.sessions import Session, Sessions

SETTLE_NS = 1_000_000_000
NACK_DELAY_MS = 60_000
EARLY_NS = 261_000_000
"""Java rounds due times down to 256 ms; five more for the clocks of the recorder."""


def stem(topic: str) -> str:
    """The part of a topic name that it shares with its dead-letter topics."""
    folder, _, name = topic.rpartition("/")
    return f"{folder}/{name.split('-', 1)[0]}"


def origin(text: Any) -> tuple[Position, int | None] | None:
    """(position, batch index) out of ORIGIN_MESSAGE_ID, in any of the forms clients write.

    ``(ledger,entry,partition,batch)`` by C++ and Python, ``ledger:entry:partition[:batch]`` by Java, Go and Rust.
    """
    numbers = [int(part) for part in re.findall(r"-?\d+", str(text))]
    if len(numbers) < 2 or numbers[0] < 0 or numbers[1] < 0:
        return None
    batch = numbers[3] if len(numbers) > 3 and numbers[3] >= 0 else None
    return (numbers[0], numbers[1]), batch


class RedeliveryState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.members = Members()
        self.sessions = Sessions("tap.client")
        self.broker_sessions = Sessions("tap.broker")
        self.calm = Calm()
        self.ops: dict[int, tuple[str, Position, int, int]] = {}
        self.nacked: dict[tuple[str, Position], Nacked] = {}
        self.settled: set[tuple[str, Position]] = set()
        self.settled_up_to: dict[str, Position] = {}
        self.asked: dict[tuple[str, Position], int] = {}
        self.counts: dict[tuple[str, Position], Count] = {}
        self.changes: dict[str, list[int]] = {}
        self.restart = Restart()
        self.acked: dict[str, Acknowledged] = {}


@dataclass
class Restart:
    """What may have raised redelivery counts since the broker's process last went down (tap A).

    ``ready`` is set once it works again: a session opened after that finds dispatchers that count from 0.
    """

    down: int | None = None
    ready: int | None = None
    asked: Counter[tuple[str, Position]] = field(default_factory=Counter)
    asked_all: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)

    def observe(self, event: Event) -> None:
        """Take a fault event."""
        if event.kind in ("broker_kill", "broker_stop") and (self.down is None or self.ready is not None):
            self.down, self.ready = event.index, None
            self.asked.clear()
            self.asked_all.clear()
            self.left.clear()
        elif event.kind == "broker_ready" and self.down is not None:
            self.ready = event.index

    def reached(self, session: Session) -> bool:
        """Whether the session belongs to the process that was started last."""
        return self.ready is not None and session.opened > self.ready

    def ended(self, session: Session) -> None:
        """A consumer has left: brokers up to 2.8 count that for what it held."""
        if self.down is not None and session.opened > self.down:
            self.left[session.subscription] += 1

    def limit(self, subscription: str, position: Position) -> int:
        return self.asked[subscription, position] + self.asked_all[subscription] + self.left[subscription]


@dataclass
class Nacked:
    """The nacks of one entry that wait for their delay: of a batch each member may be nacked at another time."""

    index: int
    first_ns: int
    last_ns: int


@dataclass
class Count:
    """The redelivery counts of one entry of a Shared subscription."""

    value: int
    index: int
    first: int
    asked: int = 0
    asked_since: int = 0
    asked_at: int = -1
    asked_ns: int = 0
    holder: Session | None = None


class Redelivery(Invariant[RedeliveryState]):
    """REDEL-01 (tap B and tap A), REDEL-02 and Q1 (tap A). Keyed by topic."""

    name = "redelivery"
    family = "dead_letter"
    clauses = ("REDEL-01", "REDEL-02", "Q1")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer in ("api", "tap.client", "tap.broker") else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> RedeliveryState:
        return RedeliveryState(key)

    def step(self, state: RedeliveryState, event: Event) -> Iterable[Anomaly]:
        state.members.observe(event)
        before = state.broker_sessions.of(event)
        client_changed = state.sessions.observe(event)
        changed = state.broker_sessions.observe(event)
        if state.calm.observe(event):
            yield from self._drained(state, event)
            return
        if event.kind == "CONNECTION_CLOSED" or (client_changed is not None and event.layer == "tap.client"):
            # Pending nacks die with their session; the broker sends those entries again on its own.
            gone = {one.consumer for one in state.sessions.all if not one.live}
            state.nacked = {name: when for name, when in state.nacked.items() if name[0] not in gone}
        if event.kind == "CONNECTION_CLOSED" or event.layer == "fault":
            if event.layer == "tap.broker" or reloads(event, state.key[0]):
                for departures in state.changes.values():
                    departures.append(event.index)
            if event.layer == "fault":
                state.restart.observe(event)
            else:
                self._left(state, event)
            return
        if event.layer == "api":
            self._called(state, event)
        elif event.layer == "tap.client" and event.kind == "REDELIVER_UNACKNOWLEDGED_MESSAGES":
            yield from self._request(state, event)
        elif event.layer == "tap.broker":
            session = changed or before
            if session is not None and session.kind == "shared":
                changes = state.changes.setdefault(session.subscription, [])
                if (changed is not None and not changed.live) or event.kind == "SEEK":
                    changes.append(event.index)
                if changed is not None:
                    self._left(state, event)
                yield from self._broker(state, session, changes, event)

    @staticmethod
    def _left(state: RedeliveryState, event: Event) -> None:
        for one in state.broker_sessions.all:
            if one.ended == event.index:
                state.restart.ended(one)

    @staticmethod
    def _called(state: RedeliveryState, event: Event) -> None:
        position = position_of(event)
        if event.kind in ("ack", "ack_cumulative") and event.phase == "invoke" and event.consumer and position:
            state.settled.add((event.consumer, position))
            if event.kind == "ack_cumulative":
                before = position if event.batch_index is None else (position[0], position[1] - 1)
                state.settled_up_to[event.consumer] = max(before, state.settled_up_to.get(event.consumer, before))
        if event.kind in ("seek", "unsubscribe") and event.consumer is not None:
            # What was nacked before may lie where nobody reads any more.
            state.nacked = {name: nack for name, nack in state.nacked.items() if name[0] != event.consumer}
        if event.kind != "nack" or event.op is None or event.consumer is None:
            return
        if event.phase == "invoke" and position is not None:
            state.ops[event.op] = (event.consumer, position, event.index, event.time_ns)
            state.asked.pop((event.consumer, position), None)
        elif event.phase == "ok" and event.op in state.ops:
            consumer, place, index, time_ns = state.ops.pop(event.op)
            if (consumer, place) not in state.asked:
                earlier = state.nacked.get((consumer, place))
                first_ns = time_ns if earlier is None else earlier.first_ns
                state.nacked[(consumer, place)] = Nacked(index, first_ns, time_ns)

    def _request(self, state: RedeliveryState, event: Event) -> Iterable[Anomaly]:
        consumer = event.consumer or ""
        member = state.members.by_name.get(consumer)
        named = [acked.position for acked in acked_ids(event)]
        if not named:
            for name in [name for name in state.nacked if name[0] == consumer]:
                del state.nacked[name]
            return
        for position in named:
            asked_for = state.nacked.pop((consumer, position), None)
            state.asked[(consumer, position)] = event.index
            if asked_for is None or member is None or member.options.get("ack_timeout_ms"):
                continue
            state.judged["REDEL-01"] += 1
            delay = member.milliseconds("nack_delay_ms", NACK_DELAY_MS)
            if event.time_ns - asked_for.first_ns < delay - EARLY_NS:
                yield Anomaly(
                    name="redelivery-too-early",
                    clause="REDEL-01",
                    key=(*state.key, consumer),
                    severity="conformance",
                    witness=(asked_for.index, event.index),
                    message=f"asked for again {(event.time_ns - asked_for.first_ns) // 1_000_000} ms after the nack, "
                    f"the delay is {delay // 1_000_000} ms",
                )

    def _broker(self, state: RedeliveryState, session: Session, changes: list[int], event: Event) -> Iterable[Anomaly]:
        if event.kind == "REDELIVER_UNACKNOWLEDGED_MESSAGES":
            named = {acked.position for acked in acked_ids(event)}
            state.restart.asked.update((session.subscription, place) for place in named)
            state.restart.asked_all[session.subscription] += not named
            for (subscription, place), count in state.counts.items():
                if subscription == session.subscription and (not named or place in named):
                    count.asked += 1
                    if named and count.holder is session:
                        count.asked_since += 1
                        count.asked_at, count.asked_ns = event.index, event.time_ns
        elif event.kind == "ACK":
            state.acked.setdefault(session.subscription, Acknowledged()).take(event)
        elif event.kind == "MESSAGE" and session.live:
            position = position_of(event)
            if position is not None:
                yield from self._counted(state, session, changes, position, event)

    @staticmethod
    def _counted(
        state: RedeliveryState, session: Session, changes: list[int], position: Position, event: Event
    ) -> Iterable[Anomaly]:
        value = event.redelivery_count or 0
        key = (*state.key, session.subscription)
        restart = state.restart
        if restart.reached(session) and value > restart.limit(session.subscription, position):
            state.judged["Q1"] += 1
            yield Anomaly(
                name="count-kept-over-a-restart",
                clause="Q1",
                key=key,
                witness=(restart.ready or 0, event.index),
                message=f"entry {position}: count {value}, but since the broker was started again it was asked for "
                f"{restart.limit(session.subscription, position)} times",
            )
        count = state.counts.get((session.subscription, position))
        if count is None:
            state.counts[(session.subscription, position)] = Count(value, event.index, event.index, holder=session)
            state.judged["Q1"] += 1
            # Changes before the first frame we saw may hide earlier deliveries.
            if value > len(changes):
                yield Anomaly(
                    name="first-delivery-counted",
                    clause="Q1",
                    key=key,
                    witness=(event.index,),
                    message=f"entry {position} was sent for the first time with redelivery count {value}",
                )
            return
        moved = sum(change > count.index for change in changes)
        state.judged["Q1"] += 1
        limit = count.asked + sum(change > count.first for change in changes)
        if value > limit:
            yield Anomaly(
                name="count-too-high",
                clause="Q1",
                key=key,
                witness=(count.index, event.index),
                message=f"entry {position}: count {value}, but it was asked for again {count.asked} times",
            )
        if not moved:
            state.judged["REDEL-02"] += 1
            if value < count.value:
                yield Anomaly(
                    name="count-fell",
                    clause="REDEL-02",
                    key=key,
                    witness=(count.index, event.index),
                    message=f"entry {position}: the redelivery count fell from {count.value} to {value}",
                )
            elif value == count.value and count.asked_since:
                yield Anomaly(
                    name="count-did-not-rise",
                    clause="REDEL-02",
                    key=key,
                    witness=(count.index, count.asked_at, event.index),
                    message=f"entry {position} was asked for again and sent with the same count {value}",
                )
        count.value, count.index, count.holder, count.asked_since = value, event.index, session, 0

    def _drained(self, state: RedeliveryState, event: Event) -> Iterable[Anomaly]:
        for (consumer, position), nacked in state.nacked.items():
            index = nacked.index
            member = state.members.by_name.get(consumer)
            sessions = [one for one in state.sessions.all if one.consumer == consumer and one.live]
            if member is None or not member.alive or not sessions or (consumer, position) in state.settled:
                continue
            if position <= state.settled_up_to.get(consumer, (-1, -1)):
                continue
            if member.options.get("dead_letter") or sessions[0].opened > index:
                continue
            delay = member.milliseconds("nack_delay_ms", NACK_DELAY_MS)
            if event.time_ns - nacked.last_ns < delay * 4 // 3 + 2 * SETTLE_NS:
                state.undecided.append(
                    Undecided(
                        clause="REDEL-01",
                        key=(*state.key, consumer),
                        witness=(index,),
                        reason="the run ended before the nack was due",
                    )
                )
                continue
            state.judged["REDEL-01"] += 1
            yield Anomaly(
                name="nack-forgotten",
                clause="REDEL-01",
                key=(*state.key, consumer),
                severity="liveness",
                witness=(index, event.index),
                message=f"entry {position} was nacked and its delay is over; the client never asked for it again",
            )
        for (subscription, position), count in state.counts.items():
            holder = count.holder
            if not count.asked_since or holder is None or not holder.live or holder.credit <= 0:
                continue
            if any(change > count.asked_at for change in state.changes.get(subscription, ())):
                continue
            acked = state.acked.get(subscription)
            if acked is not None and acked.touched(position):
                continue
            if state.calm.last_fault > count.asked_at or event.time_ns - count.asked_ns < 2 * SETTLE_NS:
                continue
            state.judged["REDEL-01"] += 1
            yield Anomaly(
                name="redelivery-refused",
                clause="REDEL-01",
                key=(*state.key, subscription),
                severity="liveness",
                witness=(count.index, count.asked_at, event.index),
                message=f"the consumer that holds {position} asked for it again; the broker never sent it",
            )

    def finish(self, state: RedeliveryState) -> Iterable[Anomaly]:
        return ()


@dataclass
class Copy:
    """One SEND to a dead-letter topic, as tap B saw it."""

    event: Event
    receipt: int | None = None


@dataclass
class Source:
    """What one subscription with a dead-letter policy did with one entry."""

    counts: list[tuple[int, int]] = field(default_factory=list)
    size: int = 1
    digests: dict[int, str] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    acked_ok: dict[int, int] = field(default_factory=dict)
    asked_ack: set[int] = field(default_factory=set)
    nacked: list[int] = field(default_factory=list)
    nacked_members: dict[int, list[int]] = field(default_factory=dict)
    received: dict[int, list[int]] = field(default_factory=dict)
    last_nack: tuple[int, int] | None = None
    frame: int | None = None
    refused: bool = False
    copies: dict[int, list[Copy]] = field(default_factory=dict)
    exhausted: int = -1


@dataclass
class Policy:
    """The dead-letter policy of one subscription."""

    most: int
    topic: str | None
    members: set[str] = field(default_factory=set)
    sources: dict[Position, Source] = field(default_factory=dict)
    mixed: bool = False


class DeadLetterState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.members: dict[str, Members] = {}
        self.sessions: dict[str, Sessions] = {}
        self.calm = Calm()
        self.policies: dict[tuple[str, str], Policy] = {}
        self.disturbed: list[int] = []
        self.ops: dict[int, Event] = {}
        self.copies: dict[tuple[str, int], list[Copy]] = {}
        self.unplaced: list[Copy] = []
        self.digest_places: dict[str, set[tuple[str, str, Position, int]]] = {}
        self.quiet_ns: int | None = None
        self.alive: set[str] = set()
        self.present: dict[tuple[str, str], int] = {}


class DeadLetters(Invariant[DeadLetterState]):
    """Q2 to Q8 and DLQ-01 to DLQ-03, judged at tap B and the API. Keyed by the stem of the topic name."""

    name = "dead-letters"
    family = "dead_letter"
    clauses = ("Q2", "Q3", "Q4", "Q5", "Q6", "Q7", "Q8", "DLQ-01", "DLQ-02", "DLQ-03")

    def key(self, event: Event) -> Key | None:
        return (stem(event.topic),) if event.topic and event.layer in ("api", "tap.client") else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> DeadLetterState:
        return DeadLetterState(key)

    def step(self, state: DeadLetterState, event: Event) -> Iterable[Anomaly]:
        drained = state.calm.observe(event)
        if event.topic is None or event.layer == "fault":
            for group in state.members.values():
                group.observe(event)
            for sessions in state.sessions.values():
                sessions.observe(event)
            if event.kind == "CONNECTION_CLOSED" or (event.layer == "fault" and event.kind in RELOADS):
                state.disturbed.append(event.index)
            if drained:
                self._freeze(state, event)
            return
        members = state.members.setdefault(event.topic, Members())
        member = members.observe(event)
        sessions = state.sessions.setdefault(event.topic, Sessions("tap.client"))
        if sessions.observe(event) is not None:
            state.disturbed.append(event.index)
        if event.layer == "api":
            if event.kind == "consumer" and event.phase == "invoke" and member is not None:
                self._subscribed(state, event, member)
            elif event.consumer is not None:
                yield from self._api(state, event)
        elif event.kind == "SEND" and event.producer is not None:
            self._copied(state, event)
        elif event.kind == "SEND_RECEIPT":
            self._receipt(state, event)
        elif event.subscription is not None and (event.topic, event.subscription) in state.policies:
            self._frame(state, state.policies[(event.topic, event.subscription)], event)

    @staticmethod
    def _freeze(state: DeadLetterState, event: Event) -> None:
        state.quiet_ns = event.time_ns
        for topic, group in state.members.items():
            state.alive |= {f"{topic}\0{name}" for name, member in group.by_name.items() if member.alive}

    @staticmethod
    def _subscribed(state: DeadLetterState, event: Event, member: Member) -> None:
        settings = member.options.get("dead_letter")
        name = (event.topic or "", event.subscription or "")
        if not isinstance(settings, dict) or member.kind not in ("shared", "key_shared"):
            if name in state.policies:
                state.policies[name].mixed = True
            return
        most, topic = int(settings.get("max_redeliver", 0)), settings.get("topic")
        if topic and "://" not in topic:
            topic = f"persistent://public/default/{topic}"
        policy = state.policies.setdefault(name, Policy(most, topic))
        policy.mixed |= (policy.most, policy.topic) != (most, topic)
        policy.members.add(member.consumer)

    @staticmethod
    def _source(policy: Policy, position: Position) -> Source:
        return policy.sources.setdefault(position, Source())

    def _api(self, state: DeadLetterState, event: Event) -> Iterable[Anomaly]:
        policy = state.policies.get((event.topic or "", event.subscription or ""))
        if policy is None or policy.mixed:
            return
        if event.phase == "invoke" and event.op is not None:
            state.ops[event.op] = event
        called = state.ops.get(event.op or -1, event)
        position = position_of(event) or position_of(called)
        if position is None:
            return
        member = event.batch_index if event.batch_index is not None else called.batch_index
        source = self._source(policy, position)
        # A batch of one, which the C++ core makes where Java sends a plain message, counts as a plain message.
        index = -1 if member is None or source.size == 1 else member
        if event.kind == "receive" and event.phase == "ok" and event.payload_digest is not None:
            source.digests[index] = event.payload_digest
            source.properties = dict(event.extra.get("properties") or {})
            source.key = event.extra.get("key")
            yield from self._given(state, policy, source, position, index, event)
        elif event.kind == "ack" and event.phase == "invoke":
            source.asked_ack.add(index)
        elif event.kind == "ack" and event.phase == "ok":
            source.acked_ok.setdefault(index, event.index)
        elif event.kind == "ack_cumulative":
            policy.mixed = True
        elif event.kind == "nack" and event.phase == "invoke":
            source.nacked.append(event.index)
            source.nacked_members.setdefault(index, []).append(event.index)
        elif event.kind == "nack" and event.phase == "ok":
            source.last_nack = (event.index, event.time_ns)
        elif event.kind == "seek":
            policy.mixed = True

    @staticmethod
    def _given(
        state: DeadLetterState, policy: Policy, source: Source, position: Position, index: int, event: Event
    ) -> Iterable[Anomaly]:
        key = (event.topic or "", event.subscription or "")
        state.judged["Q2"] += 1
        if event.redelivery_count is not None and event.redelivery_count > policy.most:
            yield Anomaly(
                name="delivered-beyond-the-limit",
                clause="Q2",
                key=key,
                witness=(event.index,),
                message=f"{position} was handed out with redelivery count {event.redelivery_count}, "
                f"the limit is {policy.most}",
            )
        times = source.received.setdefault(index, [])
        times.append(event.index)
        calm_since = max([-1, *(at for at in state.disturbed if at < event.index)])
        inside = [at for at in times if at > calm_since]
        if len(inside) == len(times):
            state.judged["DLQ-01"] += 1
            if len(inside) == policy.most + 2:
                yield Anomaly(
                    name="delivered-too-often",
                    clause="DLQ-01",
                    key=key,
                    witness=tuple(inside),
                    message=f"{position} was handed out {len(inside)} times, {policy.most + 1} are allowed",
                )

    def _frame(self, state: DeadLetterState, policy: Policy, event: Event) -> None:
        if policy.mixed or event.consumer not in policy.members:
            policy.mixed |= event.kind == "ACK"
            return
        if event.kind == "MESSAGE":
            position = position_of(event)
            if position is None or event.chunk_uuid is not None:
                return
            source = self._source(policy, position)
            source.size = max(source.size, event.num_messages or 1)
            source.counts.append((event.redelivery_count or 0, event.index))
            left = bits(event.ack_set)
            if left is not None:
                for bit in range(source.size):
                    if not left >> bit & 1:
                        source.acked_ok.setdefault(bit, event.index)
            self._digests(state, event, position)
        elif event.kind == "ACK":
            for acked in acked_ids(event):
                if event.ack_type == "cumulative" or acked.remaining:
                    policy.mixed |= event.ack_type == "cumulative"
                    continue
                known = policy.sources.get(acked.position)
                if known is None:
                    continue
                known.refused |= event.error is not None
                if known.frame is None and event.error is None and acked.batch_index is None:
                    known.frame = event.index

    @staticmethod
    def _digests(state: DeadLetterState, event: Event, position: Position) -> None:
        members = event.extra.get("messages")
        named = (
            [(index, one.get("digest")) for index, one in enumerate(members)]
            if members and len(members) > 1
            else [(-1, members[0].get("digest") if members else event.payload_digest)]
        )
        for index, digest in named:
            if isinstance(digest, str):
                state.digest_places.setdefault(digest, set()).add(
                    (event.topic or "", event.subscription or "", position, index)
                )

    def _order(
        self, state: DeadLetterState, name: tuple[str, str], position: Position, source: Source
    ) -> Iterable[Anomaly]:
        """Q5: the source is acked only after the copies of all members the application did not ack are confirmed."""
        frame = source.frame
        owed = [index for index in self._owed(source) if source.copies.get(index)]
        if frame is None or not owed:
            return
        state.judged["Q5"] += 1
        early = [
            index
            for index in owed
            if not any(copy.receipt is not None and copy.receipt < frame for copy in source.copies[index])
        ]
        if early:
            sent = [copy.event.index for index in early for copy in source.copies[index]]
            yield Anomaly(
                name="source-acked-before-the-copy",
                clause="Q5",
                key=name,
                witness=(min(sent), frame),
                message=f"{position} was acked although no receipt for its dead-letter copy had arrived",
            )

    @staticmethod
    def _owed(source: Source) -> list[int]:
        """Members of the entry that the application never acknowledged (-1: a plain message)."""
        if -1 in source.asked_ack:
            return []
        members = range(source.size) if source.size > 1 else (-1,)
        return [index for index in members if index not in source.asked_ack and index not in source.acked_ok]

    @staticmethod
    def _properties(event: Event) -> dict[str, Any]:
        found = (event.extra.get("metadata") or {}).get("properties") or {}
        if isinstance(found, dict):
            return found
        return {str(one.get("key")): one.get("value") for one in found if isinstance(one, dict)}

    def _copied(self, state: DeadLetterState, event: Event) -> None:
        targets = [
            (name, policy)
            for name, policy in state.policies.items()
            if event.topic == (policy.topic or f"{name[0]}-{name[1]}-DLQ") and event.topic != name[0]
        ]
        if not targets:
            return
        copy = Copy(event)
        if event.sequence_id is not None:
            state.copies.setdefault((event.connection or "", event.sequence_id), []).append(copy)
        place = origin(self._properties(event).get("ORIGIN_MESSAGE_ID", ""))
        by_digest = state.digest_places.get(event.payload_digest or "", set())
        for name, policy in targets:
            if place is not None and place[0] in policy.sources:
                index = -1 if place[1] is None else place[1]
                source = policy.sources[place[0]]
                if source.size > 1 and index == -1:
                    matches = [one[3] for one in by_digest if one[2] == place[0]]
                    index = matches[0] if len(matches) == 1 else index
                elif source.size == 1:
                    index = -1
                if source.size > 1 and index == -1:
                    break
                source.copies.setdefault(index, []).append(copy)
                return
            here = [one for one in by_digest if one[:2] == name]
            if len(here) == 1:
                policy.sources[here[0][2]].copies.setdefault(here[0][3], []).append(copy)
                return
        state.unplaced.append(copy)

    @staticmethod
    def _receipt(state: DeadLetterState, event: Event) -> None:
        waiting = state.copies.get((event.connection or "", event.sequence_id if event.sequence_id is not None else -1))
        for copy in waiting or ():
            same = copy.event.extra.get("producer_id") == event.extra.get("producer_id")
            if copy.receipt is None and same and copy.event.topic == event.topic and event.ledger_id is not None:
                copy.receipt = event.index
                return

    def finish(self, state: DeadLetterState) -> Iterable[Anomaly]:
        for name, policy in state.policies.items():
            foreign = policy.topic is not None and stem(policy.topic) != stem(name[0])
            if policy.mixed or foreign:
                reason = "its dead-letter topic is named unlike its source" if foreign else "policies or acks are mixed"
                state.undecided.append(Undecided(clause="Q4", key=name, reason=reason))
                continue
            for position, source in policy.sources.items():
                yield from self._copies(state, policy, name, position, source)
                yield from self._order(state, name, position, source)
                yield from self._conserved(state, name, position, source)
                yield from self._due(state, policy, name, position, source)

    def _copies(
        self, state: DeadLetterState, policy: Policy, name: tuple[str, str], position: Position, source: Source
    ) -> Iterable[Anomaly]:
        for index, copies in source.copies.items():
            first = copies[0].event
            before = [at for count, at in source.counts if count >= policy.most and at < first.index]
            state.judged["Q3"] += 1
            if not before:
                yield Anomaly(
                    name="dead-lettered-too-soon",
                    clause="Q3",
                    key=name,
                    witness=(first.index,),
                    message=f"{position} was dead-lettered before any delivery with count {policy.most}",
                )
            acked = source.acked_ok.get(index)
            asked_again = [at for at in source.nacked if acked is not None and at < acked]
            group = state.members[name[0]].by_name
            timed = any(group[one].options.get("ack_timeout_ms") for one in policy.members)
            # An ack may be lost with its connection, and the next session of the client knows nothing of it.
            parted = acked is not None and any(acked < at < first.index for at in state.disturbed)
            # Given out once more with its batch, a member may be rejected after all.
            rejected = any(acked is not None and at > acked for at in source.nacked_members.get(index, ()))
            excused = asked_again or timed or parted or rejected
            if acked is not None and index in source.asked_ack and not excused:
                state.judged["DLQ-03"] += 1
                if acked < first.index:
                    yield Anomaly(
                        name="acked-message-dead-lettered",
                        clause="DLQ-03",
                        key=name,
                        witness=(acked, first.index),
                        message=f"member {index} of {position} had been acked by the application before",
                    )
            elif source.size > 1:
                state.judged["DLQ-03"] += 1
            yield from self._faithful(state, name, position, source, index, first)
            stored = [copy for copy in copies if copy.receipt is not None]
            if stored:
                state.judged["Q6"] += 1
            if len(stored) > 1:
                span = (stored[0].event.index, stored[-1].receipt or stored[-1].event.index)
                if any(span[0] < at < span[1] for at in state.disturbed) or state.calm.last_fault > -1:
                    continue
                yield Anomaly(
                    name="dead-lettered-twice",
                    clause="Q6",
                    key=name,
                    witness=tuple(copy.event.index for copy in stored),
                    message=f"{position} was stored {len(stored)} times in the dead-letter topic, nothing went wrong",
                )

    def _faithful(
        self, state: DeadLetterState, name: tuple[str, str], position: Position, source: Source, index: int, copy: Event
    ) -> Iterable[Anomaly]:
        properties = self._properties(copy)
        state.judged["DLQ-02"] += 1
        if "ORIGIN_MESSAGE_ID" not in properties or "REAL_TOPIC" not in properties:
            yield Anomaly(
                name="copy-without-origin",
                clause="DLQ-02",
                key=name,
                severity="conformance",
                witness=(copy.index,),
                message="the dead-letter copy does not name the message and topic it comes from",
            )
        digest = source.digests.get(index)
        if digest is None or copy.payload_digest is None or copy.chunk_uuid is not None:
            return
        state.judged["Q7"] += 1
        lost = {key for key, value in source.properties.items() if properties.get(key) != value}
        given = (copy.extra.get("metadata") or {}).get("partition_key")
        if digest != copy.payload_digest or (source.size == 1 and (lost or (source.key and source.key != given))):
            yield Anomaly(
                name="copy-differs",
                clause="Q7",
                key=name,
                witness=(source.received[index][-1], copy.index),
                message=f"the dead-letter copy of {position} lost payload, key or properties {sorted(lost)}",
            )

    def _conserved(
        self, state: DeadLetterState, name: tuple[str, str], position: Position, source: Source
    ) -> Iterable[Anomaly]:
        if source.frame is None or source.refused:
            return
        if state.unplaced:
            state.undecided.append(
                Undecided(
                    clause="Q4",
                    key=name,
                    reason="a dead-letter copy could not be joined to its source",
                    witness=(state.unplaced[0].event.index,),
                )
            )
            return
        state.judged["Q4"] += 1
        lost = [index for index in self._owed(source) if not source.copies.get(index)]
        if lost:
            yield Anomaly(
                name="neither-acked-nor-dead-lettered",
                clause="Q4",
                key=name,
                witness=(source.frame,),
                message=f"{position} was acked on the source; the application had not, and no copy was sent",
            )

    def _due(
        self, state: DeadLetterState, policy: Policy, name: tuple[str, str], position: Position, source: Source
    ) -> Iterable[Anomaly]:
        last = [count for count, _ in source.counts]
        if not last or max(last) < policy.most or source.last_nack is None or source.asked_ack:
            return
        final = max(at for count, at in source.counts if count == max(last))
        if source.last_nack[0] < final:
            return
        group = state.members[name[0]].by_name
        delay = max(group[one].milliseconds("nack_delay_ms", NACK_DELAY_MS) for one in policy.members)
        alive = all(f"{name[0]}\0{one}" in state.alive for one in policy.members)
        quiet = any(at > final for at in state.disturbed) or state.calm.last_fault > source.counts[0][1]
        waited = (state.quiet_ns or 0) - source.last_nack[1]
        if not state.calm.drained or not alive or quiet or waited < delay * 4 // 3 + 5 * SETTLE_NS:
            state.undecided.append(
                Undecided(
                    clause="Q8",
                    key=name,
                    witness=(source.last_nack[0],),
                    reason="no undisturbed end long enough after the last nack",
                )
            )
            return
        state.judged["Q8"] += 1
        if not source.copies:
            yield Anomaly(
                name="never-dead-lettered",
                clause="Q8",
                key=name,
                severity="liveness",
                witness=(final, source.last_nack[0]),
                message=f"{position} was nacked at the limit of {policy.most} redeliveries, no copy was ever sent",
            )


INVARIANTS: tuple[Invariant[Any], ...] = (Redelivery(), DeadLetters())
