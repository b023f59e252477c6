"""Stored runs are judged as the gate judges them: by the same lists of known failures, each run once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from consumer_history import ConsumerHistory
from typer.testing import CliRunner, Result

from harness.check import check, parties
from harness.clauses.catalogue import load
from harness.cli import app
from harness.history.parquet import HistoryWriter, RunInfo
from harness.known_failing import parse
from harness.regular_file import read_regular
from harness.systems.product import product_of
from harness.systems.resolve import names_a_system
from harness.usage_error import UsageError

ROOT = Path(__file__).resolve().parent.parent
ADDRESS = "pulsar://127.0.0.1:6650"
WENT_BACK = "DISPATCH-02 | dispatch-went-back"


def a_run(directory: Path, system: str = "lite", version: str = "0.2.0", client: str = "reference") -> Path:
    """A history in which entries are dispatched out of order, as shipped lists know of pulsar-lite."""
    info = RunInfo(
        run="r",
        system=system,
        client=client,
        versions={system: version, f"client {client}": "1"},
        capabilities={"system": ["key_shared", "ack_receipt"], "client": []},
    )
    history = ConsumerHistory()
    history.consumer()
    for entry in (0, 2, 1):
        history.message(1, entry)
    writer = HistoryWriter(directory, info)
    for event in history.events:
        writer.append(event)
    writer.close()
    return directory


def a_run_of_chunks(directory: Path, system: str, version: str) -> Path:
    """A history in which the pieces of one message go to two consumers of a shared subscription."""
    info = RunInfo(run="r", system=system, client="reference", versions={system: version})
    history = ConsumerHistory()
    for number, name in enumerate("ab"):
        history.consumer(name, "shared", conn=number + 1)
    for number, name in enumerate("ab"):
        history.message(
            1, number, name=name, conn=number + 1, chunk_uuid="u", chunk_id=number, num_chunks=2, payload_size=10
        )
    writer = HistoryWriter(directory, info)
    for event in history.events:
        writer.append(event)
    writer.close()
    return directory


@pytest.fixture
def command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["check", *arguments, "--json"])

    return run


def verdict(result: Result, clause: str = "DISPATCH-02") -> str:
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    (cell,) = [line for line in lines if line["type"] == "verdict" and line["clause"] == clause]
    assert not any(line.get("stale") for line in lines)
    return cell["verdict"]


@pytest.mark.parametrize(
    ("system", "version", "expected", "code"),
    [
        ("lite", "0.2.0", "flaky", 0),
        (ADDRESS, "Pulsar-Lite-0.1.0", "flaky", 0),
        (ADDRESS, "4.0.1", "fail", 1),
        ("reference", "4.0", "fail", 1),
    ],
)
def test_the_shipped_lists_apply_as_in_the_gate(
    command, tmp_path, system: str, version: str, expected: str, code: int
) -> None:
    a_run(tmp_path / "run", system, version)
    result = command("run")
    assert result.exit_code == code, result.output
    assert verdict(result) == expected


def test_a_given_list_takes_their_place(command, tmp_path) -> None:
    a_run(tmp_path / "run")
    (tmp_path / "none.txt").write_text("")
    result = command("run", "--known", "none.txt")
    assert (verdict(result), result.exit_code) == ("fail", 1)
    (tmp_path / "mine.txt").write_text(f"lite | reference | {WENT_BACK} | known | issue 7\n")
    result = command("run", "--known", "mine.txt")
    assert (verdict(result), result.exit_code) == ("known", 0)
    shown = CliRunner().invoke(app, ["report", "run"])
    assert shown.exit_code == 0, shown.output


def test_a_list_may_speak_of_what_another_tool_recorded(command, tmp_path) -> None:
    a_run(tmp_path / "run", "staging", "4.0.1", "java")
    (tmp_path / "mine.txt").write_text(f"staging | java | {WENT_BACK} | known | issue 7\n")
    assert verdict(command("run", "--known", "mine.txt")) == "known"


def test_a_broken_list_is_refused_before_anything_is_judged(command, tmp_path) -> None:
    a_run(tmp_path / "run")
    (tmp_path / "k.txt").write_text("lite | python | NOPE-99 | x | known | y\n")
    result = command("run", "--known", "k.txt")
    assert result.exit_code == 2
    assert "there is no clause 'NOPE-99'" in result.stderr
    assert not (tmp_path / "reports").exists()


def test_nothing_is_stale_in_a_part_of_the_runs(tmp_path) -> None:
    run = a_run(tmp_path / "run")
    listed = {"lite": parse(f"lite | * | {WENT_BACK} | flaky 1/2 | w\nlite | * | DISPATCH-02 | x | known | w", "k")}
    result = check([run], load(), listed)
    assert result.stale == 0
    assert result.exit_code() == 0
    (failure,) = [failure for failure in result.failures if failure.clause == "DISPATCH-02"]
    assert (failure.accepted, failure.accepted_reason) == ("flaky", "w")
    assert result.new_failures == []


@pytest.mark.parametrize(
    ("system", "version", "expected"),
    [
        ("pulsar@2.10.5", "2.10.5", "n/a"),
        (ADDRESS, "Pulsar Server2.10.5", "n/a"),
        ("pulsar@2.11.0", "2.11.0", "fail"),
        (ADDRESS, "Pulsar Server4.0.7", "fail"),
        ("reference", "1", "fail"),
    ],
)
def test_a_run_is_judged_by_what_its_version_promised(
    command, tmp_path, system: str, version: str, expected: str
) -> None:
    a_run_of_chunks(tmp_path / "run", system, version)
    result = command("run")
    assert verdict(result, "CHUNK-08") == expected
    line = next(line for line in map(json.loads, result.stdout.splitlines()) if line.get("clause") == "CHUNK-08")
    if expected == "n/a":
        assert line["reason"].startswith("Pulsar 2.10: ")
    assert bool(line["anomalies"]) == (expected == "fail")
    assert result.exit_code == (expected == "fail"), result.output


def test_a_directory_given_twice_is_one_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = a_run(tmp_path / "run")
    (tmp_path / "link").symlink_to(run)
    once, again = check([run], load()), check([run, Path("run"), Path("run/../run"), Path("link")], load())
    assert again.pairs == once.pairs
    assert again.cells == once.cells
    other = a_run(tmp_path / "other")
    assert check([run, other], load()).pairs[0].examples == 2


def test_one_address_with_two_products_is_not_one_system(tmp_path) -> None:
    runs = [a_run(tmp_path / "a", ADDRESS, "Pulsar-Lite-0.1.0"), a_run(tmp_path / "b", ADDRESS, "4.0.1")]
    with pytest.raises(UsageError, match="check them apart"):
        check(runs, load())


def test_parties_are_told_once(tmp_path) -> None:
    runs = [a_run(tmp_path / name, system) for name, system in (("a", "lite"), ("b", "reference"), ("c", "lite"))]
    assert parties(runs) == (["lite", "reference"], ["reference"])
    with pytest.raises(UsageError, match="not a run directory"):
        parties([tmp_path])


def test_a_broker_is_what_it_says_it_is() -> None:
    assert product_of(ADDRESS, "Pulsar-Lite-0.1.0") == "lite"
    assert product_of(ADDRESS, "4.0.1") == ADDRESS
    # As 4.0.7 answers, and as others are said to.
    assert product_of(ADDRESS, "Pulsar Server4.0.7") == "pulsar@4.0.7"
    assert product_of(ADDRESS, "Pulsar Server-v4.0.7") == "pulsar@4.0.7"
    assert product_of(ADDRESS, "Pulsar Server 2.10.4.3-acme") == "pulsar@2.10.4.3-acme"
    assert product_of(ADDRESS, "Pulsar Server") == "pulsar"
    assert product_of(ADDRESS, "Pulsar Serverless") == ADDRESS
    assert product_of("pulsar@2.10.5", "2.10.5") == "pulsar@2.10.5"
    assert product_of("lite", "0.2.0") == "lite"


@pytest.mark.parametrize(
    "name",
    ["lite", "lite@0.2.0", "reference", "simulated", "pulsar@4.0.1", "pulsar", "docker:apachepulsar/pulsar:4.0.1",
     "rocketmq-reference", "rocketmq@5", ADDRESS, f"{ADDRESS},http://127.0.0.1:8080",
     "mutant:broker-replaces-batch-bits"],
)  # fmt: skip
def test_a_name_of_a_system(name: str) -> None:
    assert names_a_system(name)


@pytest.mark.parametrize(
    "name",
    ["lit", "Lite", "python", "", "pulsar://", "pulsar+ssl://", "mutant:", "mutant:broker-replaces", "pulsa@4"],
)
def test_a_name_of_no_system(name: str) -> None:
    assert not names_a_system(name)


def test_a_list_with_a_system_nobody_has_is_refused(command, tmp_path) -> None:
    a_run(tmp_path / "run")
    (tmp_path / "k.txt").write_text(f"# so\nlit | reference | {WENT_BACK} | known | issue 7\n")
    for result in (command("run", "--known", "k.txt"), CliRunner().invoke(app, ["gate", "--known", "k.txt"])):
        assert result.exit_code == 2
        assert "k.txt:2: there is no system 'lit'; `starquake systems list`" in result.stderr
        assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("arguments", [["gate", "--known", "pipe"], ["replay", "pipe"]])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, arguments: list[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    ended = subprocess.run(
        [sys.executable, "-m", "harness", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "pipe: it is no regular file; " in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_only_regular_files_are_read(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"x"
    for path in (Path("/dev/zero"), tmp_path, tmp_path / "absent"):
        with pytest.raises(OSError, match=r"regular file|Is a directory|No such file"):
            read_regular(path)
