"""Subscribing, closing, unsubscribing, reconnecting and seeking."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.history.event import Event
from harness.invariants.acknowledged import Position, position_in, position_of
from harness.invariants.calm import Calm, calm_or_storm
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.faults import Deletions, deletes, evicts, kills
from harness.invariants.members import Members
from harness.invariants.sessions import Sessions

GRACE_NS = 1_000_000_000
"""A second for frames that had left the client before its call returned and waited in a slow tap."""

RETRY_NS = 5_000_000_000
"""What a client may need for lookup, connection and one refused attempt when nothing is in its way."""

NUMBERED = frozenset({"SUBSCRIBE", "UNSUBSCRIBE", "SEEK", "CLOSE_CONSUMER"})
"""Requests whose ids one generator gives out; some clients number lookups and acks apart."""

CONSUMER_FRAMES = frozenset({"ACK", "FLOW", "REDELIVER_UNACKNOWLEDGED_MESSAGES"})
LOST_WHEN_EARLY = frozenset({"ACK", "FLOW"})
"""What is lost with harm before the subscription stands; what a redelivery request asks for comes again anyway."""


@dataclass
class Registration:
    """Where one consumer id of a connection stands."""

    subscribed: int
    request: int | None
    answered: bool = False
    leaving: tuple[int, int | None, str] | None = None
    left: int | None = None


class DisciplineState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.consumers: dict[int, Registration] = {}
        self.requests: dict[int, int] = {}
        self.opened = False


class SessionDiscipline(Invariant[DisciplineState]):
    """What may follow what on one connection: ACK-27 and CONS-01 at tap B, CCLOSE-01 and UNSUB-07 at tap A."""

    name = "session-discipline"
    family = "delivery"
    clauses = ("ACK-27", "CONS-01", "CCLOSE-01", "UNSUB-07")

    def key(self, event: Event) -> Key | None:
        tapped = event.layer in ("tap.client", "tap.broker")
        return (event.connection,) if tapped and event.connection else None

    def start(self, key: Key) -> DisciplineState:
        return DisciplineState(key)

    def step(self, state: DisciplineState, event: Event) -> Iterable[Anomaly]:
        client = event.layer == "tap.client"
        upward = event.extra.get("direction") == "to_broker"
        if client and upward and event.request_id is not None and event.kind in NUMBERED:
            state.judged["CONS-01"] += 1
            before = state.requests.get(event.request_id)
            if before is not None:
                yield Anomaly(
                    name="request-id-reused",
                    clause="CONS-01",
                    key=state.key,
                    severity="conformance",
                    witness=(before, event.index),
                    message=f"request id {event.request_id} was used twice on one connection",
                )
            state.requests[event.request_id] = event.index
        if event.kind in ("SUCCESS", "ERROR"):
            self._answer(state, event)
            return
        number = event.extra.get("consumer_id")
        if not isinstance(number, int):
            return
        known = state.consumers.get(number)
        if event.kind == "SUBSCRIBE":
            state.consumers[number] = Registration(event.index, event.request_id)
        elif client and upward and event.kind in LOST_WHEN_EARLY:
            state.judged["ACK-27"] += 1
            if known is None or not known.answered:
                witness = (event.index,) if known is None else (known.subscribed, event.index)
                yield Anomaly(
                    name="frame-before-subscribed",
                    clause="ACK-27",
                    key=state.key,
                    witness=witness,
                    message=f"a {event.kind} was sent on a connection where the consumer was not subscribed yet",
                )
        elif known is not None and upward and event.kind in ("CLOSE_CONSUMER", "UNSUBSCRIBE"):
            known.leaving = (event.index, event.request_id, event.kind)
        elif not client and event.kind == "MESSAGE" and known is not None and known.left and known.leaving:
            clause = "CCLOSE-01" if known.leaving[2] == "CLOSE_CONSUMER" else "UNSUB-07"
            yield Anomaly(
                name="message-after-farewell",
                clause=clause,
                key=state.key,
                witness=(known.leaving[0], known.left, event.index),
                message=f"the broker confirmed {known.leaving[2]} and then sent that consumer a MESSAGE",
            )

    @staticmethod
    def _answer(state: DisciplineState, event: Event) -> None:
        for known in state.consumers.values():
            if event.kind == "SUCCESS" and known.request is not None and known.request == event.request_id:
                known.answered = True
            if known.leaving and known.leaving[1] is not None and known.leaving[1] == event.request_id:
                if event.kind == "SUCCESS":
                    known.left = event.index
                    clause = "CCLOSE-01" if known.leaving[2] == "CLOSE_CONSUMER" else "UNSUB-07"
                    if event.layer == "tap.broker":
                        state.judged[clause] += 1
                else:
                    known.leaving = None

    def finish(self, state: DisciplineState) -> Iterable[Anomaly]:
        return ()


class FarewellState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.members = Members()
        self.sessions = Sessions("tap.client")
        self.calm = Calm()
        self.told: set[str] = set()
        self.judged_gone: set[str] = set()
        self.closed_by_broker: dict[str, Event] = {}
        self.lost: dict[str, Event] = {}
        self.deleted: set[str | None] = set()
        """Subscriptions that an administrator may have deleted; None: any of the topic."""
        self.away_since: dict[str, int] = {}
        """Consumers without a confirmed subscription, and since when (ns): failed attempts go on with the back-off."""


class Farewell(Invariant[FarewellState]):
    """CCLOSE-08, UNSUB-06: silence after the farewell. CONS-07, CONS-16: a consumer that was not closed comes back."""

    name = "farewell-and-return"
    family = "delivery"
    clauses = ("CCLOSE-08", "UNSUB-06", "CONS-07", "CONS-16")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer in ("api", "tap.client") else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> FarewellState:
        return FarewellState(key)

    def step(self, state: FarewellState, event: Event) -> Iterable[Anomaly]:
        state.members.observe(event)
        if event.kind == "CONNECTION_CLOSED" and event.layer == "tap.client":
            for session in state.sessions.all:
                if session.live and session.connection == event.connection:
                    state.lost[session.consumer] = event
                    state.away_since.setdefault(session.consumer, event.time_ns)
        live = state.sessions.of(event)
        if event.kind == "CLOSE_CONSUMER" and event.extra.get("direction") == "to_client" and live and live.live:
            state.closed_by_broker[live.consumer] = event
        if event.kind == "SUCCESS" and event.extra.get("request") == "SUBSCRIBE" and live:
            state.away_since.pop(live.consumer, None)
        state.sessions.observe(event)
        state.calm.observe(event)
        if event.layer == "fault":
            if deletes(event, state.key[0]):
                state.deleted.add(event.subscription)
            # Also when the run was not drained: a consumer that stays away is why its drain never ends.
            if event.kind == "quiescent" and not state.calm.faulty:
                yield from self._returned(state, event)
            return
        if event.layer != "tap.client" or event.consumer is None:
            return
        member = state.members.by_name.get(event.consumer)
        if member is None or member.gone is None or member.subscription != event.subscription:
            return
        clause = "UNSUB-06" if member.gone_by == "unsubscribe" else "CCLOSE-08"
        loud = event.kind in CONSUMER_FRAMES or event.kind == "SUBSCRIBE"
        if loud and event.time_ns - member.gone_ns > GRACE_NS and event.consumer not in state.told:
            state.told.add(event.consumer)
            yield Anomaly(
                name="frames-after-farewell",
                clause=clause,
                key=(*state.key, event.consumer),
                witness=(member.gone, event.index),
                message=f"{member.gone_by} had succeeded; more than a second later the client sent {event.kind}",
            )

    @staticmethod
    def _returned(state: FarewellState, event: Event) -> Iterable[Anomaly]:
        for clause, name, causes in (
            ("CONS-16", "not-back-after-broker-close", state.closed_by_broker),
            ("CONS-07", "not-back-after-connection-loss", state.lost),
        ):
            for consumer, cause in causes.items():
                member = state.members.by_name.get(consumer)
                if member is None or not member.alive or consumer in state.members.names_reused:
                    continue
                present = any(one.consumer == consumer for one in state.sessions.live(member.subscription))
                # Back-off doubles: after an outage the next attempt may be as far away as the outage was long.
                # Attempts that the broker turns down prolong it.
                ended = max(state.calm.healed_ns, cause.time_ns)
                outage = ended - min(ended, state.away_since.get(consumer, cause.time_ns))
                waited = event.time_ns - max(state.calm.healed_ns, cause.time_ns)
                deleted = bool(state.deleted & {None, member.subscription})
                if not present and (deleted or waited < 2 * outage + RETRY_NS):
                    state.undecided.append(
                        Undecided(
                            clause=clause,
                            key=(*state.key, consumer),
                            witness=(cause.index, event.index),
                            reason="its subscription was deleted; a broker need not make it anew"
                            if deleted
                            else "the run ended before the back-off of the client had to be over",
                        )
                    )
                    continue
                state.judged[clause] += 1
                if not present:
                    yield Anomaly(
                        name=name,
                        clause=clause,
                        key=(*state.key, consumer),
                        severity="liveness",
                        witness=(cause.index, event.index),
                        message="the faults were healed and the consumer never closed, but it did not subscribe again",
                    )

    def finish(self, state: FarewellState) -> Iterable[Anomaly]:
        for consumer, member in state.members.by_name.items():
            if member.gone is not None and any(one.consumer == consumer for one in state.sessions.all):
                state.judged["UNSUB-06" if member.gone_by == "unsubscribe" else "CCLOSE-08"] += 1
        return ()


@dataclass
class SeekPoint:
    """The last seek of a subscription and what the application received after it."""

    consumer: str
    target: Position | None
    invoked: int
    done: int | None = None
    failed: bool = False
    received: set[Position] = field(default_factory=set)
    disturbed: bool = False


class SeekState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.members = Members()
        self.calm = Calm()
        self.deletions = Deletions(key[0])
        self.seeks: dict[str, SeekPoint] = {}
        self.ops: dict[int, SeekPoint] = {}
        self.invoked: dict[int, int] = {}
        self.ready: dict[str, bool] = {}
        self.entries: list[Event] = []
        self.complete = False
        self.refused: set[str] = set()


class SeekEffect(Invariant[SeekState]):
    """SEEK-06: nothing from before the target after a seek. SEEK-04: everything behind it comes again."""

    name = "seek-effect"
    family = "delivery"
    clauses = ("SEEK-04", "SEEK-06")

    def key(self, event: Event) -> Key | None:
        wanted = event.layer in ("api", "log") or (event.layer == "tap.client" and event.kind == "ACK")
        return (event.topic,) if wanted and event.topic else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> SeekState:
        return SeekState(key)

    def step(self, state: SeekState, event: Event) -> Iterable[Anomaly]:
        state.members.observe(event)
        if event.layer == "fault":
            state.deletions.observe(event)
            for subscription, seek in state.seeks.items():
                # Nothing promises that a seek outlives a crash; a deleted subscription begins anew.
                seek.disturbed |= kills(event) or evicts(event) or state.deletions.hit(subscription)
        if state.calm.observe(event):
            for subscription, seek in state.seeks.items():
                member = state.members.by_name.get(seek.consumer)
                partners = [
                    one
                    for one in state.members.by_name.values()
                    if one.subscription == subscription and one is not member
                ]
                state.ready[subscription] = (
                    member is not None and member.alive and not partners and not member.options.get("dead_letter")
                )
        elif event.kind == "ENTRY":
            state.entries.append(event)
        elif event.kind == "LOG_END":
            state.complete = event.extra.get("complete") is True
        elif event.kind == "ACK" and event.error is not None and event.subscription:
            state.refused.add(event.subscription)
        elif event.layer == "api" and event.subscription is not None and event.op is not None:
            if event.kind == "seek":
                self._seek(state, event)
            elif event.subscription in state.seeks:
                yield from self._after(state, state.seeks[event.subscription], event)
            elif event.kind == "receive" and event.phase == "invoke":
                state.invoked[event.op] = event.index

    @staticmethod
    def _seek(state: SeekState, event: Event) -> None:
        if event.phase == "invoke":
            target = position_in(event.extra.get("first_chunk")) or position_of(event)
            point = SeekPoint(event.consumer or "", target, event.index)
            if event.subscription is not None and event.op is not None:
                point.disturbed = state.deletions.hit(event.subscription)
                state.seeks[event.subscription] = state.ops[event.op] = point
            return
        done = state.ops.get(event.op or -1)
        if done is not None:
            if event.phase == "ok":
                done.done = event.index
            else:
                done.failed = True

    def _after(self, state: SeekState, seek: SeekPoint, event: Event) -> Iterable[Anomaly]:
        op = event.op or -1
        position = position_of(event)
        if event.kind == "receive" and event.phase == "invoke":
            state.invoked[op] = event.index
        elif event.kind == "receive" and event.phase == "ok" and position is not None:
            seek.received.add(position)
            begun = state.invoked.pop(op, -1)
            if seek.done is None or begun < seek.done or seek.target is None or event.consumer != seek.consumer:
                return
            state.judged["SEEK-06"] += 1
            if position < seek.target and not seek.disturbed:
                yield Anomaly(
                    name="message-from-before-the-seek",
                    clause="SEEK-06",
                    key=(*state.key, event.subscription or ""),
                    witness=(seek.invoked, seek.done, event.index),
                    message=f"after a successful seek to {seek.target} the application received {position}",
                )
        elif event.kind in ("ack", "ack_cumulative", "nack", "unsubscribe") and event.phase == "invoke":
            # An acknowledgement of an older delivery may legally hide what the seek wanted to show again.
            seek.disturbed |= position is None or position not in seek.received

    def finish(self, state: SeekState) -> Iterable[Anomaly]:
        for subscription, seek in state.seeks.items():
            if seek.target is None or seek.done is None:
                continue
            key = (*state.key, subscription)
            if (
                not state.ready.get(subscription)
                or not state.complete
                or not state.calm.drained
                or seek.disturbed
                or subscription in state.refused
            ):
                state.undecided.append(
                    Undecided(
                        clause="SEEK-04",
                        key=key,
                        reason="no calm end with this consumer alone and a full read",
                        witness=(seek.invoked,),
                    )
                )
                continue
            behind = [
                entry
                for entry in state.entries
                if entry.chunk_uuid is None and (position_of(entry) or seek.target) > seek.target
            ]
            if not behind:
                continue
            state.judged["SEEK-04"] += 1
            missing = [entry for entry in behind if position_of(entry) not in seek.received]
            if missing:
                yield Anomaly(
                    name="not-replayed-after-seek",
                    clause="SEEK-04",
                    key=key,
                    severity="liveness",
                    witness=(seek.invoked, seek.done, missing[0].index),
                    message=f"{len(missing)} entries behind {seek.target}, the first {position_of(missing[0])}, "
                    "were not handed out again after the seek",
                )
