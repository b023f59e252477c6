"""Runs invariants over events: online as they are recorded, or over a stored history, with the same answer.

The stream of a key is the one ``harness.invariants.core`` defines; a key that appears late is first shown the
broadcast events that came before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from harness.history.event import Event
from harness.invariants.contract import damaged
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.routes import may_broadcast, may_have_key
from harness.invariants.shape import shaped

EXAMPLES_KEPT = 8
"""Examples kept for one (clause, key, name) of an anomaly, and for one (clause, key) of an undecided question."""


UNREADABLE = "a tap had met bytes that are no frame; what passed there since then was not seen"
"""Why nothing is proved any more after a ``WIRE_ERROR``, except by another one."""

DAMAGED = (
    "event {index} ({kind}) breaks the event contract; what is concluded from there on may be its recorder's doing"
)
"""Why nothing is proved any more from an event on that lacks what the contract asks of its kind."""


class InvariantFailed(Exception):
    """An invariant itself broke: the harness is at fault, never the system under test."""


class ClauseResult(msgspec.Struct, kw_only=True):
    """What is known of one clause. ``judged``: how often it was really put to test; the totals count past the cap."""

    judged: int = 0
    anomalies: list[Anomaly] = []
    undecided: list[Undecided] = []
    anomalies_total: int = 0
    undecided_total: int = 0


class Judgement(msgspec.Struct, kw_only=True):
    """The answer of one or more runs: every clause of the invariants used has an entry, also when never judged."""

    results: dict[str, ClauseResult] = {}

    def merge(self, other: Judgement) -> Judgement:
        """The judgement of both histories together; neither operand changes. Order does not matter."""
        return _together((self, other))

    @property
    def anomalies(self) -> list[Anomaly]:
        """All kept anomalies, clause by clause."""
        return [anomaly for result in self.results.values() for anomaly in result.anomalies]


class Judge:
    """Folds events online. ``observe`` wants ascending ``index`` and never raises into whoever records."""

    def __init__(self, invariants: Iterable[Invariant[Any]]) -> None:
        self._folds = [_Fold(invariant) for invariant in invariants]
        self._routes: dict[tuple[str, str], list[tuple[_Fold, Callable[[Event], None]]]] = {}
        self._failure: InvariantFailed | None = None
        self._damage = ""

    def observe(self, event: Event) -> None:
        """Take the next event. An invariant that raises is kept for ``finish``; the judge stops reading."""
        if self._failure is not None:
            return
        event = shaped(event)
        unreadable = event.kind == "WIRE_ERROR"
        if unreadable:
            # What it proves of itself stands; all else after it may have its reason in frames that nobody could read.
            self._set_blind(self._damage)
        if not self._damage and damaged(event):
            self._damage = DAMAGED.format(index=event.index, kind=event.kind)
            self._set_blind(self._damage)
        route = self._routes.get((event.layer, event.kind))
        if route is None:
            route = self._routes[event.layer, event.kind] = list(self._readers(event))
        for fold, take in route:
            try:
                take(event)
            except Exception as error:
                name = fold.invariant.name
                self._failure = InvariantFailed(f"invariant {name} broke at event {event.index}: {error!r}")
                self._failure.__cause__ = error
                return
        if unreadable:
            self._set_blind(self._damage or UNREADABLE)

    def _set_blind(self, blind: str) -> None:
        for fold in self._folds:
            fold.blind = blind

    def _readers(self, event: Event) -> Iterator[tuple[_Fold, Callable[[Event], None]]]:
        """The folds that may read an event of this layer and kind."""
        for fold in self._folds:
            if may_broadcast(fold.invariant, event.layer, event.kind):
                yield fold, fold.observe
            elif may_have_key(fold.invariant, event.layer, event.kind):
                yield fold, fold.observe_keyed

    @property
    def found(self) -> int:
        """How many anomalies are proved so far."""
        return sum(fold.found for fold in self._folds)

    def finish(self) -> Judgement:
        """Close every stream. Raises InvariantFailed when an invariant broke. Call once."""
        if self._failure is not None:
            raise self._failure
        parts: list[Judgement] = []
        for fold in self._folds:
            try:
                parts.append(fold.finish())
            except InvariantFailed:
                raise
            except Exception as error:
                raise InvariantFailed(f"invariant {fold.invariant.name} broke at the end: {error!r}") from error
        return _together(parts)


def judge_history(events: Iterable[Event], invariants: Sequence[Invariant[Any]]) -> Judgement:
    """Judge a finished history, given in index order. Raises InvariantFailed."""
    judge = Judge(invariants)
    for event in events:
        judge.observe(event)
    return judge.finish()


class _Fold:
    """One invariant and the states of its keys."""

    def __init__(self, invariant: Invariant[Any]) -> None:
        self.invariant = invariant
        self.found = 0
        self.blind = ""
        self._questions: list[Undecided] = []
        self._states: dict[Key, FoldState] = {}
        self._broadcasts: list[Event] = []
        self._anomalies: list[Anomaly] = []
        self._totals: Counter[str] = Counter()
        self._kept: Counter[tuple[str, Key, str]] = Counter()

    def observe(self, event: Event) -> None:
        if not self.invariant.broadcast(event):
            self.observe_keyed(event)
            return
        key = self.invariant.key(event)
        if key is not None and key not in self._states:
            self._start(key)
        self._broadcasts.append(event)
        for everyone in self._states.values():
            self._take(self.invariant.step(everyone, event))

    def observe_keyed(self, event: Event) -> None:
        """Take an event that is no broadcast."""
        key = self.invariant.key(event)
        if key is not None:
            state = self._states.get(key)
            if state is None:
                state = self._start(key)
            for anomaly in self.invariant.step(state, event):
                self._note(anomaly)

    def _start(self, key: Key) -> FoldState:
        state: FoldState = self.invariant.start(key)
        self._states[key] = state
        for earlier in self._broadcasts:
            self._take(self.invariant.step(state, earlier))
        return state

    def finish(self) -> Judgement:
        results = {clause: ClauseResult() for clause in self.invariant.clauses}
        for state in self._states.values():
            self._take(self.invariant.finish(state))
        for state in self._states.values():
            for clause, times in state.judged.items():
                self._known(clause)
                results[clause].judged += times
            self._questions += state.undecided
        asked: Counter[tuple[str, Key]] = Counter()
        for question in self._questions:
            self._known(question.clause)
            result = results[question.clause]
            result.undecided_total += 1
            asked[question.clause, question.key] += 1
            if asked[question.clause, question.key] <= EXAMPLES_KEPT:
                result.undecided.append(question)
        for anomaly in self._anomalies:
            results[anomaly.clause].anomalies.append(anomaly)
        for clause, total in self._totals.items():
            results[clause].anomalies_total = total
        return Judgement(results=results)

    def _take(self, anomalies: Iterable[Anomaly]) -> None:
        for anomaly in anomalies:
            self._note(anomaly)

    def _note(self, anomaly: Anomaly) -> None:
        self._known(anomaly.clause)
        if self.blind:
            self._questions.append(
                Undecided(clause=anomaly.clause, key=anomaly.key, reason=self.blind, witness=anomaly.witness)
            )
            return
        self.found += 1
        self._totals[anomaly.clause] += 1
        group = (anomaly.clause, anomaly.key, anomaly.name)
        self._kept[group] += 1
        if self._kept[group] <= EXAMPLES_KEPT:
            self._anomalies.append(anomaly)

    def _known(self, clause: str) -> None:
        if clause not in self.invariant.clauses:
            raise InvariantFailed(f"invariant {self.invariant.name} does not declare clause {clause}")


def _together(judgements: Sequence[Judgement]) -> Judgement:
    """One judgement of several, clause by clause."""
    parts: dict[str, list[ClauseResult]] = {}
    for judgement in judgements:
        for clause, result in judgement.results.items():
            parts.setdefault(clause, []).append(result)
    merged: dict[str, ClauseResult] = {}
    for clause in sorted(parts):
        results = parts[clause]
        merged[clause] = _sorted_result(
            ClauseResult(
                judged=sum([result.judged for result in results]),
                anomalies=[anomaly for result in results for anomaly in result.anomalies],
                undecided=[question for result in results for question in result.undecided],
                anomalies_total=sum([result.anomalies_total for result in results]),
                undecided_total=sum([result.undecided_total for result in results]),
            )
        )
    return Judgement(results=merged)


def _sorted_result(result: ClauseResult) -> ClauseResult:
    """The same result in an order that does not depend on how the keys were interleaved."""
    return msgspec.structs.replace(
        result,
        anomalies=sorted(result.anomalies, key=lambda item: (item.key, item.name, item.witness, item.message)),
        undecided=sorted(result.undecided, key=lambda item: (item.key, item.witness, item.reason)),
    )
