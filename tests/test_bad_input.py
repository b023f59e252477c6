"""What goes wrong around a run: a message that says what to do, the right exit code, no traceback, no process left
behind, the history so far on disk. Where processes matter the command is one of its own, with real parts."""

import asyncio
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from harness.check import check
from harness.clauses.catalogue import load
from harness.cli import app
from harness.clients.adapter_process import AdapterProcess
from harness.clients.client import AdapterDied
from harness.faults.toxiproxy_binary import obtain
from harness.history.event import Event
from harness.history.parquet import HistoryWriter, RunInfo, read_run_info
from harness.known_failing import read
from harness.seeds.rate import Rate
from harness.seeds.seed import Expectation, encode, make_seed
from harness.systems.lite import lite_binary
from harness.worlds.plan import Fault, Operation, Plan, ScheduledFault

ROOT = Path(__file__).resolve().parent.parent
MARK = "STARQUAKE_TEST_MARK"
PATIENCE_S = 30.0
HISTORIES_READ = 6
"""How many of a run's two dozen histories are read again: they are all written by the same code."""

GATE = ("gate", "--select", "CONN-0[56]", "--report", "out")
SMALL = ("gate", "--system", "simulated", "--select", "CONN-05", "--report", "out")


# --- running the command ----------------------------------------------------------------------------------------------


def until(what: str, condition: Callable[[], object]) -> None:
    """Wait for a condition; that it never comes is a failure and says which."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.02)


@dataclass
class Run:
    """The command as a process of its own; every process it starts inherits its mark."""

    directory: Path
    process: subprocess.Popen[str]
    mark: str
    stdout: str = ""
    stderr: str = ""

    def family(self) -> list[psutil.Process]:
        """All living processes that carry the mark, the command itself among them."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def child(self, word: str) -> psutil.Process | None:
        """The process whose command line has the word."""
        for process in self.family():
            try:
                if process.pid != self.process.pid and word in " ".join(process.cmdline()):
                    return process
            except psutil.Error:
                continue
        return None

    def parts(self) -> list[Path]:
        """History files that are on disk."""
        return list(self.directory.glob("out/runs/*/history/*.parquet"))

    def until_recording(self) -> None:
        until("a history on disk", lambda: self.parts() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()

    def end(self) -> int:
        """Wait for its end and for that of all it started; the exit code. A traceback or an orphan is a failure."""
        self.stdout, self.stderr = self.process.communicate(timeout=60)
        assert "Traceback" not in self.stdout + self.stderr
        until("the end of every process", lambda: not self.family())
        return self.process.returncode

    @property
    def told(self) -> str:
        """All it said, in one line: a table wraps at the width of no terminal."""
        return " ".join((self.stdout + self.stderr).split())


@dataclass
class Command:
    """Starts the command in an empty directory."""

    directory: Path
    runs: list[Run] = field(default_factory=list)

    def start(self, *arguments: str, env: dict[str, str] | None = None, **options: object) -> Run:
        mark = f"{os.getpid()}-{len(self.runs)}-{time.monotonic_ns()}"
        path = os.pathsep.join(filter(None, [(env or {}).get("PYTHONPATH", ""), str(ROOT)]))
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", *arguments], cwd=self.directory, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **(env or {}), "PYTHONPATH": path, MARK: mark}, **options,
        )  # fmt: skip
        run = Run(self.directory, process, mark)
        self.runs.append(run)
        return run

    def __call__(self, *arguments: str, **options: object) -> Run:
        run = self.start(*arguments, **options)
        run.end()
        return run


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    for run in command.runs:
        for process in run.family():
            process.kill()


def refused(*arguments: str) -> str:
    """What the command says on stderr when it refuses its arguments; in this process, as nothing may be started."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stderr.count("starquake:") == 1
    return " ".join(result.stderr.split())


def verdicts(directory: Path) -> set[str]:
    return {cell["verdict"] for cell in json.loads((directory / "out" / "gate.json").read_bytes())["cells"]}


def histories_are_readable(run: Run) -> None:
    """Every history that was begun is a whole one as far as it goes, and one that was cut short blames nobody."""
    directories = sorted({part.parent.parent for part in run.parts()})
    assert directories
    check(directories[:HISTORIES_READ], load())
    cut = [directory for directory in directories if read_run_info(directory).cut_short is not None]
    if cut:
        assert check(cut[:HISTORIES_READ], load()).failures == []


# --- names and addresses ----------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--system", "foo", "no system 'foo'; there are lite, reference"),
        ("--system", "", "no system ''"),
        ("--system", "pulsar@4", "no version of Pulsar; it should look like pulsar@4.0.7"),
        ("--system", "pulsar@2.7.5", "too old"),
        ("--system", "mutant:nope", "no mutant is called 'nope'; there are:"),
        ("--system", "127.0.0.1:6650", "pulsar://HOST:PORT"),
        ("--system", "pulsar+ssl://", "or pulsar+ssl://host:6651[,https://host:8443]"),
        ("--system", "docker:", "docker:IMAGE"),
        ("--system", "pulsar://", "it should look like pulsar://host:6650"),
        ("--system", "pulsar://127.0.0.1:port", "it should look like pulsar://host:6650"),
        ("--system", "pulsar://127.0.0.1:99999", "Port out of range 0-65535"),
        ("--system", "pulsar://127.0.0.1:0", "nobody listens on port 0"),
        ("--system", "pulsar://a b:6650", "'a b' is no host"),
        ("--system", "pulsar://me:secret@127.0.0.1:6650", "it should look like pulsar://host:6650"),
        ("--system", "pulsar://[::1", "it should look like pulsar://host:6650"),
        ("--system", "pulsar://127.0.0.1:6650,ftp://x", "should look like http://host:8080"),
        ("--client", "nope", "there is no client 'nope'; there are: python, reference"),
        ("--client", "java@3.3.0", "not available in this version; there are: python, reference"),
        ("--client", "", "there is no client ''"),
        ("--profile", "big", "there are: smoke, ci, nightly"),
        ("--select", "NOPE-99", "`starquake clauses` lists them"),
        ("--select", "conn-05", "did you mean CONN-05"),
        ("--select", "", "`starquake clauses` lists them"),
    ],
)
def test_names_nobody_knows(here: Path, option: str, value: str, says: str) -> None:
    assert says in refused("gate", option, value)


def test_a_clause_nobody_knows(here: Path) -> None:
    assert "did you mean CONN-05" in refused("clauses", "CONN-5")


def test_a_client_named_twice_is_one(here: Path) -> None:
    assert CliRunner().invoke(app, [*SMALL, "--client", "reference", "--client", "reference"]).exit_code == 0
    assert len(json.loads((here / "out" / "gate.json").read_bytes())["pairs"]) == 1


# --- ports that are no broker's ---------------------------------------------------------------------------------------


@contextmanager
def port_where(handle: Callable[[socket.socket], object]) -> Iterator[int]:
    """A port of 127.0.0.1 whose connections are handled so, each in a thread."""

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                handle(connection)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def speaks_http(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def answers_with_a_page(connection: socket.socket) -> None:
    # As Python's own server does when the first line is none of HTTP.
    connection.recv(4096)
    connection.sendall(b"<!DOCTYPE HTML>\n<html><head><title>Error response</title></head></html>")


def waits_for_a_whole_request(connection: socket.socket) -> None:
    received = b""
    while b"\r\n\r\n" not in received:
        data = connection.recv(4096)
        if not data:
            return
        received += data
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def speaks_ssh(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    connection.recv(4096)


def closes_at_once(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def says_nothing(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


@pytest.mark.parametrize(
    ("handle", "says"),
    [
        (speaks_http, "This is an HTTP port; give the port of the binary protocol (6650)"),
        (answers_with_a_page, "This is an HTTP port; give the port of the binary protocol (6650)"),
        (waits_for_a_whole_request, "This is an HTTP port; give the port of the binary protocol (6650)"),
        (speaks_ssh, "it begins b'SSH-2.0"),
        (closes_at_once, "without an answer to CONNECT"),
        (says_nothing, "no answer to CONNECT within 0.5 s"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_port_that_is_no_brokers(
    here: Path, monkeypatch: pytest.MonkeyPatch, handle: Callable[[socket.socket], object], says: str
) -> None:
    monkeypatch.setattr("harness.systems.external.HANDSHAKE_TIMEOUT_S", 0.5)
    monkeypatch.setattr("harness.systems.stranger.ASK_TIMEOUT_S", 0.5)
    with port_where(handle) as port:
        told = refused("gate", "--client", "reference", "--system", f"pulsar://127.0.0.1:{port}")
    assert f"could not be run: no Pulsar broker at pulsar://127.0.0.1:{port}" in told
    assert says in told


def test_a_port_that_speaks_tls(here: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
         "-days", "1", "-subj", "/CN=localhost"], check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("cert.pem", "key.pem")
    with port_where(lambda connection: context.wrap_socket(connection, server_side=True)) as port:
        told = refused("gate", "--client", "reference", "--system", f"pulsar://127.0.0.1:{port}")
    assert f"This is a TLS port; give it as pulsar+ssl://127.0.0.1:{port}." in told


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("pulsar://127.0.0.1:1", "Connection refused Check the address"),
        ("pulsar://broker.invalid:6650", "no connection: "),
        (f"pulsar://{'a' * 300}:6650", "is no host name"),
    ],
)
def test_an_address_where_nobody_is(here: Path, address: str, says: str) -> None:
    assert says in refused("gate", "--client", "reference", "--system", address)


def test_nothing_is_left_of_a_broker_that_cannot_be_reached(command: Command) -> None:
    run = command(*GATE, "--system", "pulsar://127.0.0.1:1")
    assert run.process.returncode == 2
    # One message for both clients: the address is one mistake, not two.
    assert run.stderr.count("no connection: Connection refused") == 1
    assert verdicts(command.directory) == set()


# --- files that are given ---------------------------------------------------------------------------------------------

PLAN = Plan(
    operations=[Operation(verb="producer", handle="p"), Operation(verb="send", handle="p", params={"tag": "x"})]
)


def seed_bytes(plan: Plan = PLAN, expect: tuple[str, str] = ("CONN-05", "overtaken"), **changes: str) -> bytes:
    parties = {"protocol": "pulsar", "system": "simulated", "client": "reference", **changes}
    return encode(make_seed(Expectation(*expect), plan, versions={}, rate=Rate(1, 1), **parties))


def seed_with(**changes: object) -> bytes:
    return json.dumps({**json.loads(seed_bytes()), **changes}).encode()


def step(verb: str, **params: object) -> bytes:
    return seed_bytes(Plan(operations=[*PLAN.operations, Operation(verb=verb, handle="p", params=params)]))


def fault(**fields: object) -> bytes:
    return seed_bytes(Plan(operations=PLAN.operations, schedule=[ScheduledFault(before=0, fault=Fault(**fields))]))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (seed_bytes()[:99], "is not JSON, or only a part of it"),
        (bytes(range(256)), "is not JSON"),
        ("\ufeff{}".encode("utf-16"), "is not JSON"),
        (b"[" * 50_000, "is not JSON"),
        (b"[]", 'a seed is a JSON object with a "format"'),
        (seed_with(format=2), "has seed format 2; this version reads format 1 only"),
        (seed_with(format=None), "this version reads format 1 only"),
        (seed_with(format=10**30), "this version reads format 1 only"),
        (seed_with(operations="x"), "Expected `array`, got `str` - at `$.operations`"),
        (seed_with(operations=[{"verb": "explode"}]), "Invalid enum value 'explode'"),
        (seed_with(schedule=[{"before": 0, "fault": {"kind": "bomb"}}]), "Invalid enum value 'bomb'"),
        (seed_with(schedule=[{"before": 10**30, "fault": {"kind": "cut"}}]), "but there are 2"),
        (seed_with(colour="red"), "unknown field `colour`"),
        (seed_with(rate={"failed": 5, "tries": 1}), "5 of 1 is not a rate"),
        (seed_with(id="000000000000"), "an edited seed is another one"),
        (seed_bytes(protocol="rocketmq"), "this version replays pulsar only"),
        (seed_bytes(expect=("NOPE-99", "x")), "expects the clause 'NOPE-99'"),
        (seed_bytes(system="zzz"), "no system 'zzz'; there are"),
        (seed_bytes(client="zzz"), "has one client, 'reference'"),
        (step("send", size="big"), "operation 3 (send p): Expected `int`, got `str` - at `$.size`"),
        (step("send", size=10**18), "Expected `int` <= "),
        (step("send", sequence_id=10**30), "has more than 64 bits"),
        (step("producer", colour="red"), "unknown field `colour`"),
        (step("settle", ms=10**15), "Expected `int` <= "),
        (step("settle", ms=-1), "Expected `int` >= 0"),
        (step("ack", message="first"), "Expected `int`, got `str`"),
        (seed_bytes(Plan(operations=[Operation(verb="flush", handle="p", client="zz")])), "there are a, b"),
        (seed_bytes(Plan(operations=PLAN.operations, topic_options={"dedup": "yes"})), "topic_options may hold dedup"),
        (fault(kind="toxic", toxic="frob", stream="upstream"), "no toxic 'frob'; there are latency"),
        (fault(kind="toxic", toxic="latency", stream="upstream", attributes={"latency": "x"}), "must be an integer"),
        (fault(kind="cut", client="zz"), "there is no client 'zz'"),
    ],
)
def test_a_seed_that_is_broken(here: Path, content: bytes, says: str) -> None:
    (here / "s.json").write_bytes(content)
    assert says in refused("replay", "s.json")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent.json", "No such file or directory; `starquake seeds` lists those that are stored"),
        (".", "Is a directory"),
        ("nosuchid", "`starquake seeds` lists those that are stored"),
        ("x" * 5000, "File name too long"),
    ],
)
def test_a_seed_that_is_not_there(here: Path, name: str, says: str) -> None:
    assert says in refused("replay", name)


def test_a_sound_seed_is_not_refused(here: Path) -> None:
    (here / "s.json").write_bytes(seed_bytes())
    assert CliRunner().invoke(app, ["replay", "s.json", "--times", "1"]).exit_code == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("lite | x", "k.txt:1: 2 fields where 6 are needed: system | client"),
        ("# so\nlite | python | NOPE-99 | x | known | y", "k.txt:2: there is no clause 'NOPE-99'; `starquake clauses`"),
        ("lite | ref | CONN-05 | x | known | y", "there is no client 'ref'; `starquake clients list` lists them"),
        ("lite | python | CONN-05 | x | maybe | y", "status 'maybe' is neither 'known' nor 'flaky"),
        ("lite | python | CONN-05 | x | flaky 9/2 | y", "a rate of 9/2"),
        ("lite | python | CONN-05 | x | known | ", "the reason is empty"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
    ],
)
def test_a_known_failing_list_that_is_broken(here: Path, content: str | bytes, says: str) -> None:
    (here / "k.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert says in refused("gate", "--system", "simulated", "--known", "k.txt")


def test_a_known_failing_list_that_is_not_there(here: Path) -> None:
    assert "No such file or directory" in refused("gate", "--system", "simulated", "--known", "absent.txt")
    assert "Is a directory" in refused("gate", "--system", "simulated", "--known", ".")


def test_a_byte_order_mark_is_no_field(here: Path) -> None:
    (here / "k.txt").write_bytes(b"\xef\xbb\xbf# from an editor\r\n")
    assert read(here / "k.txt") == []


# --- histories --------------------------------------------------------------------------------------------------------


@pytest.fixture
def history(here: Path) -> Path:
    """A small sound history; its one part is what a test breaks."""
    writer = HistoryWriter(here / "run", RunInfo(run="r", system="lite", client="python"))
    for index in range(1, 4):
        writer.append(Event(index=index, time_ns=index, layer="api", kind="flush", phase="invoke", op=index, actor="p"))
    writer.close()
    return here / "run"


def part_of(history: Path) -> Path:
    (part,) = (history / "history").glob("*.parquet")
    return part


def with_column(history: Path, name: str, values: list[object]) -> None:
    table = pq.read_table(part_of(history))
    place = table.schema.get_field_index(name)
    pq.write_table(table.set_column(place, name, pa.array(values)), part_of(history))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda run: part_of(run).write_bytes(part_of(run).read_bytes()[:300]), "truncated or damaged"),
        (lambda run: part_of(run).write_bytes(b""), "truncated or damaged"),
        (lambda run: pq.write_table(pa.table({"a": [1], "b": ["x"]}), part_of(run)), "unknown columns ['a', 'b']"),
        (lambda run: with_column(run, "index", ["x", "y", "z"]), "the column index holds string, not integers"),
        (lambda run: with_column(run, "index", [7, 7, 7]), "index 7 occurs twice"),
        (lambda run: with_column(run, "layer", ["x", "y", "z"]), "does not follow the event contract"),
        (lambda run: with_column(run, "extra", ["{oops", None, None]), "does not follow the event contract"),
        (lambda run: with_column(run, "extra", ["[" * 50_000, None, None]), "does not follow the event contract"),
        (lambda run: part_of(run).unlink(), "there is no history/*.parquet"),
        (lambda run: (run / "run.json").unlink(), "it has no run.json"),
        (lambda run: (run / "run.json").write_text('{"schema": 1, '), "run.json is damaged"),
        (lambda run: (run / "run.json").write_bytes(bytes(range(256))), "run.json is damaged"),
        (lambda run: (run / "run.json").write_text("[" * 50_000), "run.json is damaged"),
        (lambda run: (run / "run.json").write_text('{"schema": 77}'), "this version reads schema 1"),
        (lambda run: (run / "run.json").write_text('{"schema": 1, "system": 5}'), "run.json is damaged"),
        (lambda run: shutil.rmtree(run), "there is no such directory"),
    ],
)
def test_a_history_that_is_broken(history: Path, harm: Callable[[Path], object], says: str) -> None:
    harm(history)
    assert says in refused("check", "run")


def test_a_report_directory_is_no_run_but_holds_some(history: Path) -> None:
    (history.parent / "out" / "runs").mkdir(parents=True)
    shutil.move(history, history.parent / "out" / "runs" / "r")
    assert "give one of the runs in it, as out/runs/r" in refused("check", "out")


def test_a_history_that_was_cut_short_decides_nothing(history: Path) -> None:
    writer = HistoryWriter(history.parent / "cut", RunInfo(run="r", system="lite", client="python"))
    writer.append(Event(index=1, time_ns=1, layer="api", kind="flush", phase="invoke", op=1, actor="p"))
    writer.cut_short("the broker was killed")
    writer.close()
    assert CliRunner().invoke(app, ["check", "cut"]).exit_code == 4


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "is not a run directory"), (b'{"schema": 1,', "is not the result of a gate run"),
     (b"[" * 50_000, "is not the result of a gate run"), (b'{"schema": 77}', "this version reads schema 1 only")],
)  # fmt: skip
def test_a_report_of_nothing(here: Path, content: bytes | None, says: str) -> None:
    (here / "r").mkdir()
    if content is not None:
        (here / "r" / "gate.json").write_bytes(content)
    assert says in refused("report", "r")


# --- where reports go, and who reads --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [("--report", "file/r"), ("--report", "file"), ("--report", "/proc/r"), ("--report", "x" * 300),
     ("--junit", "file/j.xml"), ("--junit", "directory")],
)  # fmt: skip
def test_a_place_that_cannot_be_written(here: Path, arguments: tuple[str, str]) -> None:
    (here / "file").write_text("")
    (here / "directory").mkdir()
    told = refused("gate", "--system", "simulated", *arguments)
    assert "choose another one" in told or "give the name of a file" in told


def limited(size: int) -> Callable[[], None]:
    """No file may become larger than ``size`` bytes: a full disk for whoever may write everywhere."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_full_disk_where_the_report_goes(command: Command) -> None:
    run = command(*SMALL, preexec_fn=limited(8192))
    assert run.process.returncode == 2
    # What was judged is told all the same.
    assert "1 pass" in run.told
    assert "cannot write the report out: File too large; free space there or choose another place" in run.told


def test_a_full_disk_where_the_histories_go(command: Command) -> None:
    run = command(*GATE, "--system", "reference", "--client", "reference", preexec_fn=limited(20_000))
    assert run.process.returncode == 2
    assert "cannot write the history in out/runs/" in run.told
    assert "free space there or choose another directory" in run.told
    histories_are_readable(run)


@pytest.mark.parametrize(
    ("shell", "code"),
    [
        ("gate --system simulated --select CONN-05 --report out | true", 0),
        ("gate --system nonsense | true", 2),
        ("gate --system nonsense 2>/dev/full", 2),
        ("gate --system nonsense >&- 2>&-", 2),
        ("clauses >&-", 0),
        ("clauses | head -1", 0),
        ("clauses >/dev/full", 2),
        ("--version >/dev/full", 2),
    ],
)
def test_a_reader_that_leaves_changes_no_exit_code(tmp_path: Path, shell: str, code: int) -> None:
    line = f"set -o pipefail; {sys.executable} -m harness {shell}"
    ended = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_closed_stdin_does_not_take_the_event_loop_down(tmp_path: Path) -> None:
    line = f"{sys.executable} -m harness gate --system pulsar://127.0.0.1:1 --report out <&-"
    ended = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr


# --- Toxiproxy and the rest of the machine ----------------------------------------------------------------------------


def program(path: Path, text: str, mode: int = 0o755) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def poor(directory: Path) -> dict[str, str]:
    """The environment of a machine with an empty cache, no network and only what is in ``directory/bin``."""
    (directory / "bin").mkdir(exist_ok=True)
    # A Go that is new enough and gets nothing: quicker than one from PyPI, which is not there either.
    go = '[ "$1" = env ] && { echo go1.25.0; exit; }\necho module lookup disabled by GOPROXY=off >&2; exit 1\n'
    program(directory / "bin" / "go", f"#!/bin/sh\n{go}")
    return {"PATH": str(directory / "bin"), "XDG_CACHE_HOME": str(directory / "cache"), "GOPROXY": "off"}


@pytest.mark.parametrize(
    ("server", "mode", "says"),
    [
        (None, 0, "building the Toxiproxy server failed"),
        ("#!/bin/sh\necho toxiproxy-server version 1.0.0\n", 0o755, "says that it is 1.0.0; 2.12 is needed"),
        ("#!/bin/sh\n", 0o644, "cannot be executed"),
        ("garbage", 0o755, "does not run"),
        ("#!/bin/sh\necho toxiproxy-server version 2.12.0\n", 0o755, "does not start"),
    ],
)
def test_no_usable_toxiproxy(
    here: Path, monkeypatch: pytest.MonkeyPatch, server: str | None, mode: int, says: str
) -> None:
    for name, value in poor(here).items():
        monkeypatch.setenv(name, value)
    if server is not None:
        program(here / "bin" / "toxiproxy-server", server, mode)
    told = refused(*GATE, "--system", "reference", "--client", "reference")
    assert says in told
    assert "Put a toxiproxy-server 2.12 on PATH" in told
    assert verdicts(here) == set()


def test_doctor_on_a_poor_machine(command: Command) -> None:
    run = command("doctor", "--json", env=poor(command.directory))
    findings = {line["name"]: line for line in map(json.loads, run.stdout.splitlines())}
    # Nothing that the default gate needs is missing for certain; what others need is named with what mends it.
    assert run.process.returncode == 0
    assert not findings["java"]["ok"]
    assert findings["java"]["mend"]
    assert "builds 2.12.0" in findings["toxiproxy"]["detail"]


def test_doctor_on_a_machine_that_cannot_run_the_gate(command: Command) -> None:
    run = command("doctor", env={**poor(command.directory), "XDG_CACHE_HOME": "/proc/cache"})
    assert run.process.returncode == 2
    assert "set XDG_CACHE_HOME to a directory that is" in run.told


# --- parts that die in the run ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def toxiproxy_is_there() -> None:
    """Built once at most, so that no test waits for it unawares."""
    obtain()


@pytest.mark.parametrize(
    ("client", "victim", "says"),
    [
        ("python", "bin/pulsar-lite", "the system under test (lite) ended in the run"),
        ("reference", "toxiproxy-server -host", "Toxiproxy ended in the run"),
        ("reference", "reference_adapter", "ended by signal 9 (SIGKILL)"),
    ],
)
def test_a_part_that_is_killed_in_the_run(command: Command, client: str, victim: str, says: str) -> None:
    run = command.start(*GATE, "--client", client)
    run.until_recording()
    part = run.child(victim)
    assert part is not None
    part.kill()
    assert run.end() == 3
    assert says in run.told
    assert verdicts(command.directory) == {"error"}
    histories_are_readable(run)


def test_a_broker_of_somebody_elses_is_killed_in_the_run(command: Command) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (command.directory / "lite.toml").write_text("[metrics]\nenabled = false\n")
    broker = subprocess.Popen(
        [lite_binary(), "--config", "lite.toml", "--addr", address, "--db-path", "db"], cwd=command.directory,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        host, port = address.split(":")
        until("the broker listens", lambda: socket.socket().connect_ex((host, int(port))) == 0)
        run = command.start(*GATE, "--system", f"pulsar://{address}", "--client", "reference")
        run.until_recording()
    finally:
        broker.kill()
        broker.wait()
    assert run.end() == 3
    assert "no longer answers" in run.told
    assert verdicts(command.directory) == {"error"}
    histories_are_readable(run)


def misbehaving(directory: Path, body: str) -> dict[str, str]:
    """The environment in which an adapter process runs ``body`` before anything else; no other process does."""
    (directory / "sitecustomize.py").write_text(
        f"import os, sys, threading, time\nif any('_adapter' in word for word in sys.orig_argv):\n    {body}\n"
    )
    return {"PYTHONPATH": str(directory)}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("os.write(1, b'hello, world\\n')", "wrote what is no answer"),
        ("os.write(1, b'\\xff\\xfe\\x00\\n')", "wrote what is no answer"),
        ('os.write(1, b\'{"id": 1, "ok"\'); os._exit(0)', "wrote what is no answer"),
        ("os.write(2, b'no licence\\n'); os._exit(7)", "ended (exit status 7) no licence"),
    ],
)
def test_an_adapter_that_does_not_start(command: Command, body: str, says: str) -> None:
    run = command(*GATE, "--client", "python", env=misbehaving(command.directory, body))
    assert run.process.returncode == 3
    assert says in run.told
    assert verdicts(command.directory) == {"error"}


def test_an_adapter_that_prints_garbage_in_the_run(command: Command) -> None:
    # It keeps a stdout of its own and writes there once the test says so.
    body = (
        "out = os.dup(1); threading.Thread(target=lambda: (all(iter(lambda: (time.sleep(.01), "
        f"not os.path.exists({str(command.directory / 'now')!r}))[1], False)), os.write(out, b'*** panic ***\\n'))"
        ", daemon=True).start()"
    )
    run = command.start(*GATE, "--client", "reference", env=misbehaving(command.directory, body))
    run.until_recording()
    (command.directory / "now").touch()
    assert run.end() == 3
    assert "wrote what is no answer" in run.told
    assert "*** panic ***" in run.told
    assert verdicts(command.directory) == {"error"}
    histories_are_readable(run)


def adapter_saying(directory: Path, body: str) -> AdapterProcess:
    """An adapter that runs ``body``; ``greet`` answers one line of stdin as ``hello`` wants it."""
    program(
        directory / "adapter.py",
        "import json, os, sys, time\n"
        "def greet():\n"
        "    request = json.loads(sys.stdin.readline())\n"
        "    hello = {'name': 'toy', 'version': '1', 'contract': 1, 'capabilities': []}\n"
        "    print(json.dumps({'id': request['id'], 'ok': hello}), flush=True)\n"
        f"{body}\n",
    )
    return AdapterProcess([sys.executable, str(directory / "adapter.py")], name="toy", grace=0.2)


def test_an_adapter_that_floods_stderr_is_heard_all_the_same(tmp_path: Path) -> None:
    async def talk() -> None:
        flood = "for _ in range(50_000): os.write(2, b'x' * 99 + b'\\n')"
        adapter = adapter_saying(tmp_path, f"{flood}\ngreet()\nsys.stdin.read()")
        await adapter.start()
        assert adapter.alive()
        await adapter.stop()

    asyncio.run(talk())


@pytest.mark.parametrize(
    "body", ["greet()\ntime.sleep(60)", "greet()\nprint('{\"id\": 2', end='', flush=True)\ntime.sleep(60)"]
)
def test_an_adapter_that_hangs_is_no_clients_breach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    monkeypatch.setattr("harness.clients.adapter_process.ALIVE_TIMEOUT_S", 0.3)

    async def talk() -> None:
        adapter = adapter_saying(tmp_path, body)
        await adapter.start()
        try:
            with pytest.raises(AdapterDied, match="toy answers nothing any more, neither flush nor hello"):
                await adapter.request({"op": "flush", "producer": "p"}, 0.2)
            assert not adapter.alive()
        finally:
            await adapter.stop()

    asyncio.run(talk())


# --- interrupted ------------------------------------------------------------------------------------------------------


def test_interrupted_in_the_run(command: Command) -> None:
    run = command.start(*GATE, "--client", "python")
    run.until_recording()
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert "Interrupted: this is what was judged so far." in run.told
    assert verdicts(command.directory) <= {"unknown", "pass"}
    assert (command.directory / "out" / "index.html").is_file()
    histories_are_readable(run)


@pytest.mark.parametrize(
    ("victim", "number"),
    [("bin/pulsar-lite", signal.SIGINT), ("toxiproxy-server -host", signal.SIGTERM), ("python_adapter", signal.SIGHUP)],
)
def test_interrupted_during_set_up(command: Command, victim: str, number: signal.Signals) -> None:
    run = command.start(*GATE, "--client", "python")
    until(f"{victim} runs", lambda: run.child(victim))
    run.process.send_signal(number)
    assert run.end() == 130


def test_interrupted_twice(command: Command) -> None:
    run = command.start(*GATE, "--client", "python")
    run.until_recording()
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 130


def test_killed_outright(command: Command) -> None:
    run = command.start(*GATE, "--client", "reference")
    run.until_recording()
    run.process.kill()
    assert run.end() == -signal.SIGKILL
    histories_are_readable(run)


def catches_signals(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)


@pytest.mark.parametrize("loaded", ["python", "msgspec"])
def test_interrupted_before_anything_has_begun(command: Command, loaded: str) -> None:
    run = command.start("gate", "--system", "simulated", "--report", "out")
    pid = run.process.pid
    until("it can be interrupted", lambda: catches_signals(pid) and loaded in Path(f"/proc/{pid}/maps").read_text())
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130


def test_interrupted_while_a_seed_is_replayed(command: Command) -> None:
    (command.directory / "s.json").write_bytes(seed_bytes(system="lite"))
    run = command.start("replay", "s.json", "--times", "1000")
    until("the adapter runs", lambda: run.child("reference_adapter"))
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert "interrupted" in run.told
