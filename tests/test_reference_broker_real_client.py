"""The unmodified Python client against the reference broker, scenario by scenario."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real_client_scenarios import SCENARIOS

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    done = subprocess.run(
        [sys.executable, "-m", "tests.real_client_scenarios", name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
