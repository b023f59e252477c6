"""A version is installed once, whole or not at all, and found out when it is damaged; what goes wrong says what to do.

Java and Maven are programs of our own here, save in the last test.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.setup_error import SetupError
from harness.systems.pulsar import install as installing
from harness.systems.pulsar import lock as locks
from harness.systems.pulsar import maven as mavens
from harness.systems.pulsar import standalone
from harness.systems.pulsar.fetch import TOLD_EVERY
from harness.systems.pulsar.install import ensure_installed, install, remove
from harness.systems.pulsar.installation import Installation, find, installed, installed_versions
from harness.systems.pulsar.jdk import Java, find_java
from harness.systems.pulsar.lock import Lock, pinned_versions
from harness.systems.pulsar.pin import main as pin_main
from harness.systems.pulsar.version import NEWEST_LTS, PulsarVersion
from tests.fake_maven import Machine, fake_lock
from tests.real_pulsar import real_pulsar_or_skip

ROOT = Path(__file__).parent.parent
PATIENCE_S = 20.0

V = PulsarVersion(4, 0, 7)
UNPINNED = PulsarVersion(2, 8, 99)
COORDINATES = ("org.apache.pulsar:pulsar-broker:4.0.7", "io.netty:epoll:1.0:linux-x86_64", "a.b:c:1")
LOCK = fake_lock(V, *COORDINATES)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Java 17, Maven, an empty cache, a lock of three jars for 4.0.7, and a training start that only writes a file."""
    it = Machine(tmp_path)
    it.java()
    it.maven(COORDINATES)
    monkeypatch.setenv("PATH", f"{it.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(it.cache))
    for variable in ("JAVA_HOME", "MAVEN_HOME", "M2_HOME"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(locks, "lock_directory", lambda: tmp_path / "locks")
    pin(it, LOCK)
    monkeypatch.setattr(standalone, "training_start", train)
    return it


def pin(machine: Machine, lock: Lock) -> None:
    (machine.root / "locks" / f"{lock.version}.lock").write_text(lock.text())


async def train(installation: Installation, java: Java, archive: Path) -> None:
    archive.parent.mkdir(exist_ok=True)
    archive.write_text(f"classes for {java.version}")


def made(version: PulsarVersion = V, **options: bool) -> tuple[Installation, list[str]]:
    said: list[str] = []
    return asyncio.run(install(version, said.append, **options)), said


def until(what: str, condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.02)


# --- what is installed ------------------------------------------------------------------------------------------------


def test_a_pinned_version_is_fetched_checked_and_found_again(machine: Machine):
    assert find(V) is None
    assert installed() == []
    found, said = made()
    assert found == find(V)
    assert installed() == [found]
    assert [path.read_text() for path in found.jars] == list(COORDINATES)
    assert found.classpath.split(os.pathsep) == [str(path) for path in found.jars]
    assert found.size == sum(path.stat().st_size for path in found.directory.rglob("*") if path.is_file())
    found.verify()
    assert said[0] == "fetching 3 jars with Maven"
    assert any("verifying" in line for line in said)
    assert "class-data archive for Java 17.0.15" in said[-1]
    assert machine.kept() == [".4.0.7.lock", "4.0.7"]
    assert len(machine.calls()) == 1


def test_what_is_there_is_not_fetched_again_unless_asked(machine: Machine):
    first, _ = made()
    second, said = made()
    assert (second, said) == (first, [])
    assert asyncio.run(ensure_installed(V)) == first
    assert len(machine.calls()) == 1
    third, _ = made(again=True)
    assert third == first
    assert len(machine.calls()) == 2
    assert machine.kept() == [".4.0.7.lock", "4.0.7"]


def test_a_version_nobody_pinned_is_resolved_and_written_down(machine: Machine):
    foreign = (
        "io.netty:tcnative:2:osx-x86_64",
        "org.bouncycastle:bcpkix-jdk18on:1",
        "org.bouncycastle:bcprov-jdk18on:1",
    )
    machine.maven((*COORDINATES, *foreign))
    found, said = made(UNPINNED)
    assert "not pinned" in said[0]
    assert found.lock == fake_lock(UNPINNED, *COORDINATES, foreign[-1])
    assert sorted(path.name for path in (found.directory / "lib").iterdir()) == sorted(
        jar.file for jar in found.lock.jars
    )
    assert find(UNPINNED) == found
    found.verify()


def test_jars_that_are_pinned_otherwise_by_now_are_fetched(machine: Machine):
    made()
    other = fake_lock(V, *COORDINATES, "one:more:1")
    pin(machine, other)
    assert asyncio.run(ensure_installed(V)).lock == other
    assert len(machine.calls()) == 2


def test_progress_counts_jars(machine: Machine):
    pin(machine, fake_lock(V, *(f"a:b{number}:1" for number in range(2 * TOLD_EVERY + 1))))
    _, said = made()
    assert [line for line in said if "downloaded" in line] == ["downloaded 10 of 21 jars", "downloaded 20 of 21 jars"]


def test_two_at_once_make_one_installation(machine: Machine):
    said: list[str] = []

    async def both() -> list[Installation]:
        return await asyncio.gather(install(V, said.append), install(V, said.append))

    first, second = asyncio.run(both())
    assert first == second
    assert len(machine.calls()) == 1
    assert any("waiting for another process" in line for line in said)
    assert sum("class-data archive" in line for line in said) == 1


def test_removed_is_gone(machine: Machine):
    made()
    assert asyncio.run(remove(V))
    assert find(V) is None
    assert not asyncio.run(remove(V))
    assert machine.kept() == [".4.0.7.lock"]


# --- the class-data archive -------------------------------------------------------------------------------------------


def test_each_java_has_an_archive_of_its_own(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    found, _ = made()
    java = find_java()
    first = found.archive(java)
    assert first is not None
    assert first.read_text() == "classes for 17.0.15"
    monkeypatch.setenv("JAVA_HOME", str(machine.java("21.0.2", home="other")))
    other = find_java()
    assert found.archive(other) is None
    said: list[str] = []
    asyncio.run(ensure_installed(V, said.append))
    assert said == ["making the class-data archive for Java 21.0.2: one start of pulsar@4.0.7"]
    second = found.archive(other)
    assert second is not None
    assert second != first
    assert found.archive(java) == first


def test_jars_that_were_touched_need_another_archive_and_the_old_one_goes(machine: Machine):
    found, _ = made()
    java = find_java()
    first = found.archive(java)
    os.utime(found.jars[0], ns=(1, 1))
    assert found.archive(java) is None
    asyncio.run(ensure_installed(V))
    assert found.archive(java) not in (None, first)
    assert len(list((found.directory / "archives").iterdir())) == 1


def test_a_java_that_makes_no_archives_goes_without(machine: Machine):
    machine.java("11.0.20")
    found, said = made(UNPINNED)
    assert not any("archive" in line for line in said)
    assert found.archive(find_java()) is None


def test_a_training_start_that_fails_is_told_and_tried_again_next_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
):
    async def dies(installation: Installation, java: Java, archive: Path) -> None:
        raise SetupError("pulsar 4.0.7 does not end within 30 s\n    its log")

    monkeypatch.setattr(standalone, "training_start", dies)
    found, said = made()
    assert said[-1] == "no archive was made, starts take twice as long: pulsar 4.0.7 does not end within 30 s"
    assert found.archive(find_java()) is None
    monkeypatch.setattr(standalone, "training_start", train)
    assert asyncio.run(ensure_installed(V)).archive(find_java()) is not None
    assert len(machine.calls()) == 1, "the jars were whole"


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda jar: jar.write_text(jar.read_text().upper()), "has another content"),
        (lambda jar: jar.write_text("short"), "has 5 bytes instead of 37"),
        (lambda jar: jar.unlink(), "cannot be read: No such file"),
    ],
)
def test_a_damaged_jar_is_named_with_the_line_that_mends_it(
    machine: Machine, damage: Callable[[Path], object], told: str
):
    found, _ = made()
    damage(found.jars[0])
    for attempt in (ensure_installed(V), install(V)):
        with pytest.raises(SetupError, match=told) as caught:
            asyncio.run(attempt)
        assert str(found.jars[0]) in caught.value.problem
        assert caught.value.mend == "Install it anew: starquake systems install pulsar@4.0.7 --again"
    made(again=True)[0].verify()


@pytest.mark.parametrize("manifest", ["", "pulsar 4.0.7, 3 jars, 9 bytes\nx\n", None])
def test_a_damaged_list_of_jars_is_told(machine: Machine, manifest: str | None):
    found, _ = made()
    path = found.directory / "jars.lock"
    path.unlink() if manifest is None else path.write_text(manifest)
    with pytest.raises(SetupError, match=r"pulsar@4\.0\.7 is damaged") as caught:
        find(V)
    assert "--again" in caught.value.mend
    assert installed_versions() == [V]
    made(again=True)[0].verify()


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mood", "told"), [("spoils", "has another content"), ("forgets", "cannot be read")])
def test_what_maven_brings_is_checked(machine: Machine, mood: str, told: str):
    machine.mood(mood)
    with pytest.raises(SetupError, match=rf"what Maven brought as \S+ is not what is pinned: .*{told}") as caught:
        made()
    assert "~/.m2/repository" in caught.value.mend
    assert machine.kept() == [".4.0.7.lock"]


def test_a_version_the_registry_lacks_names_those_that_can_be_had(machine: Machine):
    machine.mood(
        "says [ERROR] Could not find artifact org.apache.pulsar:pulsar:pom:2.8.99 in central (https://x) -> [1]"
    )
    with pytest.raises(SetupError, match=r"pulsar@2\.8\.99 cannot be had: Maven's registry does not have") as caught:
        made(UNPINNED)
    assert "known to start, are: 4.0.7." in caught.value.mend
    assert machine.kept() == [".2.8.99.lock"]


def test_a_registry_out_of_reach(machine: Machine):
    machine.mood("says [ERROR] Could not transfer artifact a:b:pom:1 from/to central (https://x): Connection refused")
    with pytest.raises(SetupError, match="cannot be fetched: Maven cannot reach its registry") as caught:
        made()
    assert "settings.xml" in caught.value.mend


def test_a_maven_that_says_nothing_any_more_is_ended(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    machine.mood("hangs")
    monkeypatch.setattr(mavens, "STALL_S", 1.0)
    with pytest.raises(SetupError, match=r"Maven has said nothing for 1 s; its last line: .*Downloaded"):
        made()
    assert machine.kept() == [".4.0.7.lock"]


def test_too_little_room_is_told_before_anything_is_fetched(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(installing, "ROOM_BYTES", 2**62)
    with pytest.raises(SetupError, match=r"no room for pulsar@4\.0\.7") as caught:
        made()
    assert "XDG_CACHE_HOME" in caught.value.mend
    assert machine.calls() == []
    assert machine.kept() == [".4.0.7.lock"]


def test_a_disk_that_fills_up_on_the_way(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    def full(directory: Path, lock: Lock) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(directory))

    monkeypatch.setattr(installing, "_verify_fetched", full)
    with pytest.raises(SetupError, match=r"no room for pulsar@4\.0\.7 .*No space left on device"):
        made()
    assert machine.kept() == [".4.0.7.lock"]


def test_a_disk_that_is_full_for_maven(machine: Machine):
    machine.mood("says [ERROR] Could not transfer artifact a:b:jar:1: /m2/b.jar.part (No space left on device)")
    with pytest.raises(SetupError, match="no space left on device"):
        made()


def test_a_cache_that_cannot_be_written(machine: Machine):
    machine.cache.write_text("a file where a directory should be")
    with pytest.raises(SetupError, match="cannot be kept in"):
        made()


# --- interrupted ------------------------------------------------------------------------------------------------------


def start(machine: Machine) -> subprocess.Popen[str]:
    """The command in a process of its own, which hangs when Maven has brought two jars. Java 11 makes no archive."""
    machine.java("11.0.20")
    machine.mood("hangs")
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", "systems", "install", f"pulsar@{UNPINNED}"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until("two jars", lambda: len(list(machine.cache.rglob("*.jar"))) == 2 or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def mavens_of(machine: Machine) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(machine.bin / "mvn") in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_ctrl_c_leaves_nothing(machine: Machine):
    process = start(machine)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    assert machine.kept() == [".2.8.99.lock"]
    assert mavens_of(machine) == []


def test_what_a_killed_install_left_is_cleared_away(machine: Machine):
    process = start(machine)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    until("the end of Maven", lambda: not mavens_of(machine))
    assert find(UNPINNED) is None
    assert len(machine.kept()) == 2
    machine.mood("")
    made(UNPINNED)[0].verify()
    assert machine.kept() == [".2.8.99.lock", "2.8.99"]


# --- the command ------------------------------------------------------------------------------------------------------


def command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["systems", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def test_the_command_installs_lists_and_removes(machine: Machine):
    assert "can be installed" in command("list")[1]
    code, said = command("install", "pulsar@4.0.7", f"pulsar@{UNPINNED}")
    assert code == 0
    assert "pulsar@4.0.7 is installed" in said
    code, listed = command("list", "--json")
    assert code == 0
    assert '"name": "pulsar@4.0.7", "state": "installed"' in listed
    assert "as Maven resolved it" in listed
    assert '"name": "lite"' in listed
    assert command("remove", "pulsar@4.0.7")[0] == 0
    assert '"name": "pulsar@4.0.7", "state": "can be installed"' in command("list", "--json")[1]


def test_what_is_removed_while_it_is_listed_is_not_there(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    command("install", "pulsar@4.0.7", f"pulsar@{UNPINNED}")
    verify = Installation.verify

    def removed_meanwhile(self: Installation) -> None:
        shutil.rmtree(self.directory)
        verify(self)

    monkeypatch.setattr(Installation, "verify", removed_meanwhile)
    code, listed = command("list", "--json")
    assert code == 0
    assert '"name": "pulsar@4.0.7", "state": "can be installed"' in listed
    assert str(UNPINNED) not in listed


def test_the_size_is_of_what_is_there_while_it_is_removed(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    found, _ = made()
    size, gone = found.size, found.jars[1]
    assert size == sum(path.stat().st_size for path in found.directory.rglob("*") if path.is_file())
    expected = size - gone.stat().st_size
    listed = list(os.walk(found.directory))
    gone.unlink()
    with monkeypatch.context() as patch:
        # As a directory is listed, and its files are gone when they are asked for their sizes.
        patch.setattr(os, "walk", lambda top: iter(listed))
        assert found.size == expected
    shutil.rmtree(found.directory)
    assert found.size == 0


def test_a_damaged_version_is_listed_as_such(machine: Machine):
    found, _ = made()
    found.jars[1].write_text("?")
    code, said = command("list", "--json")
    assert code == 0
    assert '"name": "pulsar@4.0.7", "state": "damaged"' in said
    assert "--again" in said
    assert command("install", "pulsar@4.0.7")[0] == 2
    assert command("install", "pulsar@4.0.7", "--again")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("install", "pulsar@4"), "no version of Pulsar"),
        (("install", "pulsar@2.7.0"), "too old"),
        (("install", "lite"), "'lite' cannot be installed or removed; pulsar@VERSION can"),
        (("install",), "Missing argument"),
        (("remove", "pulsar@4.0.7"), "pulsar@4.0.7 is not installed"),
        (("start", "pulsar://127.0.0.1:1"), "'pulsar://127.0.0.1:1' is nothing to start"),
        (("start", "nonsense"), "'nonsense' is nothing to start"),
    ],
)
def test_what_the_command_refuses(machine: Machine, arguments: tuple[str, ...], told: str):
    code, said = command(*arguments)
    assert code == 2
    assert told in said
    assert machine.calls() == []


@pytest.mark.parametrize(
    ("lacking", "told"), [("java", "there is no Java"), ("mvn", "there is no Maven"), ("new java", "needs Java 17")]
)
def test_what_is_missing_ends_the_command_with_what_to_do(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, lacking: str, told: str
):
    if lacking == "new java":
        machine.java("11.0.20")
    else:
        (machine.bin / lacking).unlink()
    # Without the machine's own Java and Maven; a Python program of ours names its interpreter.
    monkeypatch.setenv("PATH", str(machine.bin))
    code, said = command("install", "pulsar@4.0.7")
    assert code == 2
    assert told in said
    assert "apt-get install" in said


# --- for maintainers --------------------------------------------------------------------------------------------------


def test_pinning_writes_a_lock_that_installs(machine: Machine, capsys: pytest.CaptureFixture[str]):
    assert pin_main([str(UNPINNED)]) == 0
    assert locks.pinned(UNPINNED) == fake_lock(UNPINNED, *COORDINATES)
    assert capsys.readouterr().out == f"{machine.root / 'locks' / '2.8.99.lock'}\n"
    found, said = made(UNPINNED)
    assert "with Maven" in said[0]
    assert found.lock == locks.pinned(UNPINNED)
    machine.mood("says [ERROR] Could not find artifact a:b:jar:1 in central")
    assert pin_main(["2.8.98"]) == 2
    assert pin_main(["nonsense"]) == 2
    assert not (machine.root / "locks" / "2.8.98.lock").exists()


# --- for real ---------------------------------------------------------------------------------------------------------


def test_the_newest_lts_is_installed_as_pinned_and_starts_are_fast():
    found = real_pulsar_or_skip()
    assert found.version == NEWEST_LTS
    assert NEWEST_LTS in pinned_versions()
    assert found.lock == locks.pinned(NEWEST_LTS)
    found.verify()
    archive = found.archive(find_java(NEWEST_LTS))
    assert archive is not None
    assert archive.stat().st_size > 10_000_000
    main = subprocess.run(
        [find_java().path, f"-XX:SharedArchiveFile={archive}", "-Xshare:on", "-cp", found.classpath,
         "org.apache.pulsar.PulsarStandaloneStarter", "--help"],
        capture_output=True, text=True, timeout=60, cwd=found.directory, check=False,
    )  # fmt: skip
    assert "--bookkeeper-dir" in main.stdout + main.stderr


def test_a_damaged_copy_of_a_real_installation_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One bit in a jar of megabytes, its size and time unchanged."""
    real = real_pulsar_or_skip()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shutil.copytree(real.directory, tmp_path / "starquake" / "pulsar" / str(real.version), copy_function=os.symlink)
    copy = find(real.version)
    assert copy is not None
    copy.verify()
    jar = max(copy.jars, key=lambda path: path.stat().st_size)
    content, times = bytearray(jar.read_bytes()), jar.stat()
    jar.unlink()
    content[len(content) // 2] ^= 1
    jar.write_bytes(content)
    os.utime(jar, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(SetupError, match=f"{jar.name} has another content"):
        copy.verify()
    real.verify()
