"""Several gate results as one: a nightly job a version, and one page of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from harness.gate.result import ClauseText, Excerpt, Failure, GateResult, Pair
from harness.usage_error import UsageError
from harness.worlds.plan import Plan

_NUMBERS = re.compile(r"\d+")


def merge(results: Sequence[GateResult]) -> GateResult:
    """One result with the pairs of all, versions of a product in their order. Raises ``UsageError`` for a pair twice.

    The evidence of an accepted failure is kept once for each client: a broker's old defect looks alike in every version
    that has it. What differs between the results (profile, seed, version of the harness) is told side by side.
    """
    pairs = _ordered([pair for result in results for pair in result.pairs])
    places = {(pair.system, pair.client): place for place, pair in enumerate(pairs)}
    if len(places) < len(pairs):
        twice = next(key for key in places if sum((pair.system, pair.client) == key for pair in pairs) > 1)
        raise UsageError(f"two of these results are of {twice[0]} x {twice[1]}; merge one of them")
    seeds = {result.seed for result in results}
    clauses: dict[str, ClauseText] = {}
    for result in results:
        for clause, text in result.clauses.items():
            clauses.setdefault(clause, text)
    return GateResult(
        title=_joined(result.title for result in results),
        started=min(result.started for result in results),
        seconds=round(sum(result.seconds for result in results), 3),
        profile=_joined(result.profile for result in results),
        seed=seeds.pop() if len(seeds) == 1 else None,
        select=_joined(result.select for result in results),
        versions={
            name: _joined(result.versions[name] for result in results if name in result.versions)
            for name in dict.fromkeys(name for result in results for name in result.versions)
        },
        clauses=clauses,
        pairs=pairs,
        cells=sorted(
            (cell for result in results for cell in result.cells), key=lambda cell: places[cell.system, cell.client]
        ),
        failures=_with_evidence_once(
            sorted(
                (failure for result in results for failure in result.failures),
                key=lambda failure: places[failure.system, failure.client],
            )
        ),
        interrupted=any(result.interrupted for result in results),
    )


def _ordered(pairs: Sequence[Pair]) -> list[Pair]:
    """By product as they come, by the numbers of their versions, and by client as they come."""
    products = list(dict.fromkeys(pair.system.partition("@")[0] for pair in pairs))
    clients = list(dict.fromkeys(pair.client for pair in pairs))

    def place(pair: Pair) -> tuple[int, list[int], str, int]:
        product, _, version = pair.system.partition("@")
        numbers = [int(number) for number in _NUMBERS.findall(version)]
        return products.index(product), numbers, version, clients.index(pair.client)

    return sorted(pairs, key=place)


def _joined(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _with_evidence_once(failures: Iterable[Failure]) -> list[Failure]:
    shown: set[tuple[str, str, str]] = set()
    kept = []
    for failure in failures:
        key = (failure.clause, failure.anomaly, failure.client)
        if failure.accepted and key in shown:
            failure.excerpt, failure.plan = Excerpt(), Plan()
        elif failure.accepted:
            shown.add(key)
        kept.append(failure)
    return kept
