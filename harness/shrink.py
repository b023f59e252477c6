"""Makes a failing plan smaller: delta debugging over operations and faults together, then simpler parameters.

The oracle alone decides whether a smaller plan still fails; on real systems it runs the plan several times. What is
proposed is always a sensible plan: an operation goes with the handle it needs, a heal with the fault it heals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.worlds.plan import Fault, Operation, Plan, ScheduledFault

Oracle = Callable[[Plan], bool]
Step = Operation | Fault

_CREATES = ("producer", "consumer")
_HANDLELESS = ("settle",)

_EXACT = 100
"""Numbers up to this one are shrunk to the exact least that fails."""

_FROM_ZERO = frozenset({"message", "topic", "sequence_id", "initial_sequence_id", "size"})
"""Numbers of which 0 is the first; of others (queue, max_messages) it often means "no limit", another plan."""


@dataclass(slots=True)
class Shrunk:
    """The smallest plan found after ``tried`` tries of the oracle. ``complete``: nothing smaller was left to try."""

    plan: Plan
    tried: int
    complete: bool


def shrink(plan: Plan, oracle: Oracle, out_of_time: Callable[[], bool]) -> Shrunk:
    """Shrink ``plan``, which the caller has seen failing. Stops between two tries once ``out_of_time`` says so."""
    search = _Search(plan, oracle, out_of_time)
    try:
        progress = True
        while progress:
            progress = search.drop_steps()
            progress = search.simplify() or progress
    except _OutOfTime:
        return Shrunk(search.best, search.tried, complete=False)
    return Shrunk(search.best, search.tried, complete=True)


def from_steps(steps: list[Step], topic_options: dict[str, Any]) -> Plan:
    """The inverse of ``Plan.steps``."""
    operations: list[Operation] = []
    schedule: list[ScheduledFault] = []
    for step in steps:
        if isinstance(step, Operation):
            operations.append(step)
        else:
            schedule.append(ScheduledFault(before=len(operations), fault=step))
    return Plan(operations=operations, schedule=schedule, topic_options=topic_options)


def repaired(steps: list[Step]) -> list[Step]:
    """``steps`` without those that have lost their ground: no such handle yet, nothing to heal."""
    handles: set[str] = set()
    toxics: set[tuple[str, str, str]] = set()
    refused: set[str] = set()
    kept: list[Step] = []
    for step in steps:
        if isinstance(step, Operation):
            if step.verb in _CREATES:
                handles.add(step.handle)
            elif step.verb not in _HANDLELESS and step.handle not in handles:
                continue
        elif step.kind == "toxic":
            toxics.add((step.client, step.toxic, step.stream))
        elif step.kind == "untoxic":
            if (step.client, step.toxic, step.stream) not in toxics:
                continue
            toxics.discard((step.client, step.toxic, step.stream))
        elif step.kind == "refuse":
            refused.add(step.client)
        elif step.kind == "restore":
            if step.client not in refused:
                continue
            refused.discard(step.client)
        kept.append(step)
    return kept


class _OutOfTime(Exception):
    """Unwinds the search; the best plan so far stands."""


class _Search:
    def __init__(self, plan: Plan, oracle: Oracle, out_of_time: Callable[[], bool]) -> None:
        self.best = plan
        self.tried = 0
        self._oracle = oracle
        self._out_of_time = out_of_time
        self._seen = {msgspec.json.encode(plan)}

    def _accepts(self, candidate: Plan) -> bool:
        identity = msgspec.json.encode(candidate)
        if identity in self._seen:
            return False
        if self._out_of_time():
            raise _OutOfTime
        self._seen.add(identity)
        self.tried += 1
        if not self._oracle(candidate):
            return False
        self.best = candidate
        return True

    def drop_steps(self) -> bool:
        """Leave out ever smaller runs of steps, from the end, where the effects of a failure usually are not."""
        dropped = False
        size = max(1, len(self.best.steps()) // 2)
        while True:
            steps = self.best.steps()
            stop = len(steps)
            found = False
            while stop > 0:
                start = max(0, stop - size)
                candidate = from_steps(repaired(steps[:start] + steps[stop:]), self.best.topic_options)
                if self._accepts(candidate):
                    dropped = found = True
                    steps = candidate.steps()
                    stop = min(start, len(steps))
                else:
                    stop = start
            if size > 1:
                size = max(1, size // 2)
            elif not found:
                return dropped

    def simplify(self) -> bool:
        """Simplify topic options and the parameters of each step, one change at a time."""
        changed = False
        for name in list(self.best.topic_options):
            options = {key: value for key, value in self.best.topic_options.items() if key != name}
            changed = self._accepts(msgspec.structs.replace(self.best, topic_options=options)) or changed
        for position in range(len(self.best.steps())):
            accepted = True
            while accepted:
                accepted = any(self._accepts(candidate) for candidate in self._simpler_at(position))
                changed = changed or accepted
        return changed

    def _simpler_at(self, position: int) -> Iterator[Plan]:
        steps = self.best.steps()
        step = steps[position]
        variants = _simpler_operations(step) if isinstance(step, Operation) else _simpler_faults(step)
        for variant in variants:
            yield from_steps([*steps[:position], variant, *steps[position + 1 :]], self.best.topic_options)


def _simpler_operations(operation: Operation) -> Iterator[Operation]:
    if not operation.wait:
        yield msgspec.structs.replace(operation, wait=True)
    for params in _simpler_mappings(operation.params, may_drop=operation.verb != "seek"):
        yield msgspec.structs.replace(operation, params=params)


def _simpler_faults(fault: Fault) -> Iterator[Fault]:
    # An attribute left out is Toxiproxy's default, often "no effect": values shrink, names stay.
    for attributes in _simpler_mappings(fault.attributes, may_drop=False):
        yield msgspec.structs.replace(fault, attributes=attributes)


def _simpler_mappings(mapping: dict[str, Any], *, may_drop: bool) -> Iterator[dict[str, Any]]:
    if may_drop:
        for name in mapping:
            yield {key: value for key, value in mapping.items() if key != name}
    for name, value in mapping.items():
        for simpler in _simpler_values(name, value):
            yield {**mapping, name: simpler}


def _simpler_values(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, bool) or name.endswith("_ms"):
        # A shorter delay is not a simpler plan: a redelivery delay of nothing redelivers without end.
        return
    if isinstance(value, int):
        # Towards the least, and never below: each proposal is strictly smaller, so the search ends.
        least = 0 if name in _FROM_ZERO else 1
        # Of a large number the last per cent tells nobody anything and costs a run a byte.
        steps = (value // 2, value // 4, value // 16, 1 if value <= _EXACT else value // 64)
        for smaller in dict.fromkeys((least, *(value - step for step in steps))):
            if least <= smaller < value:
                yield smaller
    elif isinstance(value, dict):
        yield from _simpler_mappings(value, may_drop=True)
