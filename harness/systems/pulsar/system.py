"""``pulsar@VERSION``: a fresh standalone broker of that version, installed when it is not there yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.mortal_directory import MortalDirectory
from harness.setup_error import SetupError
from harness.systems.broker_process import BrokerProcess
from harness.systems.pulsar.install import ensure_installed
from harness.systems.pulsar.installation import Installation
from harness.systems.pulsar.jdk import Java, find_java
from harness.systems.pulsar.ports import HOST, Ports
from harness.systems.pulsar.settings import configured
from harness.systems.pulsar.standalone import Standalone
from harness.systems.pulsar.version import PulsarVersion
from harness.systems.pulsar_admin import PulsarAdmin
from harness.systems.pulsar_capabilities import capabilities
from harness.systems.system import Address, Protocol, System


class PulsarSystem(System):
    """A broker on 127.0.0.1 with a data directory of its own that goes away on ``stop``.

    ``version`` as in ``4.0.7``; raises ``UnknownSystem`` for what is none. ``ports`` None: any free ones.
    ``progress`` is told how an installation goes on.
    """

    protocol: Protocol = "pulsar"

    def __init__(
        self, version: str, ports: Ports | None = None, progress: Callable[[str], None] = lambda text: None
    ) -> None:
        self._version = PulsarVersion.parse(version)
        self.version = str(self._version)
        self.name = f"pulsar@{self.version}"
        self.capabilities = capabilities(configured({}), admin=True, process_faults=True)
        self._fixed_ports = ports
        self._progress = progress
        self._broker: Standalone | None = None
        self._admin: PulsarAdmin | None = None
        self._java: Java | None = None
        self._directory: MortalDirectory | None = None
        self._last_log = ""

    async def start(self) -> Address:
        """Raises ``SetupError`` with what to do; nothing is left running then."""
        self._java = java = find_java(self._version)
        installation = await ensure_installed(self._version, self._progress, java=java)
        return await self._start(installation, java)

    async def _start(self, installation: Installation, java: Java) -> Address:
        try:
            # What the broker still writes while it is killed may come after the directory was looked through.
            self._directory = MortalDirectory("pulsar", ignore_cleanup_errors=True)
        except OSError as error:
            raise SetupError(
                f"no directory for the data of {self.name}: {error.strerror or error}",
                "TMPDIR names where it is made.",
            ) from error
        self._broker = broker = Standalone(
            installation, java, installation.archive(java), Path(self._directory.name), self._fixed_ports
        )
        try:
            await broker.start()
        except BaseException:
            await self.stop()
            raise
        self._admin = PulsarAdmin(broker.admin_url)
        return Address(HOST, broker.ports.broker, broker.admin_url)

    async def stop(self) -> None:
        # Whoever starts it and whoever ends the run may both come here, one while the other waits.
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.aclose()
        broker = self._broker
        if broker is not None:
            # Nothing of it is kept, and a broker that is stopped or hangs hears no SIGTERM.
            await broker.kill()
            if self._broker is broker:
                self._last_log, self._broker = broker.logs_tail(), None
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.cleanup()

    def alive(self) -> bool:
        """The truth about the process, also while a fault has it down on purpose; paused is alive."""
        return self._broker is not None and self._broker.running

    def logs_tail(self) -> str:
        return self._last_log if self._broker is None else self._broker.logs_tail()

    @property
    def process(self) -> BrokerProcess | None:
        """To be asked for after ``start``."""
        return self._broker

    @property
    def admin(self) -> PulsarAdmin | None:
        return self._admin

    @property
    def configuration(self) -> dict[str, str]:
        """What was set, by Pulsar's names; all else is the version's default. ``java`` is what it runs on."""
        settings = {} if self._broker is None else self._broker.settings
        java = {} if self._java is None else {"java": self._java.version}
        return {**configured(settings), **java}
