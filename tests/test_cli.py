"""The command line as a user meets it: exit codes, one clear message, no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_world import CATALOGUE, FakeExploration, FakeWorld, failing_plan, make_fake, passing_plan
from rich.text import Text
from typer.testing import CliRunner, Result

from harness.clauses.catalogue import load
from harness.cli import app
from harness.clients.client import UnknownClient
from harness.doctor import Finding
from harness.fixture_files import seeds_directory
from harness.history.event import Event
from harness.history.parquet import HistoryWriter, RunInfo
from harness.seeds.rate import Rate
from harness.seeds.seed import Expectation, make_seed, stored, write
from harness.setup_error import SetupError
from harness.systems.system import UnknownSystem

ROOT = Path(__file__).resolve().parent.parent
PLANS = [("dedup-cut", failing_plan()), ("dedup-calm", passing_plan())]


@pytest.fixture
def cli(monkeypatch, tmp_path):
    """Runs a command in an empty directory against the fake world ``cli.world``."""

    class Cli:
        world = FakeWorld()
        plans = PLANS

        def __call__(self, *arguments: str) -> Result:
            monkeypatch.setattr("harness.worlds.resolve.world_for", make_fake(self.world))
            monkeypatch.setattr("harness.gate.explorer.MachineExploration", lambda: FakeExploration(self.plans))
            return CliRunner().invoke(app, list(arguments))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.clauses.catalogue.load", lambda: CATALOGUE)
    return Cli()


def refused(result: Result, code: int, says: str) -> None:
    assert result.exit_code == code, result.output
    assert says in result.stderr
    assert "Traceback" not in result.output
    assert result.stderr.count("starquake:") == 1


def test_gate_is_red_with_reports_and_a_replay_line_that_works(cli, tmp_path) -> None:
    result = cli("gate", "--client", "reference", "--report", "out", "--junit", "ci/j.xml")
    assert result.exit_code == 1, result.output
    assert (tmp_path / "out" / "index.html").is_file()
    assert (tmp_path / "ci" / "j.xml").read_bytes() == (tmp_path / "out" / "junit.xml").read_bytes()
    line = next(line for line in result.stdout.splitlines() if line.startswith("starquake replay "))
    again = cli(*line.split()[1:], "--times", "4")
    assert again.exit_code == 1
    assert "Reproduced in 4 of 4" in again.stdout
    assert "SEND" in again.stdout


def test_gate_is_green_when_all_is_as_known(cli) -> None:
    Path("known.txt").write_text("lite | reference | KEPT-01 | lost-send | known | issue 7\n")
    result = cli("gate", "--client", "reference", "--known", "known.txt", "--json")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["type"] for line in lines] == ["verdict"] * 4 + ["summary"]
    assert lines[0]["verdict"] == "known"


def test_gate_is_red_when_a_known_failure_is_stale(cli) -> None:
    Path("known.txt").write_text("lite | reference | KEPT-01 | lost-send | known | issue 7\n")
    cli.world = FakeWorld(loses=lambda _: False)
    result = cli("gate", "--client", "reference", "--known", "known.txt")
    assert result.exit_code == 1
    assert "known.txt:1: lost-send is listed as known and did not fail" in result.stdout


def test_gate_with_nothing_decided(cli) -> None:
    cli.plans = []
    result = cli("gate", "--client", "reference", "--select", "GATED-*")
    assert result.exit_code == 4


def test_gate_with_a_failing_harness(cli) -> None:
    cli.world = FakeWorld(error="the adapter died")
    result = cli("gate", "--client", "reference")
    assert result.exit_code == 3
    assert "the adapter died" in result.stdout


def test_gate_interrupted_reports_what_it_has(cli, tmp_path) -> None:
    cli.world = FakeWorld(interrupt_after=2)
    result = cli("gate", "--client", "reference", "--report", "out")
    assert result.exit_code == 130
    assert "Interrupted" in result.stdout
    assert "KEPT-01" in result.stdout
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--profile", "huge"], "there is no profile 'huge'"),
        (["--select", "NOPE-*"], "no clause matches 'NOPE-*'"),
        (["--known", "absent.txt"], "cannot read the known-failing list absent.txt"),
        (["--known", "bad.txt"], "bad.txt:1: 2 fields where 6"),
        (["--known", "typo.txt"], "typo.txt:1: there is no clause 'KEPT-99'"),
        (["--report", "file/below"], "cannot write to the report directory file/below"),
        (["--junit", "file/j.xml"], "cannot write to the report directory file"),
    ],
)
def test_gate_refuses(cli, arguments: list[str], says: str) -> None:
    Path("bad.txt").write_text("lite | python\n")
    Path("typo.txt").write_text("lite | python | KEPT-99 | x | known | why\n")
    Path("file").write_text("not a directory")
    refused(cli("gate", "--client", "reference", *arguments), 2, says)


@pytest.mark.parametrize("error", [UnknownSystem("there is no system 'x'"), UnknownClient("there is no client 'x'")])
def test_unknown_names_are_refused(cli, monkeypatch, error: Exception) -> None:
    result = cli("gate", "--help")
    assert result.exit_code == 0

    def unknown(*_: object, access: object) -> None:
        raise error

    monkeypatch.setattr("harness.worlds.resolve.world_for", unknown)
    monkeypatch.setattr("harness.gate.explorer.MachineExploration", lambda: FakeExploration(PLANS))
    refused(CliRunner().invoke(app, ["gate"]), 2, str(error))


def test_a_missing_environment_is_exit_2_and_says_what_to_do(cli) -> None:
    cli.world = FakeWorld(fails_to_start=SetupError("no toxiproxy", "install it"))
    refused(cli("gate", "--client", "reference"), 2, "install it")


def test_a_full_disk_is_no_harness_failure(cli) -> None:
    refused(cli("gate", "--client", "reference", "--report", "/dev/full/x"), 2, "cannot write")


def test_a_crash_leaves_a_log_and_no_traceback(cli, monkeypatch, tmp_path) -> None:
    def broken() -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("harness.clauses.catalogue.load", broken)
    refused(cli("clauses"), 3, "the harness failed: ZeroDivisionError: oops")
    (log,) = tmp_path.glob("starquake-crash-*.log")
    assert "Traceback" in log.read_text()
    shown = cli("--debug", "clauses")
    assert shown.exit_code == 3
    assert "Traceback" in shown.stderr


def stored_seed(directory: Path) -> Path:
    expect = Expectation(clause="KEPT-01", anomaly="lost-send")
    return write(
        make_seed(
            expect, failing_plan(), protocol="pulsar", system="lite", client="reference", versions={}, rate=Rate(3, 5)
        ),
        directory,
    )


def test_replay_says_when_it_does_not_reproduce(cli, tmp_path) -> None:
    cli.world = FakeWorld(loses=lambda _: False)
    result = cli("replay", str(stored_seed(tmp_path)), "--times", "3")
    assert result.exit_code == 0
    assert "Not reproduced: lost-send showed in 0 of 3" in result.stdout


def test_replay_gives_the_rate_as_data(cli, tmp_path) -> None:
    cli.world = FakeWorld(loses=lambda run: run % 2 == 0)
    result = cli("replay", str(stored_seed(tmp_path)), "--times", "4", "--json")
    assert result.exit_code == 1
    line = json.loads(result.stdout)
    assert (line["type"], line["failed"], line["tries"], len(line["witness"])) == ("replay", 2, 4, 3)


def test_replay_in_which_only_the_harness_failed(cli, tmp_path) -> None:
    cli.world = FakeWorld(error="the adapter died")
    refused(cli("replay", str(stored_seed(tmp_path)), "--times", "2"), 3, "2 of 2 runs failed in the harness")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read the seed"),
        ("{", "is not JSON"),
        ('{"format": 7}', "seed format 7"),
        ('{"format": 1}', "format 1"),
    ],
)
def test_replay_refuses_a_broken_seed(cli, content: str | None, says: str) -> None:
    if content is not None:
        Path("s.json").write_text(content)
    refused(cli("replay", "s.json"), 2, says)


def test_seeds_lists_what_is_stored_and_replay_takes_an_id(cli, monkeypatch, tmp_path) -> None:
    path = stored_seed(tmp_path / "stored")
    monkeypatch.setattr("harness.fixture_files.seeds_directory", lambda: tmp_path / "stored")
    assert path.stem in cli("seeds").stdout
    assert cli("replay", path.stem, "--times", "1").exit_code == 1


def test_clauses_lists_and_shows(cli) -> None:
    assert "KEPT-01" in cli("clauses").stdout
    assert "A send after a cut must be stored." in cli("clauses", "KEPT-01").stdout
    refused(cli("clauses", "kept-1"), 2, "did you mean KEPT-01")


def a_history(directory: Path) -> Path:
    info = RunInfo(run="r", system="lite", client="python", capabilities={"system": [], "client": []})
    writer = HistoryWriter(directory, info)
    writer.append(Event(run="r", index=0, layer="api", kind="send", phase="invoke", op=1))
    writer.close()
    return directory


def test_check_judges_a_directory_and_report_renders_it_again(cli, tmp_path) -> None:
    history = a_history(tmp_path / "run")
    result = cli("check", str(history), "--out", "out", "--json")
    assert result.exit_code == 4, result.output
    assert json.loads(result.stdout.splitlines()[0])["client"] == "python"
    (tmp_path / "out" / "index.html").unlink()
    assert cli("report", "out").exit_code == 4
    assert (tmp_path / "out" / "index.html").is_file()
    assert cli("report", str(history)).exit_code == 4
    assert (history / "index.html").is_file()


def test_reports_that_would_overwrite_each_other_are_refused(cli, tmp_path) -> None:
    for name in ("a", "b"):
        cli("check", str(a_history(tmp_path / name / "run")), "--out", f"{name}/gate")
    refused(cli("report", "a/gate", "b/gate", "--out", "x"), 2, "a/gate and b/gate would both be written to x/gate")
    assert not (tmp_path / "x").exists()
    assert cli("report", "a/gate", "b/run", "--out", "x").exit_code == 4
    assert sorted(path.parent.name for path in (tmp_path / "x").rglob("index.html")) == ["gate", "run"]
    assert cli("report", "a/gate", "a/../a/gate", "--out", "once").stdout.count("report ") == 1
    assert (tmp_path / "once" / "index.html").is_file()


def on_a_terminal(monkeypatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("rich.console.Console.is_terminal", property(lambda _: True))


@pytest.mark.parametrize("columns", [40, 80])
def test_what_is_copied_from_a_table_is_never_folded(monkeypatch, columns: int) -> None:
    on_a_terminal(monkeypatch, columns)
    seeds = Text.from_ansi(CliRunner().invoke(app, ["seeds"]).stdout).plain
    for _, seed in stored(seeds_directory()):
        (line,) = [line for line in seeds.splitlines() if seed.id in line]
        assert {seed.expect.clause, seed.expect.anomaly} <= set(line.split())
    clauses = Text.from_ansi(CliRunner().invoke(app, ["clauses"]).stdout).plain
    first = {line.split()[0] for line in clauses.splitlines() if line[0] != " "}
    assert {clause.id for clause in load()} <= first
    if columns == 80:
        assert max(len(line) for line in clauses.splitlines()) <= columns


def test_a_table_that_is_piped_has_a_line_for_each_row(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = CliRunner().invoke(app, ["clauses"]).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [clause.id for clause in load()]
    assert all(clause.title in line for line, clause in zip(lines[1:], load(), strict=True))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "nowhere"], "nowhere is not a run directory"),
        (["check", "nowhere", "--engine", "spark"], "'spark' is not in this version"),
        (["check", "nowhere", "--engine", "abacus"], "there is no engine 'abacus'"),
        (["report", "nowhere"], "there is no directory nowhere"),
    ],
)
def test_check_and_report_refuse(cli, arguments: list[str], says: str) -> None:
    refused(cli(*arguments), 2, says)


def test_systems_and_clients_are_listed(cli) -> None:
    assert "lite" in cli("systems", "list").stdout
    assert "python" in cli("clients", "list").stdout


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 2)])
def test_doctor_tells_how_to_mend(cli, monkeypatch, ok: bool, code: int) -> None:
    finding = Finding("toxiproxy", ok, "looked everywhere", "install go", "gate", required=True)
    monkeypatch.setattr("harness.doctor.examine", lambda: [finding])
    result = cli("doctor")
    assert result.exit_code == code
    assert ("install go" in result.stdout) == (not ok)
    assert json.loads(cli("doctor", "--json").stdout)["mend"] == "install go"


def test_wrong_usage_is_exit_2(cli) -> None:
    for arguments in (["gate", "--nope"], ["nope"], ["replay"], ["replay", "x", "--times", "0"]):
        result = cli(*arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gate", "--nope"], "No such option"),
        (["gate", "--seed", "x"], "integer"),
        (["--nope", "gate"], "No such option"),
        (["replay"], "seed"),
        (["nope"], "No such command 'nope'"),
        (["gate", "--profile", "huge"], "there is no profile 'huge'"),
        (["check", "nowhere"], "nowhere is not a run directory"),
        (["replay", "absent"], "cannot read the seed absent"),
        (["mutants", "--only", "zz"], "no mutant is called 'zz'"),
    ],
)
def test_what_is_refused_under_json_ends_with_a_summary(cli, arguments: list[str], says: str) -> None:
    result = cli(*arguments, "--json")
    assert result.exit_code == 2
    (line,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert (line["type"], line["exit_code"]) == ("summary", 2)
    assert says.lower() in line["error"].lower()
    assert result.stderr
    assert cli(*arguments).stdout == ""


def test_a_crash_under_json_ends_with_a_summary(cli, monkeypatch, tmp_path) -> None:
    def broken() -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("harness.clauses.catalogue.load", broken)
    result = cli("gate", "--json")
    refused(result, 3, "ZeroDivisionError: oops")
    line = json.loads(result.stdout)
    assert (line["type"], line["exit_code"]) == ("summary", 3)
    assert "ZeroDivisionError: oops" in line["error"]


def run_process(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    code = "import sys; from harness.cli_entry import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, **options,
    )  # fmt: skip


def test_the_command_itself(tmp_path) -> None:
    assert run_process("--version").stdout.startswith("starquake ")
    broken = run_process("replay", "absent.json", cwd=tmp_path)
    assert (broken.returncode, broken.stdout) == (2, "")
    assert broken.stderr.startswith("starquake: cannot read the seed absent.json: No such file or directory; ")
    assert run_process("gate", "--nope").returncode == 2
