"""Children end with their group on stop, and with the harness however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.processes import ChildProcess
from harness.setup_error import SetupError

# Starts a grandchild in a session of its own, prints both pids, and sleeps.
FAMILY = """
import subprocess, sys, time, os
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session={session})
print(os.getpid(), grandchild.pid, flush=True)
time.sleep(60)
"""

PARENT = """
import asyncio, sys
from pathlib import Path
from harness.processes import ChildProcess
async def main():
    child = await ChildProcess.spawn_piped([sys.executable, "-c", {family!r}], name="family", log=Path({log!r}))
    print((await child.stdout.readline()).decode().strip(), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def gone(pid: int, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_orphans_when_the_harness_is_killed(tmp_path: Path, number: signal.Signals):
    program = PARENT.format(family=FAMILY.format(session=True), log=str(tmp_path / "log"))
    root = str(Path(__file__).parent.parent)
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": root},
        text=True,
    )
    assert parent.stdout is not None
    with parent:
        child, grandchild = map(int, parent.stdout.readline().split())
        assert psutil.pid_exists(child)
        assert psutil.pid_exists(grandchild)
        parent.send_signal(number)
        parent.wait(10)
    assert gone(child)
    assert gone(grandchild)


@pytest.mark.anyio
async def test_stop_ends_the_whole_group(tmp_path: Path):
    child = await ChildProcess.spawn_piped(
        [sys.executable, "-c", FAMILY.format(session=False)], name="family", log=tmp_path / "log"
    )
    pid, grandchild = map(int, (await child.stdout.readline()).split())
    assert pid == child.pid
    assert child.alive()
    assert child.returncode is None
    assert await child.stop() == -signal.SIGTERM
    assert not child.alive()
    assert gone(grandchild)


@pytest.mark.anyio
async def test_stop_finds_the_group_after_its_leader_has_gone(tmp_path: Path):
    program = FAMILY.format(session=False).replace("time.sleep(60)\n", "")
    child = await ChildProcess.spawn_piped([sys.executable, "-c", program], name="family", log=tmp_path / "log")
    _, grandchild = map(int, (await child.stdout.readline()).split())
    assert await child.wait() == 0
    assert not gone(grandchild, 0.1)
    assert await child.stop() == 0
    assert gone(grandchild)


@pytest.mark.anyio
async def test_sigkill_when_sigterm_is_ignored(tmp_path: Path):
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    child = await ChildProcess.spawn_piped([sys.executable, "-c", program], name="stubborn", log=tmp_path / "log")
    assert await child.stdout.readline() == b"up\n"
    assert await child.stop(grace=0.1) == -signal.SIGKILL


@pytest.mark.anyio
async def test_alive_does_not_wait_for_the_event_loop(tmp_path: Path):
    child = await ChildProcess.spawn_logged([sys.executable, "-c", ""], name="short", log=tmp_path / "log")
    deadline = time.monotonic() + 5
    while child.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not child.alive()
    assert await child.wait() == 0


@pytest.mark.anyio
async def test_logged_child_writes_both_streams_to_its_log(tmp_path: Path):
    program = "import sys; print('out', flush=True); print('err', file=sys.stderr); assert not sys.stdin.read()"
    log = tmp_path / "deep" / "log"
    child = await ChildProcess.spawn_logged([sys.executable, "-c", program], name="talker", log=log)
    assert await child.wait() == 0
    assert child.logs_tail().split() == ["out", "err"]
    assert child.logs_tail(1) == "err"


@pytest.mark.anyio
async def test_piped_child_may_answer_with_a_long_line(tmp_path: Path):
    program = "import sys; print('x' * int(sys.stdin.readline()))"
    child = await ChildProcess.spawn_piped([sys.executable, "-c", program], name="long", log=tmp_path / "log")
    child.stdin.write(b"3000000\n")
    assert len(await asyncio.wait_for(child.stdout.readline(), 10)) == 3000001
    assert await child.wait() == 0


@pytest.mark.anyio
async def test_a_program_that_is_not_there(tmp_path: Path):
    with pytest.raises(SetupError, match="no-such-program"):
        await ChildProcess.spawn_logged([tmp_path / "no-such-program"], name="ghost", log=tmp_path / "log")
