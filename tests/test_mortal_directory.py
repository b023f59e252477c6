"""The directories of children go away with the harness however it ends, and nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness import processes
from harness.mortal_directory import MortalDirectory
from harness.reaper import inherited

ROOT = Path(__file__).parent.parent

# Its child goes on writing into the directory while the harness dies. Another directory was removed in good order.
HARNESS = """
import asyncio, signal, sys
from pathlib import Path
from harness.mortal_directory import MortalDirectory
from harness.processes import ChildProcess
BUSY = '''
import itertools, pathlib
for number in itertools.count():
    pathlib.Path(f"{number % 1000}").write_text("x" * 1000)
'''
async def main():
    earlier, directory = MortalDirectory("earlier"), MortalDirectory("data")
    earlier.cleanup()
    place = Path(directory.name)
    child = await ChildProcess.spawn_logged([sys.executable, "-c", BUSY], name="busy", log=place / "log", cwd=place)
    while not (place / "7").exists():
        await asyncio.sleep(0.01)
    print(child.pid, directory.name, earlier.name, sep="\\n", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_data_does_not_outlive_a_killed_harness(tmp_path: Path, number: signal.Signals):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as harness:
        assert harness.stdout is not None
        pid, directory, earlier = (harness.stdout.readline().strip() for _ in range(3))
        assert Path(directory, "7").is_file()
        assert Path(directory).name.startswith("starquake-data-")
        # Somebody else has the name now.
        Path(earlier).mkdir()
        harness.send_signal(number)
    assert within(10, lambda: ended(int(pid)))
    assert within(10, lambda: not Path(directory).exists())
    assert os.listdir(tmp_path) == [Path(earlier).name]


def test_it_is_gone_after_its_end_and_the_reaper_knows(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with MortalDirectory("data") as name:
        assert os.path.isdir(name)
        assert name in processes._REAPER._directories
    assert not os.path.exists(name)
    assert name not in processes._REAPER._directories


def test_a_reaper_that_was_killed_is_replaced_and_told_again(tmp_path: Path):
    program = """
import os, sys
from harness import processes
from harness.mortal_directory import MortalDirectory
first = MortalDirectory("first")
processes._REAPER._process.kill()
processes._REAPER._process.wait()
second = MortalDirectory("second")
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == -signal.SIGKILL
    assert within(10, lambda: not os.listdir(tmp_path))


@pytest.mark.parametrize(
    ("told", "removed"),
    [
        (b"", []),
        (b"+/tmp/starquake-a\0+/tmp/starquake-b\0", ["/tmp/starquake-a", "/tmp/starquake-b"]),
        (b"+/tmp/starquake-a\0-/tmp/starquake-a\0", []),
        (b"+/tmp/starquake-a\0+/tmp/starquake-", ["/tmp/starquake-a"]),
        (b"+/tmp\0+/home/starquake-a/data\0+starquake-a\0+\0\0", []),
    ],
)
def test_only_what_is_ours_and_was_told_in_full_is_removed(told: bytes, removed: list[str]):
    assert inherited(told) == removed
