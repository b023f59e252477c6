"""What `starquake clauses` says of versions: one clause over all of them, or all clauses of one."""

import pytest
from typer.testing import CliRunner, Result

from harness.clauses.bindings import WORDS, of_version, over_versions
from harness.clauses.catalogue import load as load_catalogue
from harness.clauses.requirements import load, requirements_for
from harness.cli import app

CATALOGUE, SETS = load_catalogue(), load()


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["clauses", *arguments])


def told(clause: str) -> dict[str, str]:
    return dict(over_versions(CATALOGUE[clause], SETS))


def test_a_clause_says_which_lines_it_binds_and_why_not_the_others() -> None:
    lines = told("CHUNK-08")
    assert lines["binds"] == "Pulsar 2.11 to 4.2"
    assert "apache/pulsar#16202" in lines["not Pulsar 2.8 to 2.10"]
    assert told("C2") == {"binds": "Pulsar 2.8 to 4.2"}
    assert told("C1") == {"binds": "every client, whatever broker it talks to"}


def test_settings_defects_and_notes_are_told_with_the_lines_they_are_of() -> None:
    lines = told("C7")
    assert lines["binds"] == ""
    assert "(default false)" in lines["Pulsar 2.8 to 4.0"]
    assert "(default true)" in lines["Pulsar 4.2"]
    assert "no fixed version known" in lines["broken in 2.8 to 4.2"]
    lines = told("KEYSHARED-01")
    assert "fixed in 2.8.3" in lines["broken in 2.8"]
    assert "PIP-379" in lines["note on 4.0, 4.2"]


@pytest.mark.parametrize(
    ("version", "clause", "standing"),
    [
        ("2.10.5", "CHUNK-08", "not"),
        ("2.10.5", "C7", "setting"),
        ("2.10.5", "DEDUP-08", "broken"),
        ("2.10.6", "DEDUP-08", "binds"),
        ("4.2.4", "MARKDEL-03", "binds"),
        ("4.2.4", "C7", "broken"),
        ("4.0.7", "C1", "client"),
        ("3.0.1", "DEDUP-08", "broken"),
    ],
)
def test_a_version_says_how_each_clause_stands(version: str, clause: str, standing: str) -> None:
    found = requirements_for(f"pulsar@{version}")
    assert found is not None
    rows = of_version(CATALOGUE, found, version)
    assert [row.clause.id for row in rows] == [each.id for each in CATALOGUE]
    (row,) = [row for row in rows if row.clause.id == clause]
    assert row.standing == standing
    assert row.why or standing in ("binds", "client")


def test_the_command_shows_versions_with_a_clause() -> None:
    result = command("CHUNK-08")
    assert result.exit_code == 0, result.output
    assert "binds  Pulsar 2.11 to 4.2\n" in result.stdout
    assert "not Pulsar 2.8 to 2.10  chunked messages" in result.stdout


def test_the_command_lists_the_set_of_a_system() -> None:
    result = command("--system", "pulsar@2.10.5")
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert set(lines) == {"clause", *(clause.id for clause in CATALOGUE)}
    assert WORDS["not"] in lines["CHUNK-08"]
    assert "frozen for Pulsar 2.10.5" in result.stderr
    one = command("CHUNK-08", "--system", "pulsar@4.0.7")
    assert (one.exit_code, WORDS["binds"] in one.stdout) == (0, True)


def test_a_version_beyond_every_set_is_told_whose_set_it_is_shown() -> None:
    beyond = command("--system", "pulsar@9.9.9")
    assert beyond.exit_code == 0, beyond.output
    assert beyond.stdout.splitlines()[-1] == (
        "pulsar@9.9.9 is newer than every frozen set: this is the newest, of Pulsar 4.2"
    )
    assert "newer than every" in command("CHUNK-08", "--system", "pulsar@4.3.0").stdout
    for within in ("pulsar@4.2.9", "pulsar@4.1.0", "pulsar@2.8.0"):
        assert "newer than every" not in command("--system", within).output


def test_the_command_knows_systems_without_a_set_and_refuses_names_of_none() -> None:
    result = command("--system", "lite")
    assert (result.exit_code, "no requirement set is frozen for lite" in result.stdout) == (0, True)
    assert command("--system", "nobody").exit_code == 2
