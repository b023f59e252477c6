"""The reference broker as a system: it runs inside the event loop of its caller and listens on 127.0.0.1."""

from __future__ import annotations

from harness.reference.broker.config import BrokerConfig
from harness.reference.broker.machine import BrokerMachine, CursorView
from harness.reference.broker.parts import BrokerParts
from harness.reference.broker.stored_entry import StoredEntry
from harness.setup_error import SetupError
from harness.systems.machine_admin import MachineAdmin
from harness.systems.reference_process import ReferenceProcess
from harness.systems.reference_server import ReferenceServer
from harness.systems.system import Address, Protocol, System


class ReferenceSystem(System):
    """``parts`` other than the default make it a mutant. Everything is forgotten at ``stop``."""

    name = "reference"
    version = "4.0"
    protocol: Protocol = "pulsar"

    def __init__(self, config: BrokerConfig | None = None, parts: BrokerParts | None = None) -> None:
        self._config = config or BrokerConfig()
        self._parts = parts
        self._server: ReferenceServer | None = None
        without = set() if self._config.batch_index_ack else {"batch_index_ack"}
        if not self._config.partitions:
            without.add("partitions")
        self.capabilities = (BrokerMachine.CAPABILITIES | {"process_faults"}) - without

    async def start(self) -> Address:
        self._server = ReferenceServer(self._config, self._parts)
        try:
            host, port = await self._server.start()
        except OSError as error:
            raise SetupError(f"the reference broker cannot listen on 127.0.0.1: {error}") from error
        return Address(host, port)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    def alive(self) -> bool:
        return self._server is not None and self._server.serving

    @property
    def process(self) -> ReferenceProcess | None:
        """None before the start."""
        return None if self._server is None else ReferenceProcess(self._server)

    @property
    def admin(self) -> MachineAdmin:
        """Raises ``SetupError`` before the start."""
        server = self._running()
        return MachineAdmin(server.machine, server.now, server.perform)

    def logs_tail(self) -> str:
        return "" if self._server is None else "\n".join(self._server.log)

    # ------------------------------------------------------------------------------------------------ for worlds

    def set_dedup(self, enabled: bool, prefix: str = "") -> None:
        """Switches deduplication at once, on every topic whose complete name begins with ``prefix``."""
        self._running().machine.set_dedup(enabled, prefix)

    def cursor(self, topic: str, subscription: str) -> CursorView | None:
        """The subscription as it is now; None when there is none of that name."""
        return self._running().machine.cursor(topic, subscription)

    def entries(self, topic: str) -> list[StoredEntry]:
        return self._running().machine.entries(topic)

    def _running(self) -> ReferenceServer:
        if self._server is None:
            raise SetupError("the reference broker was not started")
        return self._server
