"""The server is found, checked and built once; what goes wrong says what to do."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.faults import toxiproxy_binary
from harness.faults.toxiproxy_binary import find, obtain
from harness.setup_error import SetupError

FAKE_SERVER = "#!/bin/sh\necho toxiproxy-server version {version}\n"

# Stands for `go`: knows its version and "installs" a server after a while. Counts its installs in a file.
FAKE_GO = """#!{python}
import os, pathlib, sys, time
if sys.argv[1] == "env":
    print("go1.26.8")
    sys.exit()
with open({count!r}, "a") as count:
    count.write(" ".join(sys.argv[1:]) + "\\n")
time.sleep(0.3)
if {fails!r}:
    sys.exit("no route to proxy.example")
assert os.environ["GOTOOLCHAIN"] == "local" and os.environ["GOFLAGS"] == "-mod=mod"
cache = pathlib.Path(os.environ["GOBIN"]) / "gopath" / "mod"
cache.mkdir(parents=True)
(cache / "file").write_text("")
cache.chmod(0o500)
server = pathlib.Path(os.environ["GOBIN"]) / "server"
server.write_text({server!r})
server.chmod(0o755)
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Machine:
    """A PATH and a cache of our own."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.cache = root / "cache"
        self.count = root / "count"

    def go(self, version: str = "2.12.0", fails: bool = False) -> None:
        server = FAKE_SERVER.format(version=version)
        text = FAKE_GO.format(python=sys.executable, count=str(self.count), fails=fails, server=server)
        program(self.bin / "go", text)

    def installs(self) -> list[str]:
        return self.count.read_text().splitlines() if self.count.exists() else []

    def left(self) -> list[str]:
        return sorted(path.name for path in toxiproxy_binary.cached_path().parent.iterdir())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    it = Machine(tmp_path)
    it.bin.mkdir()
    monkeypatch.setenv("PATH", f"{it.bin}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(it.cache))
    return it


def test_a_server_on_path_is_taken_if_its_version_is_right(machine: Machine):
    program(machine.bin / "toxiproxy-server", FAKE_SERVER.format(version="2.12.3"))
    found = obtain()
    assert (found.path, found.version, found.source) == (machine.bin / "toxiproxy-server", "2.12.3", "PATH")


@pytest.mark.parametrize("version", ["2.9.0", "git", "2.120.0"])
def test_another_version_on_path_is_passed_over(machine: Machine, version: str):
    program(machine.bin / "toxiproxy-server", FAKE_SERVER.format(version=version))
    machine.go()
    assert find() is None
    assert obtain().source == "cache"


def test_built_once_by_however_many_ask_at_once(machine: Machine):
    machine.go()
    code = "from harness.faults.toxiproxy_binary import obtain; print(obtain().path)"
    answers: list[str] = []

    def ask() -> None:
        root = str(Path(__file__).parent.parent)
        answers.append(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30, cwd=root
            ).stdout.strip()
        )

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [str(toxiproxy_binary.cached_path())] * 3
    assert len(machine.installs()) == 1
    assert machine.installs()[0].endswith("github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0")
    assert machine.left() == ["lock", "toxiproxy-server"], "the read-only module cache is gone too"


def test_a_build_that_says_another_version_is_not_kept(machine: Machine):
    machine.go(version="git")
    with pytest.raises(SetupError, match=r"says it is git, not 2\.12\.0"):
        obtain()
    assert machine.left() == ["lock"]


def test_a_failed_build_shows_what_go_said_and_what_to_do(machine: Machine):
    machine.go(fails=True)
    said: list[str] = []
    with pytest.raises(SetupError, match=r"no route to proxy\.example") as caught:
        obtain(said.append)
    assert "on PATH" in caught.value.mend
    assert any("building" in text for text in said)
    assert machine.left() == ["lock"]


def test_a_cache_that_cannot_be_written(machine: Machine):
    machine.go()
    machine.cache.write_text("a file where a directory should be")
    with pytest.raises(SetupError, match="cannot be built in"):
        obtain()
