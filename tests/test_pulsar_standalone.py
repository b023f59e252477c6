"""What starts a standalone broker, and what is said when it does not start; the broker itself is played by another."""

from __future__ import annotations

import asyncio
import shutil
import socket
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from harness.setup_error import SetupError
from harness.systems.broker_process import SETTINGS
from harness.systems.handshake import handshake
from harness.systems.pulsar import ports, standalone
from harness.systems.pulsar.ports import HOST, Ports, free_block, listens, taken, who_has
from harness.systems.pulsar.settings import configured, java_command, standalone_conf
from harness.systems.pulsar.standalone import PortTaken, Standalone
from harness.systems.pulsar.start_failure import explain, telling_lines
from harness.systems.pulsar.version import PulsarVersion

ROOT = Path(__file__).parent.parent
V4, V2 = PulsarVersion(4, 0, 7), PulsarVersion(2, 10, 5)
PORTS = Ports(1, 2, 3, 4)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- settings ---------------------------------------------------------------------------------------------------------


def test_our_settings_are_pulsars():
    text = standalone_conf(
        PORTS, {"ledger_max_entries": 5, "ledger_max_megabytes": 7, "ledger_max_minutes": 9, "dedup": True}
    )
    lines = set(text.splitlines())
    assert lines >= {
        "brokerServicePort=1",
        "webServicePort=4",
        "bindAddress=127.0.0.1",
        "advertisedAddress=127.0.0.1",
        "managedLedgerMaxEntriesPerLedger=5",
        "managedLedgerMaxSizePerLedgerMbytes=7",
        "managedLedgerMaxLedgerRolloverTimeMinutes=9",
        "brokerDeduplicationEnabled=true",
        "acknowledgmentAtBatchIndexLevelEnabled=true",
        "maxMessageSize=5242880",
        "nettyMaxFrameSizeBytes=5253120",
    }
    assert len({line.split("=")[0] for line in lines}) == len(text.splitlines()), "each is said once"


def test_every_setting_changes_the_configuration():
    for name, kind in SETTINGS.items():
        assert configured({name: kind(3)}) != configured({}), name


def test_the_bookie_takes_what_an_earlier_limit_allowed():
    assert configured({"max_message_size": 100_000})["nettyMaxFrameSizeBytes"] == "5253120"
    assert configured({"max_message_size": 10_000_000})["nettyMaxFrameSizeBytes"] == "10010240"


@pytest.mark.parametrize("settings", [{"ledgers": 1}, {"dedup": 1}, {"ledger_max_entries": True}])
def test_settings_that_are_none(settings: dict[str, Any]):
    with pytest.raises(ValueError, match="there are ledger_max_entries"):
        configured(settings)


def test_where_the_metadata_is_kept_depends_on_the_version():
    old = java_command(Path("java"), "jars", V2, PORTS, Path("/d"), ())
    new = java_command(Path("java"), "jars", V4, PORTS, Path("/d"), ("-XX:Sharing",))
    assert old[old.index("--zookeeper-port") + 1] == "3"
    assert "--metadata-dir" not in old
    assert new[new.index("--metadata-dir") + 1] == "/d/metadata"
    assert "--zookeeper-dir" not in new
    assert new.index("-XX:Sharing") < new.index("-cp"), "after the class path they would be the broker's arguments"


# --- ports ------------------------------------------------------------------------------------------------------------


def test_a_free_block_can_be_listened_on_and_is_no_near_end_of_a_connection():
    block = free_block()
    numbers = list(block.all().values())
    assert numbers == list(range(block.broker, block.broker + 4))
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert numbers[-1] < first_ephemeral
    assert taken(block) == []
    with socket.create_server((HOST, block.bookie)):
        assert taken(block) == [block.bookie]
        assert (
            who_has(block.bookie) == f"port {block.bookie} ({psutil.Process().name()}, process {psutil.Process().pid})"
        )
        assert listens(psutil.Process().pid, block.bookie)
        assert not listens(psutil.Process().pid, block.web)
    assert who_has(block.web) == f"port {block.web}"


def test_no_free_block(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ports, "taken", lambda block: [1])
    with pytest.raises(SetupError, match="no four free ports"):
        free_block()


# --- what it died of --------------------------------------------------------------------------------------------------

LOG = """\
17:59:27.000 ERROR Journal: Problems reading from lastMark (this is okay if it is the first time starting this bookie
17:59:30.300 ERROR PulsarService: Failed to start Pulsar service: java.lang.IllegalArgumentException: port out of range
\tat java.base/java.net.InetSocketAddress.checkPort(InetSocketAddress.java:152)
\t... 19 more

17:59:30.306 ERROR PulsarService: Failed to start Pulsar service: java.lang.IllegalArgumentException: port out of range
17:59:30.312 ERROR PulsarStandaloneStarter: Failed to start pulsar service.
java.lang.IllegalArgumentException: port out of range
Caused by: java.lang.RuntimeException: {0}
"""


def test_what_tells_is_shown():
    assert telling_lines(LOG.format("x" * 1000)) == [
        "17:59:30.306 ERROR PulsarService: Failed to start Pulsar service: "
        "java.lang.IllegalArgumentException: port out of range",
        "17:59:30.312 ERROR PulsarStandaloneStarter: Failed to start pulsar service.",
        "java.lang.IllegalArgumentException: port out of range",
        "Caused by: java.lang.RuntimeException: " + "x" * 260 + "…",
    ]
    assert telling_lines(LOG, 1) == ["Caused by: java.lang.RuntimeException: {0}"]


@pytest.mark.parametrize(
    ("log", "full_disk", "problem", "mend"),
    [
        ("java.io.IOException: No space left on device", False, "no room", "Make room"),
        ("", True, "no room", "Make room"),
        ("UnsupportedClassVersionError: has been compiled by a more recent version", False, "Java", "JAVA_HOME"),
        ("Unrecognized option: --add-opens=java.base/sun.net=ALL-UNNAMED", False, "Java", "JAVA_HOME"),
        ("java.lang.NoClassDefFoundError: org/apache/x", False, "jars", "install pulsar@4.0.7 --again"),
        ("java.lang.OutOfMemoryError: Direct buffer memory", False, "memory", "350 MB"),
        ("java.net.BindException: Address already in use", False, "listens", "Try again"),
        ("something else", False, "end of its log", "doctor"),
        ("", False, "wrote nothing", "doctor"),
    ],
)
def test_what_it_died_of(log: str, full_disk: bool, problem: str, mend: str):
    found = explain(log, "4.0.7", full_disk=full_disk)
    assert problem in found.problem
    assert mend in found.mend


# --- a broker that is played ------------------------------------------------------------------------------------------

PLAYED = """\
import asyncio, sys
sys.path.insert(0, {root!r})
from harness.reference.broker.config import BrokerConfig
from harness.systems.reference_server import ReferenceServer

async def web(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\nconnection: close\\r\\n\\r\\n{{}}")
    writer.close()

async def main():
    conf = dict(line.strip().split("=", 1) for line in open(sys.argv[sys.argv.index("-c") + 1]))
    try:
        await asyncio.start_server(web, "127.0.0.1", int(conf["webServicePort"]))
        config = BrokerConfig(max_message_size=int(conf["maxMessageSize"]))
        await ReferenceServer(config, port=int(conf["brokerServicePort"])).start()
    except OSError:
        print("java.net.BindException: Address already in use", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def played_by(program: str, tmp_path: Path, **options: Any) -> Standalone:
    """A standalone whose Java is this Python program."""
    java = tmp_path / "java"
    java.write_text(f"#!{sys.executable}\n{program}")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    installation: Any = SimpleNamespace(version=V4, classpath="jars")
    found: Any = SimpleNamespace(path=java)
    return Standalone(installation, found, None, tmp_path / "data", **options)


@pytest.fixture
async def played(tmp_path: Path):
    broker = played_by(PLAYED.format(root=str(ROOT)), tmp_path)
    yield broker
    await broker.kill()


@pytest.mark.anyio
async def test_a_life(played: Standalone):
    assert not played.running
    for call in (played.kill, played.terminate, played.pause, played.resume):
        await call()
    with pytest.raises(SetupError, match="not started"):
        _ = played.ports
    await played.start()
    first = played.ports
    assert played.running
    await played.pause()
    assert psutil.Process(played.pid).status() == psutil.STATUS_STOPPED
    assert played.running
    await played.resume()
    await played.kill()
    assert not played.running
    await played.start_again({"max_message_size": 1000})
    assert played.ports == first
    assert (await handshake(HOST, first.broker, 5)).max_message_size == 1000
    await played.pause()
    await played.terminate()
    assert not played.running, "SIGTERM reaches what is stopped"
    await played.start_again({"dedup": True})
    assert (await handshake(HOST, first.broker, 5)).max_message_size == 1000, "what was set before still holds"
    pid = played.pid
    await played.start_again()
    assert played.pid != pid, "what runs is stopped first"


@pytest.mark.anyio
async def test_a_port_taken_in_the_last_moment_means_other_ports(played: Standalone, monkeypatch: pytest.MonkeyPatch):
    real, seen = standalone.taken, []

    def blind_at_first(block: Ports) -> list[int]:
        seen.append(block)
        return [] if len(seen) == 1 else real(block)

    block = free_block()
    blocks = iter([block, free_block()])
    monkeypatch.setattr(standalone, "taken", blind_at_first)
    monkeypatch.setattr(standalone, "free_block", lambda: next(blocks))
    with socket.create_server((HOST, block.broker)):
        await played.start()
    assert seen[0] == block
    assert played.ports != block


@pytest.mark.anyio
async def test_fixed_ports_that_are_taken_are_told_with_who_has_them(tmp_path: Path):
    block = free_block()
    broker = played_by(PLAYED.format(root=str(ROOT)), tmp_path, ports=block)
    with (
        socket.create_server((HOST, block.web)),
        pytest.raises(PortTaken, match=rf"port {block.web} \(.*, process {psutil.Process().pid}\) is taken"),
    ):
        await broker.start()
    assert broker.pid is None, "nothing was started"


@pytest.mark.anyio
async def test_another_broker_on_the_port_is_not_taken_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # It lives, and its ports answer as they should; but it is not the one that answers.
    other = played_by(PLAYED.format(root=str(ROOT)), tmp_path)
    await other.start()
    try:
        (tmp_path / "b").mkdir()
        silent = played_by("import time; time.sleep(60)", tmp_path / "b", ports=other.ports)
        monkeypatch.setattr(standalone, "taken", lambda block: [])
        monkeypatch.setattr(standalone, "START_TIMEOUT_S", 1.0)
        with pytest.raises(SetupError, match="not ready after 1 s: it does not listen on its port"):
            await silent.start()
        assert not silent.running
    finally:
        await other.kill()


@pytest.mark.anyio
async def test_a_broker_that_dies_is_told_with_its_last_words(tmp_path: Path):
    broker = played_by("print('java.lang.IllegalStateException: no'); raise SystemExit(3)", tmp_path)
    with pytest.raises(SetupError) as caught:
        await broker.start()
    assert "pulsar 4.0.7 ended with status 3 at its start" in str(caught.value)
    assert "\n    java.lang.IllegalStateException: no\n" in str(caught.value)
    assert broker.logs_tail().startswith("java.lang")


@pytest.mark.anyio
async def test_a_broker_that_is_killed_from_outside_is_told(tmp_path: Path):
    broker = played_by("import os; os.kill(os.getpid(), 9)", tmp_path)
    with pytest.raises(SetupError, match="was ended by SIGKILL"):
        await broker.start()


@pytest.mark.anyio
async def test_words_of_an_earlier_start_are_not_blamed_on_a_later_one(played: Standalone, tmp_path: Path):
    await played.start()
    await played.kill()
    with (tmp_path / "data" / "log").open("a") as log:
        log.write("No space left on device\n")
    (tmp_path / "java").write_text(f"#!{sys.executable}\nraise SystemExit('another thing')")
    with pytest.raises(SetupError, match="end of its log follows\n    another thing"):
        await played.start_again()


@pytest.mark.anyio
async def test_a_broker_that_does_not_get_ready_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(standalone, "START_TIMEOUT_S", 0.3)
    broker = played_by("import time; print('still at it', flush=True); time.sleep(60)", tmp_path)
    begun = time.monotonic()
    with pytest.raises(SetupError, match="its admin service does not answer"):
        await broker.start()
    assert time.monotonic() - begun < 5
    assert not broker.running


@pytest.mark.anyio
async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path):
    broker = played_by("import time; time.sleep(60)", tmp_path)
    start = asyncio.create_task(broker.start())
    while broker.pid is None:
        await asyncio.sleep(0.01)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not broker.running


@pytest.mark.anyio
async def test_a_broker_that_ignores_sigterm_is_killed_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(standalone, "STOP_TIMEOUT_S", 0.3)
    program = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{PLAYED.format(root=str(ROOT))}"
    broker = played_by(program, tmp_path)
    await broker.start()
    with pytest.raises(SetupError, match="does not end within 0 s of SIGTERM"):
        await broker.terminate()
    assert not broker.running


@pytest.mark.anyio
async def test_a_directory_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(SetupError, match=r"cannot use .*data: File exists"):
        await played_by("", tmp_path).start()


@pytest.mark.anyio
async def test_too_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=12_000_000))
    with pytest.raises(SetupError, match=r"12 MB left, and pulsar 4\.0\.7 needs 200 MB"):
        await played_by("", tmp_path).start()


@pytest.mark.anyio
async def test_a_java_that_is_not_there(tmp_path: Path):
    broker = played_by("", tmp_path)
    (tmp_path / "java").unlink()
    with pytest.raises(SetupError, match="cannot run"):
        await broker.start()
