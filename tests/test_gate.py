"""The gate on a world without a broker: what is tried, found, shrunk, stored and decided."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from fake_world import (
    CATALOGUE,
    FakeExploration,
    FakeSession,
    FakeWorld,
    Party,
    Silent,
    failing_plan,
    make_fake,
    passing_plan,
)

from harness.clauses.catalogue import Catalogue
from harness.clients.client import AdapterDied
from harness.gate.excerpt import MOST_EVENTS, excerpt
from harness.gate.profile import PROFILES
from harness.gate.result import GateResult, load, save
from harness.gate.run import Gate, Request
from harness.history.event import Event
from harness.invariants.core import Anomaly
from harness.known_failing import parse
from harness.seeds.seed import read
from harness.setup_error import SetupError
from harness.usage_error import UsageError
from harness.worlds.plan import Plan
from harness.worlds.world import Outcome

QUICK = replace(PROFILES["smoke"], explore_seconds=20, chunk=2, examples=4, failure_seconds=20, shrink_seconds=10)
PLANS = [("dedup-cut", failing_plan()), ("dedup-calm", passing_plan())]


def run_gate(tmp_path, world: FakeWorld, plans=PLANS, known: str = "", select: str = "*", **options) -> GateResult:
    request = Request(
        systems=["lite"], clients=["reference"], profile=options.pop("profile", QUICK), select=select,
        known={"lite": parse(known, "k")}, report=tmp_path, seed=7,
    )  # fmt: skip
    exploration = options.pop("exploration", None) or FakeExploration(plans)
    return Gate(
        request, catalogue=options.pop("catalogue", CATALOGUE), exploration=exploration, make_world=make_fake(world),
        seeds=options.pop("seeds", []), watcher=options.pop("watcher", Silent()),
    ).run()  # fmt: skip


def verdicts(result: GateResult) -> dict[str, str]:
    return {cell.clause: cell.verdict for cell in result.cells}


def test_a_new_failure_is_shrunk_measured_and_stored(tmp_path) -> None:
    world = FakeWorld()
    result = run_gate(tmp_path, world)
    assert verdicts(result) == {"KEPT-01": "fail", "KEPT-02": "pass", "ASK-01": "unknown", "GATED-01": "n/a"}
    assert result.exit_code() == 1
    assert not world.running
    (failure,) = result.failures
    assert failure.found_by == "dedup-cut"
    assert (failure.steps_found, len(failure.plan.steps())) == (10, 3)
    assert (failure.rate.failed, failure.rate.tries) == (QUICK.tries, QUICK.tries)
    seed = read(tmp_path / "seeds" / f"{failure.seed}.json")
    assert seed.plan() == failure.plan
    assert (seed.system, seed.client, seed.expect.anomaly) == ("lite", "reference", "lost-send")
    assert failure.replay == f"starquake replay {failure.seed_path}"
    assert result.cells[0].breaches[0].seed == failure.seed
    assert [event.kind for event in failure.excerpt.events if event.index in failure.excerpt.witness] == [
        "cut", "send", "SEND",
    ]  # fmt: skip


def test_a_failure_that_does_not_show_again_is_stored_as_found_and_says_so(tmp_path) -> None:
    result = run_gate(tmp_path, FakeWorld(loses=lambda run: run == 1))
    (failure,) = result.failures
    assert failure.plan == failing_plan()
    assert (failure.rate.failed, failure.rate.tries) == (0, 3)
    assert "did not show again in 3 runs" in failure.shrink_note
    assert result.exit_code() == 1


def test_an_unsteady_failure_is_shrunk_and_its_rate_is_honest(tmp_path) -> None:
    result = run_gate(tmp_path, FakeWorld(loses=lambda run: run % 2 == 1))
    (failure,) = result.failures
    assert len(failure.plan.steps()) == 3
    assert 0 < failure.rate.failed < failure.rate.tries


def test_without_time_nothing_more_is_run(tmp_path) -> None:
    world = FakeWorld()
    result = run_gate(tmp_path, world, profile=replace(QUICK, failure_seconds=0, explore_seconds=0))
    (failure,) = result.failures
    assert world.runs == len(PLANS)
    assert failure.rate is None
    assert failure.plan == failing_plan()
    assert read(tmp_path / "seeds" / f"{failure.seed}.json").rate.tries == 0


def test_known_failures_keep_the_run_green_and_are_not_shrunk(tmp_path) -> None:
    known = "lite | reference | KEPT-01 | lost-send | known | issue 7"
    result = run_gate(tmp_path, FakeWorld(), known=known)
    assert verdicts(result)["KEPT-01"] == "known"
    assert result.exit_code() == 0
    (failure,) = result.failures
    assert (failure.accepted, failure.accepted_reason) == ("known", "issue 7")
    # Not shrunk and not measured, but as easy to see again as a new one.
    assert (failure.plan, failure.rate) == (failing_plan(), None)
    assert failure.replay == f"starquake replay {tmp_path / 'seeds' / str(failure.seed)}.json"
    assert read(tmp_path / "seeds" / f"{failure.seed}.json").plan() == failing_plan()


def test_a_known_failure_points_at_its_stored_seed(tmp_path) -> None:
    known = "lite | reference | KEPT-01 | lost-send | known | issue 7"
    first = run_gate(tmp_path / "first", FakeWorld(), known=known)
    stored = read(Path(first.failures[0].seed_path or ""))
    (failure,) = run_gate(tmp_path / "second", FakeWorld(), known=known, seeds=[stored]).failures
    assert (failure.seed, failure.replay) == (stored.id, f"starquake replay {stored.id}")
    elsewhere = msgspec.structs.replace(stored, client="python")
    (failure,) = run_gate(tmp_path / "third", FakeWorld(), known=known, seeds=[elsewhere]).failures
    assert failure.replay == f"starquake replay {stored.id} --client reference"
    assert not (tmp_path / "third" / "seeds").exists()


def test_nothing_is_stale_in_a_run_that_was_cut_short_or_had_trouble_of_its_own(tmp_path) -> None:
    known = "lite | reference | KEPT-02 | swapped | known | issue 8"
    broken = Outcome(judgement=FakeWorld().open(passing_plan()).finish().judgement, events=0, history=[], error="ours")

    class Troubled(FakeExploration):
        def explore(self, family, world, examples, steps, seed, on_outcome) -> None:  # type: ignore[no-untyped-def]
            on_outcome(passing_plan(), broken)

    assert run_gate(tmp_path / "calm", FakeWorld(), known=known).stale == 1
    assert run_gate(tmp_path / "trouble", FakeWorld(), known=known, exploration=Troubled(PLANS)).stale == 0
    assert run_gate(tmp_path / "cut", FakeWorld(interrupt_after=2), known=known).stale == 0


def test_what_was_not_selected_is_not_told(tmp_path) -> None:
    watcher = Silent()
    run_gate(tmp_path, FakeWorld(), select="KEPT-02", watcher=watcher)
    assert "new" not in watcher.told


def test_a_known_failure_that_passes_turns_the_run_red(tmp_path) -> None:
    known = "lite | reference | KEPT-01 | lost-send | known | issue 7"
    result = run_gate(tmp_path, FakeWorld(loses=lambda _: False), known=known)
    assert result.stale == 1
    assert result.exit_code() == 1


def test_another_anomaly_of_a_known_clause_is_new(tmp_path) -> None:
    result = run_gate(tmp_path, FakeWorld(), known="lite | reference | KEPT-01 | other | known | issue 7")
    assert verdicts(result)["KEPT-01"] == "fail"
    assert result.cells[0].stale
    assert result.failures[0].accepted == ""


def test_selection_judges_only_what_it_names(tmp_path) -> None:
    result = run_gate(tmp_path, FakeWorld(), select="KEPT-02")
    assert verdicts(result) == {"KEPT-02": "pass"}
    assert result.failures == []
    assert result.exit_code() == 0


def test_a_harness_error_is_nobodys_breach(tmp_path) -> None:
    result = run_gate(tmp_path, FakeWorld(error="the adapter died"))
    assert verdicts(result)["KEPT-01"] == "error"
    assert result.failures == []
    assert result.exit_code() == 3


class Dying(FakeWorld):
    """The client's process ends in some runs: each says so in the words of ``ends``, and a fresh one takes over."""

    def __init__(self, ends: dict[int, str]) -> None:
        super().__init__(loses=lambda _: False)
        self.ends = ends

    def open(self, plan: Plan | None = None, *, alone: bool = False) -> FakeSession:
        self.error = self.ends.get(self.runs + 1)
        return DyingSession(self)


class DyingSession(FakeSession):
    def finish(self) -> Outcome:
        outcome = super().finish()
        return msgspec.structs.replace(outcome, client_ended=outcome.error is not None)


def test_the_end_of_a_client_is_said_once_and_the_rest_is_tried(tmp_path) -> None:
    end = "toy (process 7) ended by signal 11 (SIGSEGV)"
    world = Dying(dict.fromkeys(range(1, 5), end))
    result = run_gate(tmp_path, world)
    assert result.pairs[0].errors == [end]
    assert (verdicts(result)["KEPT-01"], verdicts(result)["ASK-01"]) == ("error", "unknown")
    assert result.exit_code() == 3
    # Two directed plans, and every example of both families, though more runs failed than end an exploration.
    assert world.runs == 2 + 2 * QUICK.examples


def test_each_end_of_a_client_is_told(tmp_path) -> None:
    result = run_gate(tmp_path, Dying({1: "process 7 ended", 2: "process 8 ended"}))
    assert result.pairs[0].errors == ["process 7 ended", "process 8 ended"]
    assert (verdicts(result)["KEPT-01"], verdicts(result)["ASK-01"]) == ("error", "unknown")
    assert result.exit_code() == 3


def test_an_exploration_that_breaks_is_recorded_with_its_traceback(tmp_path) -> None:
    broken = FakeExploration(PLANS[1:], explore_error=ZeroDivisionError("oops"))
    result = run_gate(tmp_path, FakeWorld(), exploration=broken)
    assert verdicts(result)["KEPT-01"] == "error"
    assert result.exit_code() == 3
    assert "ZeroDivisionError: oops" in (tmp_path / "harness-errors.log").read_text()


def test_an_adapter_that_does_not_start_is_an_error_of_every_clause(tmp_path) -> None:
    result = run_gate(tmp_path, FakeWorld(fails_to_start=AdapterDied("exit status 1")))
    assert set(verdicts(result).values()) == {"error"}
    assert result.exit_code() == 3


CHUNKS = Catalogue(
    {"CHUNK-08": msgspec.structs.replace(CATALOGUE["KEPT-01"], id="CHUNK-08"), "KEPT-02": CATALOGUE["KEPT-02"]}
)


class Pieces(FakeWorld):
    """What else is a lost send, told of CHUNK-08, on a broker of this version."""

    def __init__(self, version: str) -> None:
        super().__init__()
        self.system = Party(f"pulsar@{version}", version, frozenset(), f"pulsar@{version}")

    def open(self, plan: Plan | None = None, *, alone: bool = False) -> FakeSession:
        return PiecesSession(self)


class PiecesSession(FakeSession):
    def finish(self) -> Outcome:
        outcome = super().finish()
        found = outcome.judgement.results.pop("KEPT-01")
        renamed = [msgspec.structs.replace(anomaly, clause="CHUNK-08") for anomaly in found.anomalies]
        outcome.judgement.results["CHUNK-08"] = msgspec.structs.replace(found, anomalies=renamed)
        return outcome


def test_what_a_version_never_promised_is_not_held_against_it(tmp_path) -> None:
    watcher = Silent()
    result = run_gate(tmp_path / "old", Pieces("2.10.5"), catalogue=CHUNKS, watcher=watcher)
    assert verdicts(result) == {"CHUNK-08": "n/a", "KEPT-02": "pass"}
    assert result.cells[0].reason.startswith("Pulsar 2.10: chunked messages")
    assert (result.failures, result.exit_code()) == ([], 0)
    assert "new" not in watcher.told
    result = run_gate(tmp_path / "new", Pieces("2.11.0"), catalogue=CHUNKS)
    assert verdicts(result)["CHUNK-08"] == "fail"


def test_a_missing_environment_is_told_and_judges_nothing(tmp_path) -> None:
    result = run_gate(tmp_path, FakeWorld(fails_to_start=SetupError("no toxiproxy", "install it")))
    assert result.cells == []
    assert "install it" in result.pairs[0].setup_error
    assert result.exit_code() == 2


def test_an_interrupted_run_tells_what_it_has(tmp_path) -> None:
    world = FakeWorld(interrupt_after=2)
    result = run_gate(tmp_path, world)
    assert result.interrupted
    assert result.exit_code() == 130
    assert verdicts(result)["KEPT-01"] == "fail"
    assert result.failures[0].seed is not None
    assert not world.running


def test_exploration_is_a_function_of_the_seed(tmp_path) -> None:
    first, second = FakeExploration([]), FakeExploration([])
    run_gate(tmp_path / "a", FakeWorld(), exploration=first)
    run_gate(tmp_path / "b", FakeWorld(), exploration=second)
    assert first.seeds == second.seeds
    assert len(set(first.seeds)) == len(first.seeds) == 4


def test_stored_seeds_of_the_pair_are_replayed(tmp_path) -> None:
    found = run_gate(tmp_path / "first", FakeWorld())
    seed = read(tmp_path / "first" / "seeds" / f"{found.failures[0].seed}.json")
    watcher = Silent()
    again = run_gate(tmp_path / "second", FakeWorld(), plans=PLANS[1:], seeds=[seed], watcher=watcher)
    assert again.failures[0].found_by == f"seed {seed.id}"
    assert "new" in watcher.told
    other = msgspec.structs.replace(seed, client="python")
    assert run_gate(tmp_path / "third", FakeWorld(), plans=PLANS[1:], seeds=[other]).failures == []


def test_a_result_survives_its_file(tmp_path) -> None:
    result = run_gate(tmp_path, FakeWorld())
    save(result, tmp_path)
    assert msgspec.json.encode(load(tmp_path)) == msgspec.json.encode(result)


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 9}', '{"schema": 1}'])
def test_a_broken_result_is_refused(tmp_path, content: str) -> None:
    (tmp_path / "gate.json").write_text(content)
    with pytest.raises(UsageError, match=r"gate\.json"):
        load(tmp_path)


def test_an_excerpt_keeps_witness_and_faults_and_says_what_it_left_out() -> None:
    history = [Event(index=n, kind="SEND", topic="t" if n % 2 else "other") for n in range(500)]
    history[3] = Event(index=3, layer="fault", kind="cut")
    part = excerpt(history, Anomaly(name="x", clause="C", key=(), message="", witness=(100, 401)))
    indices = [event.index for event in part.events]
    assert indices == sorted(indices)
    assert {3, 100, 401} <= set(indices)
    assert len(indices) == MOST_EVENTS
    assert part.left_out == 500 - MOST_EVENTS


def test_ctrl_c_while_shrinking_stores_the_failure_as_found(tmp_path) -> None:
    world = FakeWorld(interrupt_after=12)
    result = run_gate(tmp_path, world, profile=replace(QUICK, explore_seconds=0))
    assert result.exit_code() == 130
    (failure,) = result.failures
    assert failure.plan == failing_plan()
    assert read(tmp_path / "seeds" / f"{failure.seed}.json").plan() == failing_plan()
