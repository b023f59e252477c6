"""Judges stored histories again, whoever wrote them: no broker, no client, no run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import MappingProxyType

import msgspec

from harness import __version__
from harness.clauses.catalogue import Catalogue
from harness.clauses.requirements import exempted
from harness.gate.excerpt import excerpt
from harness.gate.result import Failure, GateResult, Pair
from harness.gate.run import clause_text
from harness.history.errors import HistoryError
from harness.history.event import Event
from harness.history.parquet import RunInfo, read_history, read_run_info
from harness.invariants.core import Anomaly, Undecided
from harness.invariants.engine import ClauseResult, InvariantFailed, Judge, Judgement
from harness.invariants.registry import all_invariants
from harness.known_failing import KnownFailure, listed_for
from harness.systems.product import product_of
from harness.tally import Tally
from harness.usage_error import UsageError
from harness.verdict import decide, missing_capabilities
from harness.worlds.plan import Plan

NEAR = 200
"""How many places around a witness event are read again for the excerpt."""

NOTHING_LISTED: Mapping[str, Sequence[KnownFailure]] = MappingProxyType({})


def parties(directories: Sequence[Path]) -> tuple[list[str], list[str]]:
    """The systems and the clients that run directories are of, each once. Raises ``UsageError``."""
    infos = [_run_info(directory) for directory in directories]
    keys = [_pair_of(info) for info in infos]
    return list(dict.fromkeys(system for system, _ in keys)), list(dict.fromkeys(client for _, client in keys))


def check(
    directories: Sequence[Path],
    catalogue: Catalogue,
    listed: Mapping[str, Sequence[KnownFailure]] = NOTHING_LISTED,
) -> GateResult:
    """The verdicts of run directories, those of one system and client taken together. Raises ``UsageError``.

    A directory given twice, by whatever path, is one run. ``listed`` holds known failures by what they are of, as
    ``harness.known_failing.listed_for`` takes them. None of them is ever stale here: some of the runs prove nothing.
    """
    began = monotonic()
    result = GateResult(
        title="check",
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        clauses={clause.id: clause_text(clause) for clause in catalogue},
        versions={"starquake": __version__},
    )
    pairs: dict[tuple[str, str], tuple[Pair, Tally, RunInfo]] = {}
    errors: dict[tuple[str, str], str] = {}
    for directory in _each_once(directories):
        info, judgement, events, error = _judged(directory)
        key = _pair_of(info)
        pair, tally, first = pairs.setdefault(key, (Pair(system=key[0], client=key[1]), Tally(), info))
        if _product(info) != _product(first):
            raise UsageError(
                f"{directory}: {key[0]} was {_product(info)} here and {_product(first)} in another of these runs;"
                " check them apart"
            )
        pair.examples += 1
        pair.events += events
        result.versions |= info.versions
        if error is not None:
            pair.errors.append(f"{directory}: {error}")
            errors.setdefault(key, error)
            continue
        tally.add(judgement)
        binding = [anomaly for anomaly in judgement.anomalies if not _unbound(catalogue, anomaly.clause, info)]
        _add_failures(result, directory, info, key, binding)
    for key, (pair, tally, info) in pairs.items():
        pair.system_version = info.versions.get(info.system, "")
        pair.client_version = info.versions.get(f"client {info.client}", "")
        known = listed_for(key[0], _product(info), key[1], listed)
        result.pairs.append(pair)
        result.cells += [
            decide(
                clause,
                tally.clauses.get(clause.id),
                system=key[0],
                client=key[1],
                system_capabilities=_capabilities(info, "system", clause.needs_system),
                client_capabilities=_capabilities(info, "client", clause.needs_client),
                known=known,
                exempt=_exempted(clause.id, info),
                harness_error=errors.get(key),
            )
            for clause in catalogue
        ]
    _accept(result)
    result.seconds = round(monotonic() - began, 3)
    return result


def _each_once(directories: Iterable[Path]) -> Iterable[Path]:
    once: dict[str, Path] = {}
    for directory in directories:
        once.setdefault(os.path.realpath(directory), directory)
    return once.values()


def _run_info(directory: Path) -> RunInfo:
    try:
        return read_run_info(directory)
    except HistoryError as error:
        raise UsageError(str(error)) from error


def _pair_of(info: RunInfo) -> tuple[str, str]:
    return info.system or "unnamed system", info.client or "unnamed client"


def _product(info: RunInfo) -> str:
    return product_of(_pair_of(info)[0], info.versions.get(info.system, ""))


def _accept(result: GateResult) -> None:
    """Tell with the evidence of a breach, too, that somebody has accepted it."""
    accepted = {
        (cell.clause, breach.anomaly, cell.system, cell.client): breach
        for cell in result.cells
        for breach in cell.breaches
        if breach.accepted
    }
    for failure in result.failures:
        breach = accepted.get((failure.clause, failure.anomaly, failure.system, failure.client))
        if breach is not None:
            failure.accepted, failure.accepted_reason = breach.accepted, breach.reason


def _judged(directory: Path) -> tuple[RunInfo, Judgement, int, str | None]:
    """Run information, judgement, number of events, and the error when an invariant broke."""
    count = 0
    try:
        info = read_run_info(directory)
        judge = Judge(all_invariants())
        for event in read_history(directory):
            judge.observe(event)
            count += 1
        judgement = judge.finish()
        return info, judgement if info.cut_short is None else _undecided(judgement, info.cut_short), count, None
    except HistoryError as error:
        raise UsageError(str(error)) from error
    except InvariantFailed as error:
        return info, Judgement(), count, str(error)


def _undecided(judgement: Judgement, why: str) -> Judgement:
    """The judgement of a run that broke off: what looks like a breach may be what broke it, so nothing is decided."""
    reason = f"the run was cut short: {(why.splitlines() or ['no reason is given'])[0]}"
    return Judgement(
        results={
            clause: ClauseResult(
                undecided=[Undecided(clause=clause, key=(), reason=reason)],
                undecided_total=result.judged + result.undecided_total,
            )
            for clause, result in judgement.results.items()
            if result.judged or result.undecided_total
        }
    )


def _capabilities(info: RunInfo, side: str, needed: Sequence[str]) -> Sequence[str]:
    """What a run says its system or client can; a tool that says nothing of it is taken to have what is needed."""
    return info.capabilities.get(side, needed)


def _unbound(catalogue: Catalogue, clause_id: str, info: RunInfo) -> bool:
    if clause_id not in catalogue:
        return False
    clause = catalogue[clause_id]
    system, client = (
        _capabilities(info, "system", clause.needs_system),
        _capabilities(info, "client", clause.needs_client),
    )
    return bool(_exempted(clause_id, info) or missing_capabilities(clause, system, client))


def _exempted(clause: str, info: RunInfo) -> str:
    # Other tools' settings may be of any type.
    configuration = {name: str(value) for name, value in info.configuration.items()}
    return exempted(clause, _product(info), info.versions.get(info.system, ""), configuration)


def _add_failures(
    result: GateResult, directory: Path, info: RunInfo, key: tuple[str, str], anomalies: Sequence[Anomaly]
) -> None:
    smallest: dict[tuple[str, str], Anomaly] = {}
    for anomaly in anomalies:
        name = (anomaly.clause, anomaly.name)
        if name not in smallest or len(anomaly.witness) < len(smallest[name].witness):
            smallest[name] = anomaly
    shown = {
        (failure.clause, failure.anomaly): failure
        for failure in result.failures
        if (failure.system, failure.client) == key
    }
    fresh: dict[tuple[str, str], Anomaly] = {}
    for name, anomaly in smallest.items():
        if name in shown:
            shown[name].runs += 1
        else:
            fresh[name] = anomaly
    if not fresh:
        return
    nearby = _nearby(directory, fresh.values())
    for anomaly in fresh.values():
        part = excerpt(nearby, anomaly)
        result.failures.append(
            Failure(
                clause=anomaly.clause,
                anomaly=anomaly.name,
                system=key[0],
                client=key[1],
                message=anomaly.message,
                severity=anomaly.severity,
                found_by=f"history {directory}",
                excerpt=part,
                plan=_plan(info),
                replay=f"starquake check {directory}",
                history=str(directory),
            )
        )


def _nearby(directory: Path, anomalies: Iterable[Anomaly]) -> list[Event]:
    """A second pass that keeps only what an excerpt could show: a history may be larger than memory."""
    places = {index + offset for anomaly in anomalies for index in anomaly.witness for offset in range(-NEAR, NEAR + 1)}
    return [event for event in read_history(directory) if event.index in places or event.layer == "fault"]


def _plan(info: RunInfo) -> Plan:
    # Other tools write what they like here; a plan that is not ours is simply not shown.
    try:
        return msgspec.convert(info.plan, Plan)
    except msgspec.ValidationError:
        return Plan()
