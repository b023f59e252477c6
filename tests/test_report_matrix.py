"""One page of all versions: results of several jobs merged, and a matrix that stays readable with many columns."""

import io
import re
from pathlib import Path

import msgspec
import pytest
from fake_world import CATALOGUE, FakeWorld
from rich.console import Console
from test_gate import run_gate
from typer.testing import CliRunner

from harness.cli import app
from harness.gate.merge import merge
from harness.gate.result import Failure, GateResult, Pair, load, save
from harness.gate.run import clause_text
from harness.report.html import MARKS, MEANINGS, page
from harness.report.matrix import by_system, columns, rows
from harness.report.terminal import MOST_COLUMNS, show
from harness.usage_error import UsageError
from harness.verdict import VERDICTS, Breach, Cell, Verdict

VERSIONS = ("2.10.5", "2.8.0", "4.0.7", "3.0.7")


def one(version: str, **verdicts: Verdict) -> GateResult:
    """The result of a nightly job: one version through two clients; every clause passes unless said otherwise."""
    system = f"pulsar@{version}"
    result = GateResult(
        started=f"2026-11-21T0{VERSIONS.index(version)}:00:00+00:00", seconds=10.5, profile="nightly", seed=7,
        versions={"starquake": "0.2", f"system {system}": version}, clauses={c.id: clause_text(c) for c in CATALOGUE},
    )  # fmt: skip
    for client in ("python", "reference"):
        result.pairs.append(Pair(system=system, client=client, system_version=version))
        result.cells += [
            Cell(
                clause=clause.id, family=clause.family, title=clause.title, system=system, client=client, judged=3,
                verdict=verdicts.get(clause.id.replace("-", "_"), "pass"), reason=f"as {version} does",
            )
            for clause in CATALOGUE
        ]  # fmt: skip
    return result


@pytest.fixture(scope="module")
def failure(tmp_path_factory) -> Failure:
    return run_gate(tmp_path_factory.mktemp("gate"), FakeWorld()).failures[0]


def known(result: GateResult, failure: Failure) -> GateResult:
    """The same failure, accepted, with both clients."""
    for pair in result.pairs:
        copy = msgspec.structs.replace(
            failure, system=pair.system, client=pair.client, accepted="known", accepted_reason="issue 7"
        )
        result.failures.append(copy)
    return result


def test_versions_come_in_their_order_with_all_their_clients() -> None:
    merged = merge([one(version) for version in VERSIONS])
    assert [(column.system, column.client) for column in columns(merged)] == [
        (f"pulsar@{version}", client)
        for version in ("2.8.0", "2.10.5", "3.0.7", "4.0.7")
        for client in ("python", "reference")
    ]
    assert [len(group) for _, group in by_system(columns(merged))] == [2, 2, 2, 2]
    assert (merged.started, merged.seconds, merged.seed) == ("2026-11-21T00:00:00+00:00", 42.0, 7)
    assert merged.versions["system pulsar@2.8.0"] == "2.8.0"
    assert len(merged.cells) == 4 * 2 * len(CATALOGUE)


def test_what_differs_between_results_is_told_side_by_side() -> None:
    first, second = one("2.8.0"), one("4.0.7")
    second.profile, second.seed, second.versions["starquake"], second.interrupted = "ci", 8, "0.3", True
    del second.clauses["KEPT-02"]
    merged = merge([first, second])
    assert (merged.profile, merged.seed, merged.versions["starquake"]) == ("nightly, ci", None, "0.2, 0.3")
    assert merged.interrupted
    assert set(merged.clauses) == {clause.id for clause in CATALOGUE}
    assert merge([second]).clauses.keys() == second.clauses.keys()


def test_a_pair_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"two of these results are of pulsar@2\.8\.0 x python"):
        merge([one("2.8.0"), one("2.8.0")])


def test_the_evidence_of_a_known_failure_is_kept_once_for_each_client(failure: Failure) -> None:
    merged = merge([known(one(version), failure) for version in VERSIONS])
    kept = [(each.system, each.client) for each in merged.failures if each.excerpt.events]
    assert kept == [("pulsar@2.8.0", "python"), ("pulsar@2.8.0", "reference")]
    assert len(merged.failures) == 8
    text = page(merged)
    assert len(re.findall(r'<svg class="chart"', text)) == 2
    assert "The same with python on pulsar@2.10.5, pulsar@3.0.7, pulsar@4.0.7." in text


def test_each_new_failure_keeps_its_evidence(failure: Failure) -> None:
    results = [one(version, KEPT_01="fail") for version in VERSIONS]
    for result in results:
        result.failures = [msgspec.structs.replace(failure, system=result.pairs[0].system, client="python")]
    merged = merge(results)
    assert all(each.excerpt.events for each in merged.failures)
    assert len(re.findall(r'<svg class="chart"', page(merged))) == 4
    assert merged.exit_code() == 1


def test_columns_count_what_was_decided() -> None:
    result = one("2.8.0", KEPT_01="fail", KEPT_02="n/a", ASK_01="flaky")
    result.cells[3].stale, result.cells[3].verdict = ["k:1: x"], "known"
    python, reference = columns(result)
    assert (python.decided, python.counts["fail"], python.accepted, python.stale) == (3, 1, 1, 1)
    assert (reference.decided, reference.counts["pass"], reference.stale) == (3, 1, 0)
    empty = columns(GateResult(started="", pairs=[Pair(system="lite", client="python", setup_error="no broker")]))
    assert (empty[0].decided, empty[0].counts) == (0, {})


def test_a_clause_that_one_result_lacks_is_an_empty_cell() -> None:
    second = one("4.0.7")
    second.cells = [cell for cell in second.cells if cell.clause != "KEPT-02"]
    table = {row.clause.id: row.cells for _, family in rows(merge([one("2.8.0"), second])) for row in family}
    assert [cell and cell.verdict for cell in table["KEPT-02"]] == ["pass", "pass", None, None]


def test_every_verdict_has_a_mark_and_a_meaning() -> None:
    assert set(MARKS) == set(MEANINGS) == {*VERDICTS, "stale"}
    assert len(set(MARKS.values())) == len(MARKS)


def test_a_wide_page_has_marks_with_reasons_a_legend_and_sums() -> None:
    merged = merge([one(version, KEPT_01="fail", GATED_01="n/a") for version in VERSIONS])
    text = page(merged)
    assert 'class="mark v-fail" title="pulsar@2.8.0 × python: fail, as 2.8.0 does">✗<' in text
    assert 'class="mark v-na" title="pulsar@4.0.7 × reference: n/a, as 4.0.7 does">–<' in text
    assert len(re.findall(r'<th class="system" colspan="2"', text)) == 4
    for title, number in (("decided", 3), ("pass", 2), ("fail", 1), ("known", 0)):
        row = re.search(rf'<tr class="sum"><th class="id"[^>]*>{title}</th>.*', text)
        assert row is not None
        assert re.findall(r"<td[^>]*>(\d+)</td>", row[0]) == [str(number)] * 8
    assert f"fail: {MEANINGS['fail']}" in text
    assert "position:sticky" in text


def test_a_narrow_page_says_verdicts_in_words() -> None:
    text = page(one("2.8.0", KEPT_01="fail"))
    assert 'class="pill v-fail" title="as 2.8.0 does">fail<' in text
    assert '<p class="legend marks">' not in text


def test_a_terminal_has_one_line_for_each_of_many_pairs() -> None:
    merged = merge([one(version, KEPT_01="fail") for version in VERSIONS])
    assert len(merged.pairs) > MOST_COLUMNS
    out = io.StringIO()
    show(merged, Console(file=out, width=100))
    assert re.search(r"pulsar@2\.8\.0 +python +4 +1 +3", out.getvalue())


def test_a_terminal_says_once_what_is_known_of_several_versions() -> None:
    results = [one(version, KEPT_01="known") for version in VERSIONS]
    for result in results:
        result.cells[0].breaches = [Breach(anomaly="lost", runs=2, message="m", accepted="known", reason="issue 7")]
    out = io.StringIO()
    show(merge(results), Console(file=out, width=200))
    (line,) = [line for line in out.getvalue().splitlines() if "issue 7" in line]
    assert line == ("  known KEPT-01 lost pulsar@2.8.0, pulsar@2.10.5, pulsar@3.0.7, pulsar@4.0.7 x python: issue 7")


@pytest.fixture
def saved(tmp_path: Path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    for version in VERSIONS:
        (tmp_path / version).mkdir()
        result = one(version)
        result.cells[0].breaches = [Breach(anomaly="x", runs=1, message="m", accepted="known", reason="issue 7")]
        save(result, tmp_path / version)
    return list(VERSIONS)


def test_the_command_merges_reports_into_one(saved: list[str]) -> None:
    result = CliRunner().invoke(app, ["report", "--merge", *saved, saved[0], "--out", "all"])
    assert result.exit_code == 0, result.output
    assert len(load(Path("all")).pairs) == 8
    assert "4 systems" in Path("all/index.html").read_text()
    assert Path("all/junit.xml").is_file()


def test_a_job_without_a_result_does_not_take_the_page_of_the_others_away(saved: list[str]) -> None:
    Path("empty").mkdir()
    Path("4.0.7/gate.json").write_text('{"schema": 1, "pairs": [')
    result = CliRunner().invoke(app, ["report", "--merge", "empty", *saved, "--out", "all"])
    assert result.exit_code == 0, result.output
    assert {pair.system for pair in load(Path("all")).pairs} == {"pulsar@2.8.0", "pulsar@2.10.5", "pulsar@3.0.7"}
    left_out = [line for line in result.stderr.splitlines() if "left out" in line]
    assert ["empty/gate.json" in left_out[0], "4.0.7/gate.json" in left_out[1], len(left_out)] == [True, True, 2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["report", "--merge", "2.8.0"], "--out"),
        (["report", "--merge", "empty", "--out", "all"], "none of these directories has a result of the gate"),
        (["report", "--merge", "empty", "--out", "all"], "empty/gate.json"),
        (["report", "--merge", "2.8.0", "absent", "--out", "all"], "there is no directory absent"),
    ],
)
def test_the_command_refuses_what_cannot_be_merged(saved: list[str], arguments: list[str], says: str) -> None:
    Path("empty").mkdir()
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, says in result.stderr) == (2, True), result.stderr
    assert not Path("all").exists()
