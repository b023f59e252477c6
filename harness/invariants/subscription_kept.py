"""A durable subscription outlives its consumers and its broker (COPT-03)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.history.event import Event
from harness.invariants.acknowledged import Acknowledged, Position, position_of
from harness.invariants.calm import Calm, calm_or_storm
from harness.invariants.core import Anomaly, FoldState, Invariant, Key
from harness.invariants.dispatch import DISPATCH_NS, SETTLE_NS
from harness.invariants.faults import Deletions, evicts
from harness.invariants.sessions import Session, Sessions
from harness.invariants.unanswered import Unanswered


@dataclass
class Kept:
    """One durable subscription since it was first confirmed."""

    created: int | None = None
    asked: dict[int, int] = field(default_factory=dict)
    latest_again: int | None = None
    moved: bool = False
    ready: Session | None = None
    acked: Acknowledged = field(default_factory=Acknowledged)
    sent: set[Position] = field(default_factory=set)


class KeptState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sessions = Sessions("tap.broker")
        self.calm = Calm()
        self.kept: dict[str, Kept] = {}
        self.sends: dict[str | None, Unanswered] = {}
        self.stored: list[tuple[Position, int, Event]] = []
        self.evicted = False
        self.deletions = Deletions(key[0])
        self.drained_ns = 0


class SubscriptionKept(Invariant[KeptState]):
    """COPT-03: a subscription that exists is resumed, wherever a later SUBSCRIBE wants a new one to begin.

    Keyed by topic, read at tap A. Only what was sent after the subscription was confirmed can be missed, and only a
    later SUBSCRIBE that asks for the latest message shows it: one that asks for the earliest finds everything anew.
    """

    name = "subscription-kept"
    family = "delivery"
    clauses = ("COPT-03",)

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer == "tap.broker" else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> KeptState:
        return KeptState(key)

    def step(self, state: KeptState, event: Event) -> Iterable[Anomaly]:
        changed = state.sessions.observe(event)
        if event.layer == "fault":
            state.evicted |= evicts(event)
            state.deletions.observe(event)
            if state.calm.observe(event):
                self._drained(state, event)
            return ()
        if event.kind == "SEND":
            state.sends.setdefault(event.producer, Unanswered()).sent(event)
        elif event.kind in ("SEND_RECEIPT", "SEND_ERROR"):
            sent = state.sends.setdefault(event.producer, Unanswered()).answered(event)
            at = position_of(event)
            delayed = sent is not None and (sent.frame.extra.get("metadata") or {}).get("deliver_at_time") is not None
            if sent is not None and sent.stored and not sent.contested and not delayed and at is not None:
                state.stored.append((at, sent.frame.index, event))
        elif event.kind == "SUCCESS":
            self._confirmed(state, event)
        session = changed or state.sessions.of(event)
        if session is not None and session.durable:
            self._consumed(state.kept.setdefault(session.subscription, Kept()), session, event)
        return ()

    @staticmethod
    def _confirmed(state: KeptState, event: Event) -> None:
        kept = state.kept.get(event.subscription or "")
        if kept is not None and event.request_id in kept.asked and kept.created is None:
            kept.created = event.index

    @staticmethod
    def _consumed(kept: Kept, session: Session, event: Event) -> None:
        position = position_of(event)
        if event.kind == "SUBSCRIBE":
            if event.request_id is not None:
                kept.asked[event.request_id] = event.index
            if kept.created is not None and not session.earliest:
                kept.latest_again = event.index
        elif event.kind in ("SEEK", "UNSUBSCRIBE"):
            kept.moved = True
        elif event.kind == "ACK":
            kept.acked.take(event)
        elif event.kind == "MESSAGE" and position is not None:
            kept.sent.add(position)

    @staticmethod
    def _drained(state: KeptState, event: Event) -> None:
        state.drained_ns = event.time_ns
        for name, kept in state.kept.items():
            kept.ready = next(
                (
                    one
                    for one in state.sessions.live(name)
                    if one.credit > 0 and event.time_ns - one.opened_ns > SETTLE_NS and one.kind != "key_shared"
                ),
                None,
            )

    def finish(self, state: KeptState) -> Iterator[Anomaly]:
        for name, kept in state.kept.items():
            again = kept.latest_again
            if kept.created is None or again is None or kept.moved or state.evicted or kept.ready is None:
                continue
            if not state.calm.drained or state.deletions.hit(name):
                continue
            owed = [
                (position, frame, receipt)
                for position, frame, receipt in state.stored
                if kept.created < frame
                and receipt.index < again
                and receipt.time_ns < state.drained_ns - DISPATCH_NS
                and not _acked_before(kept.acked, position, again)
            ]
            if not owed:
                continue
            state.judged["COPT-03"] += 1
            missing = [one for one in owed if one[0] not in kept.sent]
            if missing:
                yield Anomaly(
                    name="subscription-begun-anew",
                    clause="COPT-03",
                    key=(*state.key, name),
                    witness=(kept.created, missing[0][1], missing[0][2].index, again),
                    message=f"{missing[0][0]} was stored while the subscription existed; it was never sent to it after "
                    "a consumer had subscribed again",
                )


def _acked_before(acked: Acknowledged, position: Position, index: int) -> bool:
    """Whether the entry, or a part of it, was acked before that event."""
    found = [at for at in (acked.since(position), acked.partial.get(position)) if at is not None]
    return bool(found) and min(found) < index
