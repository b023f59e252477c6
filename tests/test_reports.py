"""JUnit, JSON lines, HTML and terminal of one gate result that holds every verdict."""

import io
import json
import re
from xml.etree import ElementTree

import pytest
from fake_world import FakeWorld
from rich.console import Console
from test_gate import run_gate

from harness.gate.result import GateResult
from harness.report.html import page
from harness.report.junit import junit
from harness.report.machine import lines
from harness.report.sequence_chart import LANES, chart
from harness.report.terminal import show
from harness.verdict import Breach, Cell


@pytest.fixture
def result(tmp_path) -> GateResult:
    found = run_gate(tmp_path, FakeWorld())

    def cell(clause: str, verdict: str, **more: object) -> Cell:
        return Cell(
            clause=clause, family="dedup", title=clause, system="lite", client="reference", verdict=verdict, **more
        )

    known = Breach(anomaly="hole", runs=2, message="m", accepted="known", reason="issue 7")
    flaky = Breach(anomaly="race", runs=1, message="m", accepted="flaky", reason="race", rate="7/20")
    found.cells += [
        cell("X-01", "known", breaches=[known], judged=3),
        cell("X-02", "flaky", breaches=[flaky], judged=3),
        cell("X-03", "error", reason="adapter died \x00\x1b"),
        cell("X-04", "known", stale=["k:1: hole is listed as known and did not fail"], judged=1),
    ]
    return found


def test_junit_has_one_case_a_clause_in_the_shape_ci_reads(result: GateResult) -> None:
    root = ElementTree.fromstring(junit(result))
    assert root.tag == "testsuites"
    (suite,) = root.findall("testsuite")
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    assert set(cases) == {"KEPT-01", "KEPT-02", "ASK-01", "GATED-01", "X-01", "X-02", "X-03", "X-04"}
    assert {case.get("classname") for case in cases.values()} == {"lite.reference"}

    def outcomes(name: str) -> list[str]:
        return [child.tag for child in cases[name] if child.tag != "properties"]

    assert outcomes("KEPT-01") == ["failure"]
    assert outcomes("KEPT-02") == outcomes("X-01") == outcomes("X-02") == []
    assert outcomes("ASK-01") == outcomes("GATED-01") == ["skipped"]
    assert outcomes("X-03") == ["error"]
    assert outcomes("X-04") == ["failure"]
    assert cases["X-04"].find("failure").get("type") == "stale"
    for element in (root, suite):
        counted = [element.get(name) for name in ("tests", "failures", "errors", "skipped")]
        assert counted == ["8", "2", "1", "2"]
    properties = {p.get("name"): p.get("value") for p in cases["X-02"].findall("properties/property")}
    assert properties["verdict"] == "flaky"
    assert properties["flaky.race"] == "expected failure 7/20: race"
    failure = cases["KEPT-01"].find("failure")
    assert failure.get("type") == "lost-send"
    assert failure.text.splitlines()[-1].startswith("starquake replay ")


def test_json_lines_end_in_a_summary(result: GateResult) -> None:
    *verdicts, summary = [json.loads(line) for line in lines(result)]
    assert {line["type"] for line in verdicts} == {"verdict"}
    assert all({"clause", "system", "client", "verdict", "seed"} <= set(line) for line in verdicts)
    broken = next(line for line in verdicts if line["verdict"] == "fail")
    assert broken["seed"] == result.failures[0].seed
    assert broken["anomalies"][0]["replay"] == result.failures[0].replay
    assert summary["type"] == "summary"
    assert summary["exit_code"] == 1
    assert summary["verdicts"]["fail"] == 1
    assert summary["stale"] == 1


def test_the_page_is_self_contained_and_escapes_what_brokers_say(result: GateResult) -> None:
    text = page(result)
    assert not re.search(r"""(src|href)\s*=\s*["']?\s*(https?:)?//|@import|url\((?!#)|<link|<script [^>]*src""", text)
    assert "the send left &amp; was &lt;never&gt; stored" in text
    assert "<never>" not in text
    assert "prefers-color-scheme:dark" in text
    for expected in ("KEPT-01", result.failures[0].replay, "A send after a cut must be stored.", "k:1: hole is listed"):
        assert expected in text
    assert len(re.findall(r"<svg class=\"chart\"", text)) == len(result.failures)
    anchors = set(re.findall(r'href="#([^"]+)"', text))
    assert anchors == {"failure-1"}
    assert 'id="failure-1"' in text


def test_the_chart_draws_frames_between_their_lanes_and_marks_the_breach(result: GateResult) -> None:
    drawn = chart(result.failures[0].excerpt)
    assert [name for _, name in drawn.lanes] == list(LANES)
    fault, invoked, sent = (row for row in drawn.rows if row.breach)
    assert fault.kind == "fault"
    assert fault.x1 == fault.x2 == drawn.lanes[LANES.index("Toxiproxy")][0]
    assert (invoked.x1, invoked.x2) == (drawn.lanes[0][0], drawn.lanes[1][0])
    assert (sent.x1, sent.x2) == (drawn.lanes[1][0], drawn.lanes[2][0])
    assert "seq" in sent.label
    assert [row.y for row in drawn.rows] == sorted({row.y for row in drawn.rows})


def test_the_terminal_ends_each_failure_with_an_unbroken_replay_line(result: GateResult) -> None:
    out = io.StringIO()
    show(result, Console(file=out, width=80))
    text = out.getvalue()
    assert result.failures[0].replay in text.splitlines()
    assert "STALE" in text
    assert "issue 7" in text
    assert "never put to the test" in text or "no answer was seen" in text
    assert re.search(r"1 fail, 1 error, 2 known, 1 flaky, 1 pass, 1 unknown, 1 n/a, 1 stale", text)
