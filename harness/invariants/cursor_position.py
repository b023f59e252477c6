"""Where the mark-delete position of a subscription stands."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.history.event import Event
from harness.invariants.acknowledged import Acknowledged, Position, acked_ids, position_of
from harness.invariants.calm import Calm, calm_or_storm
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.faults import GRACEFUL, Deletions, Interruptions, concerns, evicts, kills
from harness.invariants.remembered import SETTLE_NS, Remembered, written
from harness.invariants.sessions import Session, Sessions


class Sample(NamedTuple):
    """One look at a cursor. It was so at some moment between question and record. ``position``: see ``NOTHING``."""

    asked_ns: int
    time_ns: int
    event: int
    position: Position


NOTHING: Position = (-1, -1)
"""The mark-delete position of a subscription with nothing deleted."""


@dataclass
class Mark:
    """The mark-delete samples of one subscription, and what it was told before and between them.

    ``tops``: each sample that was higher than all before it. ``since``: those since the last of ``kills`` crashes that
    a later one can be compared with, ``told`` the ACKs. ``floor``: the highest of those before that had to be on disk.
    """

    acked: Acknowledged = field(default_factory=Acknowledged)
    heard: list[tuple[Event, Remembered]] = field(default_factory=list)
    changes: list[Remembered] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    tops: list[Sample] = field(default_factory=list)
    since: list[Sample] = field(default_factory=list)
    floor: Sample | None = None
    kills: int = 0
    stale: list[int] = field(default_factory=list)
    seen: bool = False
    moved: bool = False
    earliest: bool = True
    final: Sample | None = None
    backlog: int | None = None
    touched_ns: int = 0

    @property
    def highest(self) -> Position:
        """The highest position in any sample."""
        return self.tops[-1].position if self.tops else NOTHING

    def take(self, sample: Sample) -> None:
        """One more sample. Of those since the last crash only a new highest, and the newest, can tell anything."""
        if not self.tops or sample.position > self.highest:
            self.tops.append(sample)
        if len(self.since) > 1 and self.since[-1].position <= self.since[-2].position:
            self.since.pop()
        self.since.append(sample)


class CursorState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sessions = Sessions("tap.broker")
        self.calm = Calm()
        self.work = Interruptions()
        self.marks: dict[str, Mark] = {}
        self.entries: list[Event] = []
        self.complete = False
        self.evicted = False
        self.deletions = Deletions(key[0])
        self.kills: list[Event] = []
        self.graceful: list[int] = []


class CursorPosition(Invariant[CursorState]):
    """Mark-delete positions sampled by the admin layer against the ACK frames at tap A. Keyed by topic.

    A sample tells of some moment between its question (``extra.asked_ns``; without it, the moment of its record) and
    its record, so two are compared only when one was recorded before the other was asked for. An ACK is recorded
    before the broker can see it, so what a sample shows has its reason in frames recorded before the sample.
    """

    name = "cursor-position"
    family = "acks"
    clauses = ("C2", "C3", "C4", "C8", "ACK-CUM-03", "MARKDEL-01", "MARKDEL-02", "MARKDEL-03", "MARKDEL-04")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer in ("tap.broker", "admin", "log") else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> CursorState:
        return CursorState(key)

    def step(self, state: CursorState, event: Event) -> Iterable[Anomaly]:
        state.calm.observe(event)
        changed = state.sessions.observe(event)
        if event.layer == "fault":
            self._fault(state, event)
            return
        if event.kind == "ENTRY":
            state.entries.append(event)
        elif event.kind == "LOG_END":
            state.complete = event.extra.get("complete") is True
        elif event.kind == "CURSOR" and event.subscription is not None:
            yield from self._sample(state, self._mark(state, event.subscription), event)
        session = changed or state.sessions.of(event)
        if session is None or not session.durable:
            return
        mark = self._mark(state, session.subscription)
        if event.kind == "SUBSCRIBE":
            mark.seen = True
            mark.earliest &= session.earliest
        elif event.kind in ("SEEK", "UNSUBSCRIBE"):
            mark.moved = True
        elif event.kind == "ACK":
            if event.ack_type == "cumulative" and session.kind in ("shared", "key_shared"):
                return
            self._acked(mark, session, event)

    @staticmethod
    def _mark(state: CursorState, subscription: str) -> Mark:
        if subscription not in state.marks:
            state.marks[subscription] = Mark(moved=state.deletions.hit(subscription))
        return state.marks[subscription]

    @staticmethod
    def _fault(state: CursorState, event: Event) -> None:
        state.work.observe(event)
        state.evicted |= evicts(event)
        if kills(event):
            state.kills.append(event)
        elif event.kind in GRACEFUL and concerns(event, state.key[0]):
            state.graceful.append(event.index)
        state.deletions.observe(event)
        for name, mark in state.marks.items():
            mark.moved |= state.deletions.hit(name)

    @staticmethod
    def _acked(mark: Mark, session: Session, event: Event) -> None:
        named = [acked.position for acked in acked_ids(event)]
        cumulative = event.ack_type == "cumulative"
        known = Remembered(session, event.index, event.time_ns)
        heard = session.live and session.first_flow is not None and session.first_flow < event.index
        if heard:
            whole = [acked.position for acked in acked_ids(event) if not acked.remaining and acked.batch_index is None]
            if any(mark.acked.since(position) is None for position in whole):
                mark.changes.append(known)
            mark.heard.append((event, known))
        mark.acked.take(event)
        mark.told.append(event.index)
        mark.touched_ns = event.time_ns
        if cumulative and mark.since and named and max(named) < mark.since[-1].position:
            mark.stale.append(event.index)

    def _sample(self, state: CursorState, mark: Mark, event: Event) -> Iterable[Anomaly]:
        asked = event.extra.get("asked_ns")
        asked_ns = min(asked, event.time_ns) if isinstance(asked, int) else event.time_ns
        sample = Sample(asked_ns, event.time_ns, event.index, position_of(event) or NOTHING)
        crossed = bool(state.kills) and asked_ns < event.time_ns and asked_ns <= state.kills[-1].time_ns
        if mark.moved or crossed:
            return
        key = (*state.key, event.subscription or "")
        self._outlived(state, mark)
        yield from self._never_back(state, mark, sample, key)
        yield from self._kept_over_a_crash(state, mark, sample, key)
        mark.stale.clear()
        mark.take(sample)
        if state.calm.drained and asked_ns - mark.touched_ns > SETTLE_NS:
            backlog = event.extra.get("backlog")
            mark.final, mark.backlog = sample, backlog if isinstance(backlog, int) else None

    @staticmethod
    def _outlived(state: CursorState, mark: Mark) -> None:
        """Take account of the crashes since the last sample: what was seen before them and had to be on disk."""
        new = state.kills[mark.kills :]
        if not new:
            return
        last = state.kills[mark.kills - 1].index if mark.kills else None
        acked = next((index for index in mark.told if last is not None and index > last), None)
        for one in mark.since:
            if mark.floor is not None and one.position <= mark.floor.position:
                continue
            # What was seen after an earlier start, before anything new was acked, had come from the disk.
            recovered = last is not None and (acked is None or one.event < acked)
            if recovered or written(one.time_ns, mark.changes, new[0].time_ns, state.work):
                mark.floor = one
        mark.kills = len(state.kills)
        mark.since.clear()
        mark.told = [index for index in mark.told if index > new[-1].index]

    @staticmethod
    def _never_back(state: CursorState, mark: Mark, sample: Sample, key: Key) -> Iterable[Anomaly]:
        highest: Sample | None = None
        for one in mark.since:
            if one.time_ns <= sample.asked_ns and (highest is None or one.position > highest.position):
                highest = one
        if highest is None:
            return
        clauses = ["ACK-CUM-03" if mark.stale else "C2"]
        if state.graceful and state.graceful[-1] > highest.event and highest.position > NOTHING:
            clauses.append("MARKDEL-04")
        for clause in clauses:
            state.judged[clause] += 1
            if sample.position < highest.position:
                yield Anomaly(
                    name="mark-delete-went-back",
                    clause=clause,
                    key=key,
                    witness=(highest.event, *mark.stale[-1:], sample.event),
                    message=f"the mark-delete position fell from {highest.position} to {sample.position}",
                )

    @staticmethod
    def _kept_over_a_crash(state: CursorState, mark: Mark, sample: Sample, key: Key) -> Iterable[Anomaly]:
        floor = mark.floor
        if floor is None or floor.position == NOTHING:
            return
        state.judged["C3"] += 1
        if sample.position < floor.position:
            yield Anomaly(
                name="crash-lost-too-much",
                clause="C3",
                key=key,
                witness=(floor.event, sample.event),
                message=f"after the crash the cursor was at {sample.position}, although {floor.position} had been "
                "persisted",
            )

    def finish(self, state: CursorState) -> Iterable[Anomaly]:
        for subscription, mark in state.marks.items():
            key = (*state.key, subscription)
            if not mark.tops:
                continue
            if mark.moved or not mark.earliest or not mark.seen or state.evicted:
                state.undecided.append(
                    Undecided(
                        clause="C4",
                        key=key,
                        reason="a seek, an unsubscribe, a start at the end, a backlog quota or no consumer at all",
                    )
                )
                continue
            yield from self._nothing_skipped(state, mark, key)
            if state.complete and state.calm.drained:
                yield from self._caught_up(state, mark, key)

    @staticmethod
    def _nothing_skipped(state: CursorState, mark: Mark, key: Key) -> Iterable[Anomaly]:
        highest = mark.highest
        for entry in state.entries:
            position = position_of(entry)
            if position is None or position > highest:
                continue
            reached = mark.tops[bisect_left(mark.tops, position, key=lambda sample: sample.position)].event
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
    def _surely_acked(state: CursorState, mark: Mark) -> Acknowledged:
        """What the broker had to take and could not lose: acks of before a crash may have been rewound."""
        sure = Acknowledged()
        killed = state.kills[-1].index if state.kills else -1
        for event, known in mark.heard:
            if known.arrived(state.work) and not known.before(killed):
                sure.take(event)
        return sure

    def _caught_up(self, state: CursorState, mark: Mark, key: Key) -> Iterable[Anomaly]:
        final = mark.final
        if final is None:
            return
        sure = self._surely_acked(state, mark)
        behind = [place for entry in state.entries if (place := position_of(entry)) and place > final.position]
        if behind:
            following = behind[0]
            if following not in mark.acked.partial:
                clause = "MARKDEL-01" if final.position[0] in (NOTHING[0], following[0]) else "MARKDEL-02"
                since = sure.since(following)
                state.judged[clause] += 1
                if since is not None:
                    yield Anomaly(
                        name="mark-delete-behind",
                        clause=clause,
                        key=key,
                        severity="liveness",
                        witness=(since, final.event),
                        message=f"{following} was acked and follows {final.position}, where the mark-delete stayed",
                    )
        elif state.entries:
            ledgers = {entry.ledger_id for entry in state.entries}
            state.judged["MARKDEL-02" if len(ledgers) > 1 else "MARKDEL-01"] += 1
        everything = bool(state.entries) and all(
            sure.since(position_of(entry) or (0, 0)) is not None for entry in state.entries
        )
        if everything and mark.backlog is not None:
            state.judged["C8"] += 1
            if mark.backlog > 0:
                yield Anomaly(
                    name="backlog-after-all-acks",
                    clause="C8",
                    key=key,
                    severity="liveness",
                    witness=(final.event,),
                    message=f"everything was acked and time passed, the backlog is {mark.backlog}",
                )
