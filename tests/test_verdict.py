"""The policy from judgements to verdicts, stale entries and exit codes."""

import pytest
from fake_world import CATALOGUE

from harness.invariants.core import Anomaly, Undecided
from harness.invariants.engine import ClauseResult, Judgement
from harness.known_failing import parse
from harness.tally import Tally
from harness.verdict import Cell, decide, exit_code, mark_stale


def tallied(*names: str, judged: int = 1, undecided: int = 0) -> Tally:
    anomalies = [Anomaly(name=name, clause="KEPT-01", key=(), message=f"{name}!", witness=(1,)) for name in names]
    questions = [Undecided(clause="KEPT-01", key=(), reason="cannot tell") for _ in range(undecided)]
    tally = Tally()
    tally.add(
        Judgement(
            results={
                "KEPT-01": ClauseResult(
                    judged=judged, anomalies=anomalies, undecided=questions, undecided_total=undecided
                )
            }
        )
    )
    return tally


def cell_of(tally: Tally, known: str = "", error: str | None = None, clause: str = "KEPT-01", exempt: str = "") -> Cell:
    return decide(
        CATALOGUE[clause], tally.clauses.get(clause), system="lite", client="python", system_capabilities=(),
        client_capabilities=(), known=parse(known, "k"), exempt=exempt, harness_error=error,
    )  # fmt: skip


LOST = "lite | python | KEPT-01 | lost | known | it is so"
RARE = "lite | python | KEPT-01 | rare | flaky 1/9 | it is so"


@pytest.mark.parametrize(
    ("tally", "known", "error", "verdict"),
    [
        (tallied(), "", None, "pass"),
        (tallied(undecided=2), "", None, "pass"),
        (tallied("lost"), "", None, "fail"),
        (tallied("lost"), LOST, None, "known"),
        (tallied("rare"), RARE, None, "flaky"),
        (tallied("lost", "rare"), f"{LOST}\n{RARE}", None, "known"),
        (tallied("lost", "other"), LOST, None, "fail"),
        (tallied(judged=0, undecided=1), "", None, "unknown"),
        (tallied(judged=0), "", None, "unknown"),
        (Tally(), "", None, "unknown"),
        (tallied(), "", "adapter died", "error"),
        (tallied("lost"), "", "adapter died", "fail"),
    ],
)
def test_verdict(tally: Tally, known: str, error: str | None, verdict: str) -> None:
    assert cell_of(tally, known, error).verdict == verdict


def test_a_capability_gate_is_not_green_and_says_why() -> None:
    cell = cell_of(tallied(), clause="GATED-01")
    assert (cell.verdict, cell.reason) == ("n/a", "the system lacks cursor_view")


def test_what_a_version_never_promised_is_no_failure_and_says_why() -> None:
    why = "Pulsar 2.10: made since 2.11 (PIP-37)"
    cell = cell_of(tallied("lost"), error="adapter died", exempt=why)
    assert (cell.verdict, cell.reason, cell.breaches) == ("n/a", why, [])
    assert cell_of(tallied(), clause="GATED-01", exempt=why).reason == why
    mark_stale([cell], parse(LOST, "k"), "nightly")
    assert not cell.red
    assert exit_code([cell], harness_errors=0) == 4


def test_unknown_gives_the_reason_of_the_history() -> None:
    assert cell_of(tallied(judged=0, undecided=1)).reason == "cannot tell"
    assert cell_of(Tally()).reason == "never put to the test in this run"


def test_a_known_failure_that_passes_is_stale_and_red() -> None:
    cell = cell_of(tallied(), LOST)
    mark_stale([cell], parse(LOST, "k"), "smoke")
    assert cell.verdict == "known"
    assert cell.stale == ["k:1: lost is listed as known and did not fail"]
    assert cell.red
    assert exit_code([cell], harness_errors=0) == 1


def test_an_entry_is_not_stale_when_nothing_was_judged_or_it_failed_elsewhere() -> None:
    wide = parse("* | * | KEPT-01 | lost | known | it is so", "k")
    silent = cell_of(Tally())
    mark_stale([silent], wide, "smoke")
    assert not silent.stale
    passing, failing = cell_of(tallied()), decide(
        CATALOGUE["KEPT-01"], tallied("lost").clauses["KEPT-01"], system="lite", client="java",
        system_capabilities=(), client_capabilities=(), known=wide,
    )  # fmt: skip
    mark_stale([passing, failing], wide, "smoke")
    assert not passing.stale
    assert not failing.stale


def test_a_flaky_entry_may_pass() -> None:
    cell = cell_of(tallied(), RARE)
    mark_stale([cell], parse(RARE, "k"), "nightly")
    assert cell.verdict == "pass"
    assert exit_code([cell], harness_errors=0) == 0


def test_exit_codes() -> None:
    passed, failed = cell_of(tallied()), cell_of(tallied("lost"))
    known, unknown = cell_of(tallied("lost"), LOST), cell_of(Tally())
    gated, error = cell_of(tallied(), clause="GATED-01"), cell_of(tallied(), error="oops")
    assert exit_code([passed, unknown, known], harness_errors=0) == 0
    assert exit_code([passed, failed, error], harness_errors=1) == 1
    assert exit_code([passed, error], harness_errors=1) == 3
    assert exit_code([passed], harness_errors=1) == 3
    assert exit_code([unknown, gated], harness_errors=0) == 4
    assert exit_code([], harness_errors=0) == 4
