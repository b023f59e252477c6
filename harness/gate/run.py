"""Runs the gate: directed plans and stored seeds first, then random exploration while there is time, pair by pair."""

from __future__ import annotations

import shutil
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from itertools import count
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Protocol

from harness import __version__
from harness.clauses.catalogue import Catalogue, Clause
from harness.clauses.requirements import exempted
from harness.clients.client import AdapterError
from harness.gate.finding import Finding, Findings
from harness.gate.investigation import Investigator
from harness.gate.lanes import together
from harness.gate.profile import Profile
from harness.gate.result import ClauseText, Failure, GateResult, Pair
from harness.known_failing import KnownFailure, listed_for
from harness.seeds.seed import Expectation, Seed
from harness.setup_error import SetupError
from harness.tally import Tally
from harness.verdict import Cell, decide, mark_stale, missing_capabilities
from harness.worlds.broken import WorldBroken, WorldStopped
from harness.worlds.plan import Plan
from harness.worlds.world import Outcome, World, run_plan

ERRORS_BEFORE_GIVING_UP = 3
"""Runs in which the harness failed after which a pair's random exploration ends: the next ones would tell the same."""

PASSING_HISTORIES_KEPT = 200
"""Histories of runs without a finding that stay on disk in one pair; a nightly run would fill it otherwise."""


ERROR_LOG = "harness-errors.log"

ERROR_LINES = 4
"""Lines of an error that verdicts quote: the first, which says what, and the last ones, which often say why."""


class Watcher(Protocol):
    """Whoever shows the progress of a gate run to a person."""

    def pair(self, system: str, client: str) -> None:
        """A pair is being started."""

    def activity(self, text: str) -> None:
        """What is being done right now, in a few words."""

    def progress(self, family: str, runs: int, tally: Tally) -> None:
        """One more run of a family is judged; ``tally`` is that of the pair."""

    def finding(self, finding: Finding, accepted: str) -> None:
        """A (clause, anomaly) was seen for the first time in this pair; ``accepted`` is '', 'known' or 'flaky'."""


class Exploration(Protocol):
    """What the gate needs of the state machines: see ``properties.explore``."""

    @property
    def families(self) -> Sequence[str]:
        """Names of the families, in the order in which they run."""

    def directed(self, family: str, profile: str) -> list[tuple[str, Plan]]:
        """The committed plans of a family that a profile carries out."""

    def explore(
        self,
        family: str,
        world: World,
        examples: int,
        steps: int,
        seed: int,
        on_outcome: Callable[[Plan, Outcome], None],
    ) -> None:
        """Draw and carry out plans."""


MakeWorld = Callable[[str, str, Path, Callable[[str], None]], World]


@dataclass(frozen=True, slots=True)
class Request:
    """What to run. ``known`` holds the known failures by what they are of: a client, or a product (a system's own name
    or what it turns out to be). ``seed`` is the base of all randomness. ``thorough``: what is tried puts every known
    failure to the test, so that one which did not show is stale."""

    systems: Sequence[str]
    clients: Sequence[str]
    profile: Profile
    select: str
    known: dict[str, list[KnownFailure]]
    report: Path
    seed: int
    thorough: bool = True


@dataclass(slots=True)
class _PairRun:
    """What is gathered while one pair runs.

    What the system is, and so what it is ``exempt`` from and what is ``unbound``, is known once it ``started``.
    """

    pair: Pair
    started: bool = False
    product: str = ""
    known: list[KnownFailure] = field(default_factory=list)
    exempt: dict[str, str] = field(default_factory=dict)
    unbound: frozenset[str] = frozenset()
    tally: Tally = field(default_factory=Tally)
    findings: Findings = field(default_factory=Findings)
    family_errors: dict[str, str] = field(default_factory=dict)
    failed_runs: int = 0
    passing: deque[Path] = field(default_factory=deque)
    told: set[Expectation] = field(default_factory=set)


class Gate:
    """One gate run. ``seeds`` are stored reproductions, replayed with the pair they were found in."""

    def __init__(
        self,
        request: Request,
        *,
        catalogue: Catalogue,
        exploration: Exploration,
        make_world: MakeWorld,
        seeds: Sequence[Seed],
        watcher: Watcher,
    ) -> None:
        self._request = request
        self._selected = [clause for clause in catalogue if fnmatchcase(clause.id, request.select)]
        self._exploration = exploration
        self._make_world = make_world
        self._seeds = seeds
        self._clauses = frozenset(clause.id for clause in self._selected)
        self._watcher = watcher
        self._started = monotonic()
        # Plans run side by side where the world has lanes for it; what they find is gathered one by one.
        self._lock = RLock()
        self._known: dict[str, dict[str, KnownFailure]] = {}

    def run(self) -> GateResult:
        """Run every pair. Ctrl-C ends it early with what was judged so far; a missing environment ends one pair.

        Raises whatever ``make_world`` raises for a system or client it does not know, before anything is started.
        """
        request = self._request
        result = GateResult(
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            profile=request.profile.name,
            seed=request.seed,
            select=request.select,
            versions={"starquake": __version__},
            clauses={clause.id: clause_text(clause) for clause in self._selected},
        )
        # All worlds before any starts: a name nobody knows should not cost the time of the pairs before it.
        worlds = [
            (system, client, self._make_world(system, client, request.report / "runs", self._watcher.activity))
            for system in request.systems
            for client in request.clients
        ]
        for number, (system, client, world) in enumerate(worlds):
            self._run_pair(result, system, client, world, pairs_left=len(worlds) - number)
            if result.interrupted:
                break
        for system, known in self._known.items():
            # What was cut short or hit by trouble of our own did not put every entry to the test.
            pairs = [pair for pair in result.pairs if pair.system == system]
            if (
                request.thorough
                and not result.interrupted
                and not any(pair.errors or pair.setup_error for pair in pairs)
            ):
                cells = [cell for cell in result.cells if cell.system == system]
                mark_stale(cells, known.values(), request.profile.name)
        result.seconds = round(monotonic() - self._started, 3)
        return result

    def _run_pair(self, result: GateResult, system: str, client: str, world: World, pairs_left: int) -> None:
        watcher, began = self._watcher, monotonic()
        run = _PairRun(Pair(system=system, client=client))
        result.pairs.append(run.pair)
        watcher.pair(system, client)
        try:
            try:
                world.start()
                self._note_start(result, run, world)
                self._try_everything(run, world, pairs_left)
            except KeyboardInterrupt:
                result.interrupted = True
            except SetupError as error:
                run.pair.setup_error = str(error)
                if run.started:
                    # The disk filled up, say: what was judged before stands, the rest was not put to the test.
                    run.family_errors[""] = str(error)
            except Exception as error:  # the harness's own failure: a verdict of its own, never the system's
                self._harness_failed(run, "", error)
            cells = self._cells(run, world) if run.started or not run.pair.setup_error else []
            result.cells.extend(cells)
            # The list takes them one by one, so that Ctrl-C while shrinking keeps those before it.
            try:
                stop = result.interrupted or "" in run.family_errors
                result.failures.extend(self._failures(run, world, cells, pairs_left, stop=stop))
            except KeyboardInterrupt:
                result.interrupted = True
                result.failures.extend(self._failures(run, world, cells, pairs_left, stop=True))
        finally:
            try:
                world.stop()
            except KeyboardInterrupt:
                result.interrupted = True
            except Exception as error:  # what was judged stands; that something may be left running is said
                self._harness_failed(run, "", error)
            run.pair.seconds = round(monotonic() - began, 3)

    def _note_start(self, result: GateResult, run: _PairRun, world: World) -> None:
        run.started = True
        pair = run.pair
        run.product = world.system.product
        run.known = listed_for(pair.system, run.product, pair.client, self._request.known)
        self._known.setdefault(pair.system, {}).update({entry.place: entry for entry in run.known})
        pair.system_version, pair.client_version = world.system.version, world.client.version
        run.exempt = {
            clause.id: exempted(clause.id, run.product, world.system.version, world.system.configuration)
            for clause in self._selected
        }
        run.unbound = frozenset(
            clause.id
            for clause in self._selected
            if run.exempt[clause.id]
            or missing_capabilities(clause, world.system.capabilities, world.client.capabilities)
        )
        result.versions[f"system {pair.system}"] = world.system.version
        result.versions[f"client {pair.client}"] = world.client.version

    # --- trying ---------------------------------------------------------------------------------------------------

    def _families(self) -> Sequence[str]:
        """The families with a selected clause, and all of them when a clause of every family (delivery) is selected."""
        wanted: set[str] = {clause.family for clause in self._selected}
        present = [family for family in self._exploration.families if family in wanted]
        return present if wanted <= set(present) else self._exploration.families

    def _try_everything(self, run: _PairRun, world: World, pairs_left: int) -> None:
        profile = self._request.profile
        families = self._families()
        runs = dict.fromkeys(families, 0)
        # Those that need the broker alone come last and together, so that the others are kept waiting once only.
        directed = sorted(self._directed(run, families), key=lambda named: named[2].needs_alone)
        work = [
            partial(self._guarded, run, family, partial(self._directed_run, run, runs, world, family, name, plan))
            for family, name, plan in directed
        ]
        first = self._exploring(run, runs, world, families, 0) if profile.explore_seconds > 0 else []
        # One piece of exploration is several examples one after another: begun first, it does not end last.
        self._together(run, world, [*first, *work] if world.lanes > 1 else [*work, *first])
        left = max(0.0, self._started + profile.explore_seconds - monotonic())
        ends = monotonic() + left / pairs_left
        # As many pieces of each family as the world has lanes for; a slow family alone would leave it idle otherwise.
        side = max(1, world.lanes // len(families))
        for begun in count(1, side):
            chunks = [chunk for chunk in range(begun, begun + side) if chunk * profile.chunk < profile.examples]
            if not chunks or monotonic() >= ends or run.failed_runs >= ERRORS_BEFORE_GIVING_UP:
                return
            pieces = [piece for chunk in chunks for piece in self._exploring(run, runs, world, families, chunk)]
            self._together(run, world, pieces)

    def _together(self, run: _PairRun, world: World, work: Sequence[Callable[[], None]]) -> None:
        together(world.lanes, work, world.stop)

    def _exploring(
        self, run: _PairRun, runs: dict[str, int], world: World, families: Sequence[str], chunk: int
    ) -> list[Callable[[], None]]:
        return [
            partial(self._guarded, run, family, partial(self._explore, run, runs, world, family, chunk))
            for family in families
        ]

    def _directed_run(
        self, run: _PairRun, runs: dict[str, int], world: World, family: str, name: str, plan: Plan
    ) -> None:
        self._watcher.activity(name)
        outcome = run_plan(world, plan)
        with self._lock:
            run.pair.directed += 1
        self._take(run, runs, family, plan, outcome, name)

    def _directed(self, run: _PairRun, families: Sequence[str]) -> list[tuple[str, str, Plan]]:
        profile = self._request.profile.name
        plans = [
            (family, name, plan) for family in families for name, plan in self._exploration.directed(family, profile)
        ]
        family_of = {clause.id: clause.family for clause in self._selected}
        plans += [
            (str(family_of[seed.expect.clause]), f"seed {seed.id}", seed.plan())
            for seed in self._seeds
            if seed.expect.clause in family_of
            and (seed.system, seed.client) in ((run.product, run.pair.client), (run.pair.system, run.pair.client))
        ]
        return plans

    def _explore(self, run: _PairRun, runs: dict[str, int], world: World, family: str, chunk: int) -> None:
        profile = self._request.profile
        seed = zlib.crc32(f"{self._request.seed}/{family}/{chunk}".encode())
        self._watcher.activity(f"exploring {family}")

        def judged(plan: Plan, outcome: Outcome) -> None:
            with self._lock:
                run.pair.examples += 1
            self._take(run, runs, family, plan, outcome, f"random example of {family} (--seed {self._request.seed})")

        self._exploration.explore(family, world, profile.chunk, profile.steps, seed, judged)

    def _take(
        self, run: _PairRun, runs: dict[str, int], family: str, plan: Plan, outcome: Outcome, found_by: str
    ) -> None:
        with self._lock:
            runs[family] = runs.get(family, 0) + 1
            run.pair.events += outcome.events
            if outcome.error is not None:
                whole = f"{found_by}: {outcome.error}"
                self._note_error(run, family, outcome.error, whole, goes_on=outcome.client_ended)
            else:
                run.tally.add(outcome.judgement)
                for finding in run.findings.add(plan, outcome, found_by):
                    if finding.expect.clause in run.unbound or finding.expect.clause not in self._clauses:
                        continue
                    self._watcher.finding(finding, self._accepted(run, finding)[0])
            if outcome.error is None and not outcome.judgement.anomalies and outcome.directory is not None:
                run.passing.append(outcome.directory)
                if len(run.passing) > PASSING_HISTORIES_KEPT:
                    shutil.rmtree(run.passing.popleft(), ignore_errors=True)
            self._watcher.progress(family, runs[family], run.tally)

    def _guarded(self, run: _PairRun, family: str, work: Callable[[], None]) -> None:
        """Keep the harness's own failure in one family from ending the others, unless they would all tell the same."""
        try:
            work()
        except (SetupError, WorldBroken):
            raise
        except WorldStopped:
            # Ctrl-C: the plan that was under way proves nothing, and is nobody's error.
            return
        except Exception as error:
            self._harness_failed(run, family, error)

    def _harness_failed(self, run: _PairRun, family: str, error: Exception) -> None:
        said = str(error) if isinstance(error, (AdapterError, WorldBroken)) else f"{type(error).__name__}: {error}"
        self._note_error(run, family, said, "".join(traceback.format_exception(error)))

    def _note_error(self, run: _PairRun, family: str, said: str, whole: str, *, goes_on: bool = False) -> None:
        """Keep an error of the harness: in few lines for the verdicts, whole in a log for whoever mends it.

        ``goes_on``: one end of the client, told by every run that was under way in it; the world itself knows when
        there have been too many.
        """
        short = _shortened(said)
        with self._lock:
            if not (goes_on and short in run.pair.errors):
                run.pair.errors.append(short)
            run.failed_runs += not goes_on
            run.family_errors.setdefault(family, short)
            # Where even the log cannot be written, the error itself is still told.
            with suppress(OSError), (self._request.report / ERROR_LOG).open("a", encoding="utf-8") as log:
                log.write(f"{run.pair.system} x {run.pair.client} {family}\n{whole}\n\n")

    # --- deciding -------------------------------------------------------------------------------------------------

    def _cells(self, run: _PairRun, world: World) -> list[Cell]:
        # An error outside any family ('') may have hidden something in each.
        everywhere = run.family_errors.get("")
        system, client = run.pair.system, run.pair.client
        if not run.started:
            return [
                Cell(
                    clause=clause.id,
                    family=clause.family,
                    title=clause.title,
                    system=system,
                    client=client,
                    verdict="unknown" if everywhere is None else "error",
                    reason=everywhere or "interrupted",
                )
                for clause in self._selected
            ]
        return [
            decide(
                clause,
                run.tally.clauses.get(clause.id),
                system=system,
                client=client,
                system_capabilities=world.system.capabilities,
                client_capabilities=world.client.capabilities,
                known=run.known,
                exempt=run.exempt[clause.id],
                harness_error=self._error_for(clause, run),
            )
            for clause in self._selected
        ]

    def _error_for(self, clause: Clause, run: _PairRun) -> str | None:
        """The error that may have hidden a breach of the clause; rules of no single family are tried in all of them."""
        own = run.family_errors.get(clause.family, run.family_errors.get(""))
        if own is None and clause.family not in self._exploration.families:
            own = next(iter(run.family_errors.values()), None)
        return own

    def _accepted(self, run: _PairRun, finding: Finding) -> tuple[str, str]:
        for entry in run.known:
            if entry.covers(run.pair.system, run.pair.client, finding.expect.clause) and entry.allows(
                finding.expect.anomaly
            ):
                return entry.status, entry.reason
        return "", ""

    def _failures(
        self, run: _PairRun, world: World, cells: list[Cell], pairs_left: int, *, stop: bool
    ) -> Iterator[Failure]:
        """Evidence of every breach of a selected clause; a new one is investigated while there is time."""
        profile = self._request.profile
        investigator = Investigator(world, profile, run.pair.system, run.pair.client, _versions(run.pair))
        breaches = {(cell.clause, breach.anomaly): breach for cell in cells for breach in cell.breaches}
        findings = [
            finding
            for expect, finding in run.findings.by_expectation.items()
            if (expect.clause, expect.anomaly) in breaches and expect not in run.told
        ]
        began = monotonic()
        allowance = 0.0 if stop else profile.failure_seconds / pairs_left
        new = [finding for finding in findings if not breaches[finding.expect.clause, finding.expect.anomaly].accepted]
        for position, finding in enumerate(new):
            self._watcher.activity(f"shrinking {finding.expect.clause} {finding.expect.anomaly}")
            share = max(0.0, allowance - (monotonic() - began)) / (len(new) - position)
            failure = self._investigate(run, investigator, finding, monotonic() + share)
            breaches[failure.clause, failure.anomaly].seed = failure.seed
            run.told.add(finding.expect)
            yield failure
        for finding in findings:
            breach = breaches[finding.expect.clause, finding.expect.anomaly]
            if breach.accepted:
                run.told.add(finding.expect)
                failure = investigator.accepted(
                    finding, breach.accepted, breach.reason, self._stored(run, finding.expect), self._seed_directory
                )
                breach.seed = failure.seed
                yield failure

    def _stored(self, run: _PairRun, expect: Expectation) -> Seed | None:
        """The stored reproduction of a failure, with this client if there is one, else with another."""
        fitting = [
            seed for seed in self._seeds if seed.expect == expect and seed.system in (run.product, run.pair.system)
        ]
        return min(fitting, key=lambda seed: seed.client != run.pair.client, default=None)

    @property
    def _seed_directory(self) -> Path:
        return self._request.report / "seeds"

    def _investigate(self, run: _PairRun, investigator: Investigator, finding: Finding, deadline: float) -> Failure:
        name = f"{finding.expect.clause} {finding.expect.anomaly}"
        seeds = self._seed_directory

        def watch(text: str) -> None:
            self._watcher.activity(f"shrinking {name}: {text}")

        try:
            try:
                return investigator.look_into(finding, deadline, seeds, watch)
            except OSError:
                raise
            except Exception as error:
                # The breach is proved already; what failed is making it smaller.
                self._harness_failed(run, "", error)
                return investigator.look_into(finding, 0.0, seeds, watch)
        except OSError as error:
            return investigator.unstored(finding, f"its seed could not be stored in {seeds}: {error.strerror or error}")


def clause_text(clause: Clause) -> ClauseText:
    """What a report quotes of a clause."""
    return ClauseText(
        id=clause.id,
        family=clause.family,
        title=clause.title,
        rule=clause.rule,
        binds=clause.binds,
        source=clause.source,
    )


def _shortened(error: str) -> str:
    lines = error.strip().splitlines()
    if len(lines) <= ERROR_LINES:
        return "\n".join(lines)
    return "\n".join([f"{lines[0]} (in full in {ERROR_LOG})", *lines[1 - ERROR_LINES :]])


def _versions(pair: Pair) -> dict[str, str]:
    return {
        "starquake": __version__,
        f"system {pair.system}": pair.system_version,
        f"client {pair.client}": pair.client_version,
    }
