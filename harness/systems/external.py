"""A broker that somebody else runs, given by its address."""

from __future__ import annotations

from urllib.parse import urlsplit

from harness.setup_error import SetupError
from harness.systems import lite
from harness.systems.handshake import HandshakeFailed, handshake
from harness.systems.product import product_of
from harness.systems.stranger import who_answers
from harness.systems.system import Address, Protocol, System, UnknownSystem

DEFAULT_PORT = 6650
HANDSHAKE_TIMEOUT_S = 10.0

# What every Pulsar broker since 2.8 has without being configured for it. Deduplication is off by default and delayed
# delivery or partitions need the admin service, so they are not assumed.
CAPABILITIES = frozenset({"key_shared", "ack_receipt", "producer_fencing"})


class ExternalSystem(System):
    """``pulsar://host:port[,http://host:port]``: reached, never started or stopped. ``version`` is what it says."""

    protocol: Protocol = "pulsar"

    def __init__(self, spec: str) -> None:
        self.name = spec
        self.version = "unknown"
        self.capabilities = CAPABILITIES
        self._address = parse_address(spec)
        self._reached = False
        self._product = spec

    @property
    def product(self) -> str:
        return self._product

    async def start(self) -> Address:
        address = self._address
        try:
            connected = await handshake(address.host, address.port, HANDSHAKE_TIMEOUT_S)
        except HandshakeFailed as error:
            stranger = await who_answers(address.host, address.port)
            mend = (
                stranger
                or f"Check the address (is {address.port} the port of the binary protocol?), and that the broker runs."
            )
            raise SetupError(f"no Pulsar broker at {address.service_url}: {error}", mend) from error
        self.version = connected.server_version or "unknown"
        self._product = product_of(self.name, self.version)
        if self._product == lite.LiteSystem.name:
            self.capabilities = lite.CAPABILITIES
        self._reached = True
        return address

    async def stop(self) -> None:
        self._reached = False

    def alive(self) -> bool:
        """Whether it answered when the run began: there is no process of ours to look at."""
        return self._reached


def parse_address(spec: str) -> Address:
    """The address that ``pulsar://host[:port][,http[s]://host[:port]]`` names. Raises ``UnknownSystem``."""
    service, _, admin = spec.partition(",")
    try:
        parts, admin_parts = urlsplit(service), urlsplit(admin)
        port, _ = parts.port, admin_parts.port
    except ValueError as error:
        raise _no_address(spec, str(error)) from error
    if parts.scheme != "pulsar" or parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise _no_address(spec, "nothing belongs around the host and the port")
    if not parts.hostname or any(letter.isspace() for letter in parts.hostname):
        raise _no_address(spec, f"{parts.hostname or ''!r} is no host")
    if port == 0:
        raise _no_address(spec, "nobody listens on port 0")
    if admin and (admin_parts.scheme not in ("http", "https") or not admin_parts.hostname):
        raise UnknownSystem(f"{spec!r}: the admin service {admin!r} should look like http://host:8080")
    return Address(parts.hostname, DEFAULT_PORT if port is None else port, admin or None)


def _no_address(spec: str, why: str) -> UnknownSystem:
    return UnknownSystem(
        f"{spec!r} is no address of a broker ({why}); it should look like pulsar://host:6650[,http://host:8080]"
    )
