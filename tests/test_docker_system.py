"""``docker:IMAGE``: what it asks of an engine, what it says without one, and a real container where one answers."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.clauses.requirements import load
from harness.setup_error import SetupError
from harness.systems import docker
from harness.systems.docker import COMMAND, ContainerProcess, DockerSystem, new_container
from harness.systems.first_message import send_one
from harness.systems.lite import LiteSystem
from harness.systems.pulsar.settings import configured
from harness.systems.resolve import names_a_system, resolve
from harness.systems.system import Address, UnknownSystem

IMAGE = "apachepulsar/pulsar:4.0.7"


# --- without an engine ---


def test_the_name_of_an_image_is_a_system():
    system = resolve(f"docker:{IMAGE}")
    assert (system.name, system.version, system.alive()) == (f"docker:{IMAGE}", "unknown", False)
    assert {"process_faults", "admin", "batch_index_ack"} <= system.capabilities
    assert names_a_system("docker:registry:5000/pulsar@sha256:00")
    assert not names_a_system("docker:")
    with pytest.raises(UnknownSystem, match="docker:IMAGE"):
        resolve("docker:")


STANDALONE_CONF = {
    "acknowledgmentAtBatchIndexLevelEnabled": "false",
    "brokerDeduplicationEnabled": "false",
    "brokerDeduplicationEntriesInterval": "1000",
    "brokerDeduplicationProducerInactivityTimeoutMinutes": "360",
    "managedLedgerCursorPositionFlushSeconds": "60",
    "managedLedgerDefaultMarkDeleteRateLimit": "0.1",
    "managedLedgerMaxUnackedRangesToPersist": "10000",
    "preciseDispatcherFlowControl": "false",
}
"""What the images have in that file, of the settings that decide a promise."""


def test_what_an_image_runs_with_binds_the_clauses_that_pulsar_of_our_own_is_bound_by():
    """No clause may be judged by a default that the file in the image has changed."""
    told = DockerSystem(IMAGE).configuration
    runs_with = {**STANDALONE_CONF, **told}
    assert told["managedLedgerDefaultMarkDeleteRateLimit"] == "1.0"
    for found in load():
        version = found.frozen_for[-1]
        assert found.defaults.keys() - runs_with.keys() <= {"subscriptionKeySharedUseConsistentHashing"}
        for clause in found.named:
            bound = found.binding(clause, version, runs_with)
            assert bound == found.binding(clause, version, told)
            assert bound == found.binding(clause, version, configured({}))


def test_without_testcontainers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "testcontainers.core.container", None)
    with pytest.raises(SetupError, match=r"needs the package testcontainers.*\n  pip install 'starquake\[docker\]'"):
        asyncio.run(DockerSystem(IMAGE).start())


def test_without_an_engine_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path):
    pytest.importorskip("testcontainers", reason="the extra docker is not installed: pip install 'starquake[docker]'")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    system = DockerSystem(IMAGE)
    with pytest.raises(SetupError, match=r"(?s)no Docker engine answers: .*DOCKER_HOST"):
        asyncio.run(system.start())
    assert not system.alive()
    asyncio.run(system.stop())


# --- with a stand-in for an engine: its broker is pulsar-lite, which goes on whatever is done to the "container" ---


class Engine:
    """One container as the Docker SDK shows it, and as Testcontainers wraps it. ``asked`` is what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status = "created"
        self.attrs: dict[str, Any] = {"State": {"ExitCode": 0}}
        self.exit_code = 143
        self.words = b"the last words\n"
        self.looks: list[threading.Thread] = []
        self.trouble: Exception | None = None
        self.refuses: Exception | None = None

    # Testcontainers

    def start(self) -> None:
        self.asked.append("start")
        self.status = "running"

    def stop(self, force: bool = False, delete_volume: bool = False) -> None:
        self.asked.append("stop" if not force else f"remove {'with' if delete_volume else 'without'} volume")
        self.status = "gone"

    def get_wrapped_container(self) -> Wrapped:
        return Wrapped(self)


class Wrapped:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def status(self) -> str:
        return self.engine.status

    @property
    def attrs(self) -> dict[str, Any]:
        return self.engine.attrs

    def reload(self) -> None:
        self.engine.looks.append(threading.current_thread())
        if self.engine.trouble is not None:
            raise self.engine.trouble

    def start(self) -> None:
        self.engine.start()

    def kill(self, signal: str) -> None:
        self.engine.asked.append(f"kill {signal}")
        if self.engine.status != "paused":
            self.engine.status = "exited"

    def wait(self, timeout: float) -> None:
        self.engine.asked.append("wait")

    def stop(self, timeout: float) -> None:
        self.engine.asked.append(f"stop {timeout:g}")
        self.engine.status = "exited"
        self.engine.attrs = {"State": {"ExitCode": self.engine.exit_code}}

    def pause(self) -> None:
        self.engine.asked.append("pause")
        if self.engine.refuses is not None:
            raise self.engine.refuses
        self.engine.status = "paused"

    def unpause(self) -> None:
        self.engine.asked.append("unpause")
        if self.engine.refuses is not None:
            raise self.engine.refuses
        self.engine.status = "running"

    def logs(self, tail: int) -> bytes:
        return self.engine.words


pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def broker() -> AsyncIterator[Address]:
    lite = LiteSystem()
    yield await lite.start()
    await lite.stop()


async def test_it_is_ready_when_a_message_went_through(broker: Address):
    engine = Engine()
    process = ContainerProcess(engine, broker.port)
    await process.first_start(IMAGE)
    assert (engine.asked, process.running) == (["start"], True)


async def test_a_container_that_ends_at_its_start_is_told_with_its_last_words(broker: Address):
    engine = Engine()
    engine.start = lambda: None
    engine.status = "exited"
    with pytest.raises(SetupError, match=r"(?s)ended at its start\nthe last words.*image of Apache Pulsar"):
        await ContainerProcess(engine, broker.port).first_start(IMAGE)


async def test_a_container_without_a_broker_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(docker, "START_TIMEOUT_S", 0.5)
    with pytest.raises(SetupError, match=r"(?s)no ready broker after .*no connection.*the last words"):
        await ContainerProcess(Engine(), 1).first_start(IMAGE)


async def test_faults_are_words_to_the_engine(broker: Address):
    engine = Engine()
    process = ContainerProcess(engine, broker.port)
    await process.first_start(IMAGE)
    engine.asked.clear()
    await process.pause()
    await process.pause()
    await process.resume()
    await process.resume()
    assert (engine.asked, process.running) == (["pause", "unpause"], True)
    engine.asked.clear()
    await process.kill()
    await process.kill()
    await process.terminate()
    await process.pause()
    assert (engine.asked, process.running) == (["kill SIGKILL", "wait"], False)
    engine.asked.clear()
    await process.start_again()
    assert (engine.asked, process.running) == (["start"], True)
    engine.asked.clear()
    await process.terminate()
    assert (engine.asked, process.running) == (["stop 30"], False)
    engine.asked.clear()
    process.remove()
    process.remove()
    assert engine.asked == ["remove with volume"]


async def test_a_frozen_broker_dies_when_it_is_let_go(broker: Address):
    engine = Engine()
    process = ContainerProcess(engine, broker.port)
    await process.first_start(IMAGE)
    await process.pause()
    engine.asked.clear()
    await process.kill()
    assert engine.asked == ["kill SIGKILL", "unpause", "wait"]


async def test_a_broker_that_had_to_be_killed_did_not_stop_in_good_order(broker: Address):
    engine = Engine()
    process = ContainerProcess(engine, broker.port)
    await process.first_start(IMAGE)
    engine.exit_code = 137
    with pytest.raises(SetupError, match="does not end within 30 s of SIGTERM\nthe last words"):
        await process.terminate()


async def test_what_the_engine_refuses_is_a_setup_error(broker: Address):
    errors = pytest.importorskip("docker.errors", reason="the extra docker is not installed")
    engine = Engine()
    process = ContainerProcess(engine, broker.port)
    await process.first_start(IMAGE)
    engine.refuses = errors.APIError("cgroups are not mounted")
    with pytest.raises(SetupError, match="could not be paused: cgroups are not mounted"):
        await process.pause()
    engine.refuses = None
    await process.pause()
    engine.refuses = errors.APIError("cgroups are not mounted")
    with pytest.raises(SetupError, match="could not be resumed: cgroups are not mounted"):
        await process.resume()


async def seen(process: ContainerProcess, running: bool) -> None:
    """Waits until that is what ``process`` says."""
    async with asyncio.timeout(5):
        while process.running is not running:
            await asyncio.sleep(0.001)


async def test_whether_it_runs_is_seen_by_threads_and_never_asked_on_the_event_loop(broker: Address, monkeypatch):
    monkeypatch.setattr(docker, "LOOK_S", 0.0)
    engine = Engine()
    process = ContainerProcess(engine, broker.port)
    await process.first_start(IMAGE)
    engine.status = "exited"
    await seen(process, running=False)
    engine.status = "running"
    await seen(process, running=True)
    assert threading.main_thread() not in engine.looks


async def test_an_engine_that_fails_to_answer_once_has_not_lost_the_container(broker: Address, monkeypatch):
    errors = pytest.importorskip("docker.errors", reason="the extra docker is not installed")
    monkeypatch.setattr(docker, "LOOK_S", 0.0)
    engine = Engine()
    process = ContainerProcess(engine, broker.port)
    await process.first_start(IMAGE)
    engine.looks.clear()
    engine.trouble = ConnectionError("the engine is busy")
    await asyncio.to_thread(process._status)
    assert process.running
    engine.trouble = None
    await asyncio.to_thread(process._status)
    assert process.running
    engine.trouble = ConnectionError("the engine is busy")
    await seen(process, running=False)
    assert len(engine.looks) >= 2 + docker.FAILED_LOOKS
    # It may be there, and is not left behind.
    process.remove()
    assert engine.asked[-1] == "remove with volume"
    engine.status, engine.trouble = "running", None
    await seen(process, running=True)
    engine.trouble = errors.NotFound("no such container")
    await seen(process, running=False)
    engine.asked.clear()
    process.remove()
    assert engine.asked == []


async def test_settings_of_a_container_cannot_be_changed(broker: Address):
    process = ContainerProcess(Engine(), broker.port)
    assert process.changeable == frozenset()
    with pytest.raises(SetupError, match="max_message_size"):
        await process.start_again({"max_message_size": 1})


async def test_the_system_stops_what_it_started_also_when_that_failed(broker: Address, monkeypatch):
    made: list[Engine] = []

    def stand_in(image: str, port: int, web: int) -> Engine:
        made.append(Engine())
        return made[0]

    monkeypatch.setattr(docker, "new_container", stand_in)
    monkeypatch.setattr(docker, "START_TIMEOUT_S", 0.5)
    system = DockerSystem(IMAGE)
    with pytest.raises(SetupError, match="no ready broker"):
        await system.start()
    assert made[0].asked == ["start", "remove with volume"]
    assert not system.alive()
    assert system.logs_tail() == "the last words"


# --- with an engine ---


def container_or_skip(port: int, web: int) -> Any:
    try:
        return new_container(IMAGE, port, web)
    except SetupError as error:
        pytest.skip(f"needs a Docker engine: {error}")


def test_ports_are_on_the_loopback_only():
    container = container_or_skip(16650, 18080)
    assert container.ports == {"6650/tcp": ("127.0.0.1", 16650), "8080/tcp": ("127.0.0.1", 18080)}
    assert container._command == COMMAND
    assert container.env["PULSAR_PREFIX_managedLedgerDefaultMarkDeleteRateLimit"] == "1.0"


async def test_a_real_container_is_killed_paused_and_started_again_on_its_data():
    await asyncio.to_thread(container_or_skip, 16650, 18080)
    system = DockerSystem(IMAGE)
    address = await system.start()
    try:
        assert (system.product, system.alive()) == ("pulsar@4.0.7", True)
        assert system.admin is not None
        await system.admin.create_namespace("public/starquake")
        topic = "persistent://public/starquake/t"
        first = await send_one(address.host, address.port, topic, 10)
        process = system.process
        assert process is not None
        await process.kill()
        assert not system.alive()
        await process.start_again()
        await process.pause()
        assert system.alive()
        await process.resume()
        await process.terminate()
        await process.start_again()
        assert await send_one(address.host, address.port, topic, 10) > first
        stats = await system.admin.internal_stats(topic)
        assert stats.entries == 2
    finally:
        await system.stop()
    assert not system.alive()
