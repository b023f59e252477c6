"""Stored entries of one topic: dense ids, rollovers nobody notices, one identity everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from harness.history.event import Event
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.faults import PROCESS
from harness.invariants.producer_fold import volatile
from harness.invariants.sends import SendBooks
from harness.invariants.sequence import is_chunk, members, position
from harness.invariants.unanswered import CONTESTED, Unanswered

Content = tuple[str | None, ...]


class LedgerState(FoldState):
    """Entries of the final read; per id what the first frame said, and what the application said before any frame."""

    __slots__ = (
        "books", "claims", "complete", "contents", "down", "entries", "former", "newest", "payloads", "ready", "sends",
    )  # fmt: skip

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.complete = False
        self.books = SendBooks()
        self.entries: list[tuple[tuple[int, int], int]] = []
        self.payloads: dict[int, str] = {}
        self.sends: dict[str | None, Unanswered] = {}
        self.contents: dict[tuple[int, int], tuple[Content, bool, Event]] = {}
        self.claims: list[tuple[tuple[int, int], int | None, str, Event]] = []
        self.newest: Event | None = None
        """The receipt of the highest ledger so far; ``former``: that one when the process last went down."""
        self.former: Event | None = None
        self.down = False
        self.ready: int | None = None


class Ledger(Invariant[LedgerState]):
    """Positions as the broker stored, announced and delivered them (LEDGER-01, -03, -04).

    A ledger that a broker finds when it starts is closed: what is sent to the new process goes to a higher one.
    """

    name = "ledger-positions"
    family = "receipts"
    clauses = ("LEDGER-01", "LEDGER-03", "LEDGER-04")

    def key(self, event: Event) -> Key | None:
        if event.topic is None or volatile((event.topic,)):
            return None
        wanted = (
            event.layer == "log"
            or (event.layer == "tap.broker" and event.kind in ("SEND", "SEND_RECEIPT", "SEND_ERROR", "MESSAGE"))
            or (event.layer == "api" and event.kind in ("send", "receive"))
        )
        return (event.topic,) if wanted else None

    def broadcast(self, event: Event) -> bool:
        return event.layer == "fault" and event.kind in PROCESS

    def start(self, key: Key) -> LedgerState:
        return LedgerState(key)

    def step(self, state: LedgerState, event: Event) -> Iterator[Anomaly]:
        at = position(event)
        if event.layer == "fault":
            self._process(state, event)
            return
        if event.kind == "LOG_END":
            state.complete = bool(event.extra.get("complete"))
        elif event.layer == "api":
            self._application(state, event, at)
        elif event.kind == "SEND":
            state.sends.setdefault(event.producer, Unanswered()).sent(event)
        elif event.kind in ("SEND_RECEIPT", "SEND_ERROR"):
            sent = state.sends.setdefault(event.producer, Unanswered()).answered(event)
            if sent is None or at is None or sent.frame.extra.get("checksum_ok") is False:
                return
            if not sent.contested:
                yield from self._moved_on(state, sent.frame, event)
            if sent.contested:
                state.undecided.append(
                    Undecided(clause="LEDGER-04", key=state.key, reason=CONTESTED, witness=(event.index,))
                )
            else:
                yield from self._content(state, at, sent.frame, event)
        elif at is not None:
            if event.kind == "ENTRY":
                state.entries.append((at, event.index))
            if event.extra.get("checksum_ok") is not False:
                yield from self._content(state, at, event, event)

    @staticmethod
    def _process(state: LedgerState, event: Event) -> None:
        if event.kind in ("broker_kill", "broker_stop") and not state.down:
            state.former, state.down, state.ready = state.newest, True, None
        elif event.kind == "broker_ready" and state.down:
            state.down, state.ready = False, event.index

    @staticmethod
    def _moved_on(state: LedgerState, frame: Event, receipt: Event) -> Iterator[Anomaly]:
        former, ledger = state.former, receipt.ledger_id or 0
        if former is not None and state.ready is not None and frame.index > state.ready:
            state.judged["LEDGER-03"] += 1
            if ledger <= (former.ledger_id or 0):
                yield Anomaly(
                    name="old-ledger-after-a-restart", clause="LEDGER-03", key=state.key,
                    message=f"the broker was started again and wrote to ledger {ledger}, not above {former.ledger_id}",
                    witness=(former.index, state.ready, frame.index, receipt.index),
                )  # fmt: skip
        if state.newest is None or ledger > (state.newest.ledger_id or 0):
            state.newest = receipt

    def _application(self, state: LedgerState, event: Event, at: tuple[int, int] | None) -> None:
        """What the application was told of an id; the payload of a send stands on its invocation only."""
        digest = event.payload_digest
        if event.kind == "send" and event.op is not None:
            state.books.take(event)
            if event.phase == "invoke" and digest is not None:
                state.payloads[event.op] = digest
                return
            digest = state.payloads.pop(event.op, None)
        if event.phase == "ok" and at is not None and digest is not None and not event.extra.get("first_chunk"):
            state.claims.append((at, event.batch_index, digest, event))

    def _content(self, state: LedgerState, at: tuple[int, int], carrier: Event, said: Event) -> Iterator[Anomaly]:
        chunk = is_chunk(carrier)
        content: Content = (carrier.payload_digest,) if chunk else tuple(item.digest for item in members(carrier))
        if None in content:
            return
        known = state.contents.get(at)
        if known is None:
            state.contents[at] = (content, chunk, said)
            return
        state.judged["LEDGER-04"] += 1
        if known[0] != content:
            yield Anomaly(
                name="two-contents-at-one-id", clause="LEDGER-04", key=state.key,
                message=f"{known[2].kind} and {said.kind} disagree about what is stored at {at}",
                witness=tuple(sorted({known[2].index, said.index})),
            )  # fmt: skip

    def finish(self, state: LedgerState) -> Iterator[Anomaly]:
        for at, batch_index, digest, event in state.claims:
            known = state.contents.get(at)
            if known is None or known[1]:
                continue
            if event.kind == "send" and state.books.contested(event):
                state.undecided.append(
                    Undecided(clause="LEDGER-04", key=state.key, reason=CONTESTED, witness=(event.index,))
                )
                continue
            place = batch_index if batch_index is not None else 0
            state.judged["LEDGER-04"] += 1
            if place >= len(known[0]) or known[0][place] != digest:
                yield Anomaly(
                    name="application-told-another-id", clause="LEDGER-04", key=state.key,
                    message=f"the application's {event.kind} names {at}, where {known[2].kind} shows another message",
                    witness=tuple(sorted({known[2].index, event.index})),
                )  # fmt: skip
        if state.complete and state.entries:
            yield from self._dense(state)

    def _dense(self, state: LedgerState) -> Iterator[Anomaly]:
        first, index = state.entries[0]
        if first[1] != 0:
            yield self._gap(state, "LEDGER-01", f"the first ledger begins at entry {first[1]}", index)
        for (before, earlier), (after, later) in pairwise(state.entries):
            clause = "LEDGER-01" if before[0] == after[0] else "LEDGER-03"
            expected = (before[0], before[1] + 1) if before[0] == after[0] else (max(after[0], before[0] + 1), 0)
            if after == expected:
                state.judged[clause] += 1
            else:
                yield self._gap(state, clause, f"{after} follows {before}", earlier, later)

    def _gap(self, state: LedgerState, clause: str, message: str, *witness: int) -> Anomaly:
        state.judged[clause] += 1
        return Anomaly(name="entry-ids-not-dense", clause=clause, key=state.key, message=message, witness=witness)
