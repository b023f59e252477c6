"""Cursors and ledgers as the admin service tells them, against the frames at tap A and the final read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from harness.history.event import Event
from harness.invariants.acknowledged import Acknowledged, Position, acked_ids, position_of
from harness.invariants.admin_sample import REST_NS, BrokerLife, asked_ns
from harness.invariants.calm import calm_or_storm
from harness.invariants.core import Anomaly, FoldState, Invariant, Key
from harness.invariants.sessions import Session, Sessions

FORGETTING = frozenset({"delete_subscription", "backlog_quota"})
"""Faults after which a broker may have moved a cursor without any ACK."""

CLOSING = frozenset({"unload", "unload_namespace", "terminate"})
"""Faults, beside those of the process, after which a ledger may end before it is full."""


@dataclass(frozen=True, slots=True)
class SureAck:
    """An individual ack of a whole entry. ``session`` is the one it was sent in."""

    time_ns: int
    index: int
    session: Session


@dataclass
class Marks:
    """One subscription: its ACK frames and the CURSOR samples of it."""

    acked: Acknowledged = field(default_factory=Acknowledged)
    sure: dict[Position, SureAck] = field(default_factory=dict)
    touched: dict[Position, int] = field(default_factory=dict)
    cumulative: list[tuple[int, Position]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    samples: list[Event] = field(default_factory=list)
    moved: bool = False
    earliest: bool = True
    kinds: set[str] = field(default_factory=set)

    def take(self, event: Event, session: Session) -> None:
        self.acked.take(event)
        self.times.append(event.time_ns)
        for acked in acked_ids(event):
            if event.ack_type == "cumulative":
                self.cumulative.append((event.index, acked.position))
                continue
            self.touched.setdefault(acked.position, event.index)
            whole = not acked.remaining and acked.batch_index is None
            # A broker drops acks of a consumer that is not subscribed yet; a FLOW is the proof that it was.
            if whole and session.live and session.first_flow is not None:
                self.sure.setdefault(acked.position, SureAck(event.time_ns, event.index, session))

    def untouched(self, position: Position, before: int) -> bool:
        """No ACK recorded before that index names the entry or a member of it."""
        if self.touched.get(position, before) < before:
            return False
        return not any(index < before and covered >= position for index, covered in self.cumulative)

    def quiet(self, sample: Event) -> bool:
        """No ACK was under way while the sample was true."""
        since = asked_ns(sample) - REST_NS
        return not any(since <= time_ns <= sample.time_ns for time_ns in self.times)


class StorageState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sessions = Sessions("tap.broker")
        self.life = BrokerLife()
        self.marks: dict[str, Marks] = {}
        self.ledgers: list[Event] = []
        self.entries: dict[Position, Event] = {}
        self.complete = False
        self.stored: dict[Position, Event] = {}
        self.sends: list[int] = []
        self.forgotten = False
        self.limit: int | None = None
        self.announced: int | None = None
        self.limited: int | None = None
        self.closings: list[int] = []

    @property
    def whole(self) -> bool:
        """All that was ever stored was read; a broker deletes ledgers that everybody has acknowledged."""
        return self.complete and {ledger for ledger, _ in self.stored} <= {ledger for ledger, _ in self.entries}


class AdminStorage(Invariant[StorageState]):
    """STAT-03, MARKDEL-05: cursors; LEDGER-05, LEDGER-02: ledgers. Keyed by topic, decided when all was read."""

    name = "admin-storage"
    family = "acks"
    clauses = ("STAT-03", "MARKDEL-05", "LEDGER-02", "LEDGER-05")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer in ("tap.broker", "admin", "log") else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> StorageState:
        return StorageState(key)

    def step(self, state: StorageState, event: Event) -> Iterable[Anomaly]:
        state.life.observe(event)
        if event.layer == "fault":
            self._fault(state, event)
        elif event.kind == "ENTRY":
            position = position_of(event)
            if position is not None:
                state.entries[position] = event
        elif event.kind == "LOG_END":
            state.complete = event.extra.get("complete") is True
        elif event.kind == "CURSOR" and event.subscription is not None:
            state.marks.setdefault(event.subscription, Marks()).samples.append(event)
        elif event.kind == "LEDGERS":
            state.ledgers.append(event)
        elif event.layer == "tap.broker":
            self._frame(state, event)
        return ()

    @staticmethod
    def _fault(state: StorageState, event: Event) -> None:
        state.forgotten |= event.kind in FORGETTING
        if event.kind == "ledger_rollover":
            state.announced, state.limited = _entries_of(event), None
            state.closings.append(event.index)
        elif event.kind == "broker_ready" and state.announced is not None:
            state.limit, state.announced, state.limited = state.announced, None, event.index
        elif event.kind in CLOSING or event.kind.startswith("broker_"):
            state.closings.append(event.index)

    @staticmethod
    def _frame(state: StorageState, event: Event) -> None:
        if event.kind in ("SEND", "SEND_RECEIPT"):
            state.sends.append(event.time_ns)
            position = position_of(event)
            if event.kind == "SEND_RECEIPT" and position is not None:
                state.stored.setdefault(position, event)
            return
        changed = state.sessions.observe(event)
        session = changed or state.sessions.of(event)
        if session is None:
            return
        marks = state.marks.setdefault(session.subscription, Marks())
        if event.kind == "SUBSCRIBE":
            marks.earliest &= session.earliest
            marks.kinds.add(session.kind)
        elif event.kind in ("SEEK", "UNSUBSCRIBE"):
            marks.moved = True
        elif event.kind == "ACK":
            marks.take(event, session)

    # ------------------------------------------------------------------------------------------------ at the end

    def finish(self, state: StorageState) -> Iterable[Anomaly]:
        if not state.forgotten:
            for subscription, marks in state.marks.items():
                if not marks.moved:
                    yield from self._ranges(state, subscription, marks)
                if not marks.moved and marks.earliest and state.whole:
                    yield from self._backlogs(state, subscription, marks)
        if state.whole:
            for sample in state.ledgers:
                yield from self._ledger_list(state, sample)
            yield from self._rollover(state)

    # ------------------------------------------------------------------------------------------------ cursors

    def _ranges(self, state: StorageState, subscription: str, marks: Marks) -> Iterator[Anomaly]:
        """MARKDEL-05: what is deleted above the mark was acked; what was acked for good is deleted."""
        key = (*state.key, subscription)
        for sample in marks.samples:
            deleted = _ranges_of(sample)
            for position, entry in state.entries.items():
                if not any(ledger == position[0] and first <= position[1] <= last for ledger, first, last in deleted):
                    continue
                state.judged["MARKDEL-05"] += 1
                if marks.untouched(position, sample.index):
                    yield Anomaly(
                        name="unacked-entry-in-range",
                        clause="MARKDEL-05",
                        key=key,
                        witness=(sample.index, entry.index),
                        message=f"the cursor counts {position} as deleted, which nobody had acknowledged",
                    )
            if state.complete and marks.earliest and marks.quiet(sample) and state.life.at_ease(sample):
                yield from self._remembered(state, key, marks, sample, deleted)

    def _remembered(
        self, state: StorageState, key: Key, marks: Marks, sample: Event, deleted: list[tuple[int, int, int]]
    ) -> Iterator[Anomaly]:
        mark = position_of(sample)
        first = min(state.entries, default=None)
        if mark is None and (first is None or first in marks.sure):
            # Nothing, or everything of ledgers that are no longer listed.
            return
        for position, ack in marks.sure.items():
            if position not in state.entries or not self._processed(state, ack, sample):
                continue
            state.judged["MARKDEL-05"] += 1
            known = (mark is not None and position <= mark) or any(
                ledger == position[0] and start <= position[1] <= end for ledger, start, end in deleted
            )
            if not known:
                yield Anomaly(
                    name="acked-entry-not-deleted",
                    clause="MARKDEL-05",
                    key=key,
                    severity="liveness",
                    witness=(ack.index, sample.index),
                    message=f"{position} was acked; the cursor stands at {mark} and does not list it above",
                )

    @staticmethod
    def _processed(state: StorageState, ack: SureAck, sample: Event) -> bool:
        """Whether the broker must have carried out the ack by then, and cannot have lost it in a crash."""
        if ack.time_ns >= asked_ns(sample) - REST_NS or any(crash >= ack.time_ns for crash in state.life.crashes):
            return False
        session = ack.session
        return session.live or not session.lost or session.ended_ns > ack.time_ns + REST_NS

    def _backlogs(self, state: StorageState, subscription: str, marks: Marks) -> Iterator[Anomaly]:
        """STAT-03: entries stored and not acked; what may be either way widens what the broker may say."""
        shared = bool(marks.kinds & {"shared", "key_shared"})
        for sample in marks.samples:
            backlog = sample.extra.get("backlog")
            if not isinstance(backlog, int) or not marks.quiet(sample) or not state.life.at_ease(sample):
                continue
            low = high = 0
            for position in state.entries:
                least, most = self._waits(state, marks, position, sample, shared)
                low, high = low + least, high + most
            if low == high:
                state.judged["STAT-03"] += 1
            if not low <= backlog <= high:
                state.judged["STAT-03"] += low != high
                yield Anomaly(
                    name="backlog-miscounted",
                    clause="STAT-03",
                    key=(*state.key, subscription),
                    witness=(sample.index,),
                    message=f"the broker says {backlog} entries wait; stored and not acked are "
                    f"{low if low == high else f'{low} to {high}'}",
                )

    def _waits(
        self, state: StorageState, marks: Marks, position: Position, sample: Event, shared: bool
    ) -> tuple[int, int]:
        receipt = state.stored.get(position)
        if receipt is not None and receipt.time_ns > sample.time_ns + REST_NS:
            return 0, 0
        stored = receipt is not None and receipt.time_ns < asked_ns(sample)
        if marks.untouched(position, sample.index):
            return int(stored), 1
        sure = marks.sure.get(position)
        if sure is not None and self._processed(state, sure, sample):
            return 0, 0
        return 0, 1

    # ------------------------------------------------------------------------------------------------ ledgers

    def _ledger_list(self, state: StorageState, sample: Event) -> Iterator[Anomaly]:
        """LEDGER-05: the list counts what is stored, and ends where the last entry is."""
        asked = asked_ns(sample)
        if any(asked - REST_NS <= time_ns <= sample.time_ns for time_ns in state.sends):
            return
        listed = _ledgers_of(sample)
        entries = sample.extra.get("entries")
        incomplete = isinstance(entries, int) and sum(count or 0 for count in listed.values()) < entries
        # A broker may answer before its list is complete (2.9.1 does), which says nothing of what it stores.
        if incomplete or not state.life.at_ease(sample):
            return
        sure = {place for place, receipt in state.stored.items() if receipt.time_ns < asked and place in state.entries}
        later = {place for place, receipt in state.stored.items() if receipt.time_ns > sample.time_ns + REST_NS}
        low = Counter(ledger for ledger, _ in sure)
        high = Counter(ledger for ledger, _ in set(state.entries) - later)
        for ledger, held in listed.items():
            state.judged["LEDGER-05"] += 1
            # Writes under way when a topic is terminated may stand behind its end: in the ledger, and not in the topic
            # (2.10.5 lists 21 entries of which one was confirmed).
            behind = sample.extra.get("state") == "Terminated" and ledger == max(listed)
            if held is not None and (held < low[ledger] or (held > high[ledger] and not behind)):
                least, most = low[ledger], high[ledger]
                what = f"{held} entries, stored are {least if least == most else f'{least} to {most}'}"
                yield self._false_list(state, sample, f"ledger {ledger} is said to hold {what}")
        missing = sorted(set(low) - set(listed))
        if missing:
            yield self._false_list(
                state, sample, f"ledger {missing[0]} is not listed and holds {low[missing[0]]} entries"
            )
        last = position_of(sample)
        if sure and (last is None or last < max(sure)):
            yield self._false_list(state, sample, f"the last entry is said to be {last}, {max(sure)} is stored")
        if last is not None and last not in state.entries:
            yield self._false_list(state, sample, f"the last entry is said to be {last}, which is not stored")

    @staticmethod
    def _false_list(state: StorageState, sample: Event, message: str) -> Anomaly:
        return Anomaly(
            name="ledgers-miscounted",
            clause="LEDGER-05",
            key=state.key,
            witness=(sample.index,),
            severity="conformance",
            message=message,
        )

    @staticmethod
    def _rollover(state: StorageState) -> Iterator[Anomaly]:
        """LEDGER-02: of the ledgers that were begun under a limit, each is left when it is reached, not after."""
        if state.limit is None or state.limited is None:
            return
        begun: dict[int, int] = {}
        ended: dict[int, int] = {}
        for (ledger, _), receipt in sorted(state.stored.items(), key=lambda item: item[1].index):
            begun.setdefault(ledger, receipt.index)
            ended[ledger] = receipt.index
        counts = Counter(ledger for ledger, _ in state.entries)
        order = sorted(counts)
        for place, ledger in enumerate(order):
            first = begun.get(ledger)
            if first is None or first < state.limited:
                continue
            state.judged["LEDGER-02"] += 1
            following = begun.get(order[place + 1]) if place + 1 < len(order) else None
            # A fault is recorded before it takes hold: the first receipt of a ledger that it ends may come after it.
            since = max(state.limited, ended.get(order[place - 1], -1) if place else -1)
            cut = following is None or any(since < closing < following for closing in state.closings)
            if counts[ledger] > state.limit or (counts[ledger] < state.limit and not cut):
                yield Anomaly(
                    name="ledger-not-left-when-full",
                    clause="LEDGER-02",
                    key=state.key,
                    witness=(state.limited, first),
                    severity="conformance",
                    message=f"ledger {ledger} holds {counts[ledger]} entries; it is full at {state.limit}",
                )


def _entries_of(fault: Event) -> int | None:
    """How many entries a ``ledger_rollover`` makes a ledger full; None when it is about sizes or times."""
    try:
        attributes = msgspec.json.decode(fault.fault or "{}").get("attributes", {})
        entries = attributes.get("entries")
    except (msgspec.DecodeError, AttributeError):
        return None
    return entries if isinstance(entries, int) else None


def _ranges_of(sample: Event) -> list[tuple[int, int, int]]:
    ranges = sample.extra.get("individually_deleted")
    return [
        (part[0], part[1], part[2])
        for part in (ranges if isinstance(ranges, list) else ())
        if isinstance(part, list) and len(part) == 3 and all(isinstance(number, int) for number in part)
    ]


def _ledgers_of(sample: Event) -> dict[int, int | None]:
    listed = sample.extra.get("ledgers")
    return {
        row[0]: row[1] if isinstance(row[1], int) else None
        for row in (listed if isinstance(listed, list) else ())
        if isinstance(row, list) and len(row) >= 2 and isinstance(row[0], int)
    }
