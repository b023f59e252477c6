"""Seeds found on mutants replay anywhere, from the file alone: they need no broker, and they always show."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.reference.mutants.registry import MUTANTS
from harness.seeds.seed import read

FOLDER = Path(__file__).parent.parent / "fixtures" / "seeds"
SEEDS = {path.stem: path for path in sorted(FOLDER.glob("*.json")) if read(path).system.startswith("mutant:")}


@pytest.fixture(params=SEEDS)
def seed_file(request, monkeypatch, tmp_path):
    """A copy of one seed under another name, alone in another directory."""
    monkeypatch.chdir(tmp_path)
    return shutil.copy(SEEDS[request.param], tmp_path / "given.json")


def test_there_are_seeds_of_mutants():
    assert len(SEEDS) >= 2


def test_a_seed_shows_its_anomaly_in_every_run(seed_file):
    result = CliRunner().invoke(app, ["replay", str(seed_file), "--times", "3", "--json"])
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    assert (told["failed"], told["tries"], told["errors"]) == (3, 3, [])
    assert told["witness"]
    text = CliRunner().invoke(app, ["replay", str(seed_file), "--times", "2"])
    assert text.exit_code == 1
    assert "Reproduced in 2 of 2" in text.stdout


def test_the_unbroken_pair_does_not_show_it(seed_file):
    result = CliRunner().invoke(app, ["replay", str(seed_file), "--system", "simulated", "--times", "2"])
    assert result.exit_code == 0, result.output
    assert "Not reproduced" in result.stdout


def test_a_seed_expects_what_its_mutant_breaks(seed_file):
    seed = read(Path(seed_file))
    assert seed.expect.clause in MUTANTS[seed.system.removeprefix("mutant:")].expected
