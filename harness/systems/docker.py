"""``docker:IMAGE``: a standalone Pulsar in a container of its own, by Testcontainers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from harness.setup_error import SetupError
from harness.systems.broker_process import BrokerProcess, Settings
from harness.systems.first_message import READY_TOPIC, send_one
from harness.systems.handshake import HandshakeFailed, handshake
from harness.systems.product import product_of
from harness.systems.pulsar.ports import HOST, free_block
from harness.systems.pulsar.settings import configured
from harness.systems.pulsar_admin import PulsarAdmin
from harness.systems.pulsar_capabilities import capabilities
from harness.systems.system import Address, Protocol, System

PREFIX = "docker:"
BROKER_PORT, WEB_PORT = "6650/tcp", "8080/tcp"

# Names that configure a broker of the image from its environment begin like this; its own script writes them down.
ENVIRONMENT = "PULSAR_PREFIX_"
COMMAND = ["bash", "-c", "bin/apply-config-from-env.py conf/standalone.conf && exec bin/pulsar standalone -nss -nfw"]

OF_THE_MACHINE = frozenset({"allowLoopback", "listeningInterface", "clusterName", "diskUsageWarnThreshold"})
"""Settings of a broker right on this machine, which a container has its own of."""

AS_BY_DEFAULT = {"managedLedgerDefaultMarkDeleteRateLimit": "1.0"}
"""What decides a promise, and is not at its default in the ``standalone.conf`` of the image (there 0.1)."""

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30
KILLED = 137
"""Exit status of a process that was ended by SIGKILL, as a shell and Docker write it (128 + 9)."""

ANSWER_TIMEOUT_S = 5.0
POLL_S = 0.2
LOOK_S = 1.0
"""How old what was last seen of a container may be before it is looked at again."""
FAILED_LOOKS = 5
"""So many in a row without an answer of the engine are no accident: the container is not taken to run any more."""

RUNS = frozenset({"running", "paused"})
LOG_LINES = 40

INSTALL = "pip install 'starquake[docker]'"


def settings_of_image() -> dict[str, str]:
    """By Pulsar's names: those of ``pulsar@VERSION``, as far as they are not about the machine.

    It runs on the image's own ``standalone.conf``; what ``pulsar@VERSION`` has by not having that file is set as well.
    """
    shared = {name: value for name, value in configured({}).items() if name not in OF_THE_MACHINE}
    return {**AS_BY_DEFAULT, **shared}


class DockerSystem(System):
    """The broker's ports are on 127.0.0.1 only; its data live as long as the container, which ``stop`` removes.

    Needs the extra ``docker`` and an engine on this machine; ``start`` says which of them is missing.
    """

    protocol: Protocol = "pulsar"

    def __init__(self, image: str) -> None:
        self.name = f"{PREFIX}{image}"
        self.version = "unknown"
        self.capabilities = capabilities(settings_of_image(), admin=True, process_faults=True)
        self._image = image
        self._broker: ContainerProcess | None = None
        self._admin: PulsarAdmin | None = None
        self._product = self.name
        self._last_log = ""

    @property
    def product(self) -> str:
        return self._product

    async def start(self) -> Address:
        """Raises ``SetupError``; nothing is left running then."""
        ports = free_block()
        container = await asyncio.to_thread(new_container, self._image, ports.broker, ports.web)
        self._broker = broker = ContainerProcess(container, ports.broker)
        try:
            await broker.first_start(self._image)
            self.version = (await handshake(HOST, ports.broker, ANSWER_TIMEOUT_S)).server_version or "unknown"
        except HandshakeFailed as error:
            await self.stop()
            raise SetupError(f"{self.name} does not answer: {error}\n{self._last_log}".rstrip()) from error
        except BaseException:
            await self.stop()
            raise
        self._product = product_of(self.name, self.version)
        address = Address(HOST, ports.broker, f"http://{HOST}:{ports.web}")
        self._admin = PulsarAdmin(f"http://{HOST}:{ports.web}")
        return address

    async def stop(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.aclose()
        broker, self._broker = self._broker, None
        if broker is not None:
            self._last_log = await asyncio.to_thread(broker.logs_tail)
            await asyncio.to_thread(broker.remove)

    def alive(self) -> bool:
        return self._broker is not None and self._broker.running

    def logs_tail(self) -> str:
        return self._last_log if self._broker is None else self._broker.logs_tail()

    @property
    def process(self) -> BrokerProcess | None:
        return self._broker

    @property
    def admin(self) -> PulsarAdmin | None:
        return self._admin

    @property
    def configuration(self) -> dict[str, str]:
        return settings_of_image()


class ContainerProcess:
    """A container as ``harness.systems.broker_process.BrokerProcess``: the broker is its first and only process.

    ``container`` is a ``testcontainers.core.container.DockerContainer``. Its settings are those it was made with.

    ``running`` is asked for on the event loop and so answers with what was last seen; threads look again meanwhile.
    """

    changeable: frozenset[str] = frozenset()

    def __init__(self, container: Any, port: int) -> None:
        self._container = container
        self._port = port
        # Held while the engine is asked: what was asked later is also kept later.
        self._looking = threading.Lock()
        self._seen = "created"
        self._seen_at = time.monotonic()
        self._failed_looks = 0

    async def first_start(self, image: str) -> None:
        """Raises ``SetupError`` when the image cannot be had, or what is in it does not become a broker."""
        await asyncio.to_thread(_run, self._container, image)
        self._seen = "running"
        await self._ready()

    async def kill(self) -> None:
        await asyncio.to_thread(self._kill)

    async def terminate(self) -> None:
        await asyncio.to_thread(self._terminate)

    async def pause(self) -> None:
        await asyncio.to_thread(self._pause)

    async def resume(self) -> None:
        await asyncio.to_thread(self._resume)

    async def start_again(self, settings: Settings | None = None) -> None:
        if settings:
            raise SetupError(f"the settings of a container cannot be changed: {', '.join(sorted(settings))}")
        if await asyncio.to_thread(self._status) in RUNS:
            await self.terminate()
        with _engine_trouble("the container could not be started again"):
            await asyncio.to_thread(self._wrapped.start)
        self._seen = "running"
        await self._ready()

    @property
    def running(self) -> bool:
        if time.monotonic() - self._seen_at > LOOK_S and not self._looking.locked():
            threading.Thread(target=self._status, name="starquake-container", daemon=True).start()
        return self._seen in RUNS and self._failed_looks < FAILED_LOOKS

    def logs_tail(self) -> str:
        """The last lines the broker wrote; empty when the engine does not tell."""
        try:
            return str(self._wrapped.logs(tail=LOG_LINES).decode("utf-8", "replace")).rstrip()
        except _engine_errors():
            return ""

    def remove(self) -> None:
        """With its data, whatever it is doing; nothing when there is none, or when somebody else was faster."""
        if self._status() == "gone":
            return
        with _engine_trouble("the container could not be removed"):
            self._container.stop(force=True, delete_volume=True)

    @property
    def _wrapped(self) -> Any:
        """The Docker SDK's own ``Container``."""
        return self._container.get_wrapped_container()

    def _status(self) -> str:
        """Of the container now; ``gone`` when there is none. What was last seen when the engine does not answer."""
        with self._looking:
            try:
                self._wrapped.reload()
            except _engine_errors() as error:
                self._failed_looks += 1
                if _no_such_container(error):
                    self._seen = "gone"
            else:
                self._failed_looks = 0
                self._seen = str(self._wrapped.status)
            self._seen_at = time.monotonic()
            return self._seen

    def _pause(self) -> None:
        if self._status() == "running":
            with _engine_trouble("the container could not be paused"):
                self._wrapped.pause()
            self._status()

    def _resume(self) -> None:
        if self._status() == "paused":
            with _engine_trouble("the container could not be resumed"):
                self._wrapped.unpause()
            self._status()

    def _kill(self) -> None:
        if self._status() not in RUNS:
            return
        with _engine_trouble("the container could not be killed"):
            self._wrapped.kill(signal="SIGKILL")
            # Frozen processes die when they are let go; some engines do that by themselves.
            if self._status() == "paused":
                self._wrapped.unpause()
            self._wrapped.wait(timeout=STOP_TIMEOUT_S)
        self._status()

    def _terminate(self) -> None:
        status = self._status()
        if status not in RUNS:
            return
        with _engine_trouble("the container could not be stopped"):
            if status == "paused":
                self._wrapped.unpause()
            self._wrapped.stop(timeout=STOP_TIMEOUT_S)
            self._wrapped.reload()
        self._status()
        if self._wrapped.attrs["State"]["ExitCode"] == KILLED:
            raise SetupError(
                f"the broker in the container does not end within {STOP_TIMEOUT_S} s of SIGTERM\n{self.logs_tail()}",
                "It was killed instead.",
            )

    async def _ready(self) -> None:
        problem = "it says nothing"
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while await asyncio.to_thread(self._status) == "running":
                    try:
                        await send_one(HOST, self._port, READY_TOPIC, ANSWER_TIMEOUT_S)
                    except HandshakeFailed as error:
                        problem = str(error)
                    else:
                        return
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise SetupError(
                f"the container has no ready broker after {START_TIMEOUT_S:.0f} s: {problem}\n{self.logs_tail()}",
                "Is it an image of Apache Pulsar? On a machine that is busy it may take longer.",
            ) from error
        raise SetupError(
            f"the container ended at its start\n{self.logs_tail()}", "Is it an image of Apache Pulsar (2.8 or newer)?"
        )


def new_container(image: str, broker: int, web: int) -> Any:
    """A container that is not started. Raises ``SetupError`` when Testcontainers or the engine is missing."""
    try:
        from testcontainers.core.container import DockerContainer
    except ImportError as error:
        raise SetupError(f"{PREFIX}{image} needs the package testcontainers ({error})", INSTALL) from error
    try:
        container = DockerContainer(image)
        container.get_docker_client().client.ping()
    except _engine_errors() as error:
        raise SetupError(
            f"no Docker engine answers: {_reason(error)}",
            "Start it (`docker info` says whether it runs), or name it with DOCKER_HOST.",
        ) from error
    container.with_command(COMMAND)
    container.with_envs(**{f"{ENVIRONMENT}{name}": value for name, value in settings_of_image().items()})
    # Fixed, so that they are the same after a restart; with_bind_ports would open them to the whole network.
    container.ports.update({BROKER_PORT: (HOST, broker), WEB_PORT: (HOST, web)})
    return container


def _run(container: Any, image: str) -> None:
    with _engine_trouble(
        f"the container of {image} could not be started",
        f"`docker pull {image}` says more. Testcontainers also needs its image {_ryuk()}, or"
        " TESTCONTAINERS_RYUK_DISABLED=true to do without.",
    ):
        container.start()


def _ryuk() -> str:
    try:
        from testcontainers.core.config import testcontainers_config
    except ImportError:
        return "testcontainers/ryuk"
    return str(testcontainers_config.ryuk_image)


def _engine_errors() -> tuple[type[Exception], ...]:
    """What the Docker SDK raises of an engine. Without the SDK nothing is raised, since nothing was made."""
    try:
        from docker.errors import DockerException
        from requests.exceptions import RequestException
        from testcontainers.core.exceptions import ContainerStartException
    except ImportError:
        return ()
    return (DockerException, RequestException, ContainerStartException, ConnectionError)


def _no_such_container(error: Exception) -> bool:
    """Whether the engine answered, and knows of none."""
    try:
        from docker.errors import NotFound
    except ImportError:
        return False
    return isinstance(error, NotFound)


@contextlib.contextmanager
def _engine_trouble(what: str, mend: str = "") -> Iterator[None]:
    try:
        yield
    except _engine_errors() as error:
        raise SetupError(f"{what}: {_reason(error)}", mend) from error


def _reason(error: Exception) -> str:
    """The engine's own explanation, where the SDK kept it."""
    return str(getattr(error, "explanation", None) or error)
