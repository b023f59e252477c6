"""`starquake systems start` runs a system until Ctrl-C, and leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.systems.handshake import HandshakeFailed, handshake
from harness.systems.resolve import OURS_TO_START, is_ours_to_start, resolve
from tests.real_pulsar import real_pulsar_or_skip

ROOT = Path(__file__).parent.parent
PATIENCE_S = 60.0

Start = Callable[[str], tuple[subprocess.Popen[str], dict[str, str]]]


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def run(system: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", "systems", "start", system, "--json"],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        return process, json.loads(line)

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def answers(service_url: str) -> bool:
    where = urlsplit(service_url)
    assert where.hostname == "127.0.0.1"
    assert where.port is not None
    try:
        asyncio.run(handshake(where.hostname, where.port, 10.0))
    except HandshakeFailed:
        return False
    return True


def end(process: subprocess.Popen[str], *orphans: psutil.Process) -> str:
    """Wait for its end and that of all it started; what it said on stderr."""
    _, said = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in said
    _, left = psutil.wait_procs(orphans, timeout=PATIENCE_S)
    assert not left
    return said


@pytest.mark.parametrize("system", ["lite", "reference", "pulsar@4.0.7"])
def test_it_runs_until_ctrl_c(start: Start, system: str):
    if system.startswith("pulsar@"):
        real_pulsar_or_skip()
    process, told = start(system)
    assert (told["type"], told["system"]) == ("started", system)
    assert answers(told["service_url"])
    if told["admin_url"] is not None:
        assert httpx.get(f"{told['admin_url']}/admin/v2/clusters", trust_env=False).json() == ["standalone"]
    started = children(process)
    process.send_signal(signal.SIGINT)
    said = end(process, *started)
    assert process.returncode == 0
    assert f"{system} is stopped" in said
    assert not answers(told["service_url"])


@pytest.mark.parametrize("system", ["simulated", "mutant:x", "light", "pulsar://127.0.0.1:1", "pulsar+ssl://h:1"])
def test_what_is_not_ours_to_start_is_told_what_is(system: str):
    result = CliRunner().invoke(app, ["systems", "start", system])
    assert result.exit_code == 2
    assert result.stderr == (
        f"starquake: {system!r} is nothing to start; there are lite, reference, pulsar@VERSION, docker:IMAGE\n"
    )


@pytest.mark.parametrize("system", OURS_TO_START)
def test_what_it_offers_is_ours_to_start(system: str):
    assert is_ours_to_start(system)
    assert resolve(system.replace("VERSION", "4.0.7")).name


def test_a_broker_that_ends_by_itself_ends_the_command_with_its_last_lines(start: Start):
    process, _ = start("lite")
    broker = next(child for child in children(process) if "pulsar-lite" in " ".join(child.cmdline()))
    os.kill(broker.pid, signal.SIGKILL)
    said = end(process)
    assert process.returncode == 2
    assert "lite ended by itself; its last lines:" in said
