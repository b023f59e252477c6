"""A broker that somebody else runs, given by its address."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlsplit

from harness.setup_error import SetupError
from harness.systems import lite
from harness.systems.access import OPEN, Access
from harness.systems.admin import Admin
from harness.systems.admin_check import TENANT, reach_admin
from harness.systems.handshake import HandshakeFailed, HandshakeRefused, find_owner, handshake
from harness.systems.product import product_of
from harness.systems.pulsar_admin import PulsarAdmin
from harness.systems.pulsar_capabilities import PLAIN, capabilities
from harness.systems.stranger import who_answers
from harness.systems.system import Address, Protocol, System, UnknownSystem
from harness.systems.token_expiry import expired_at

DEFAULT_PORT, DEFAULT_TLS_PORT = 6650, 6651
HANDSHAKE_TIMEOUT_S = 10.0
PROBE = "persistent://public/default/starquake-access"
"""A topic that is looked up and never made, in the namespace of every session that has none of its own."""


class ExternalSystem(System):
    """``pulsar[+ssl]://host:port[,http[s]://host:port]``: reached, never started or stopped.

    ``version`` is what it says. With the address of its admin service, sessions get namespaces of their own and clauses
    that need one are decided.
    """

    protocol: Protocol = "pulsar"

    def __init__(self, spec: str, access: Access = OPEN) -> None:
        self.name = spec
        self.version = "unknown"
        self.capabilities = PLAIN
        self._address = parse_address(spec)
        self._access = access.over_tls() if spec.startswith("pulsar+ssl://") else access
        self._admin: PulsarAdmin | None = None
        self._settings: dict[str, str] = {}
        self._reached = False
        self._product = spec

    @property
    def product(self) -> str:
        return self._product

    @property
    def access(self) -> Access:
        return self._access

    @property
    def admin(self) -> Admin | None:
        return self._admin

    @property
    def configuration(self) -> dict[str, str]:
        return self._settings

    async def start(self) -> Address:
        address = self._address
        try:
            connected = await handshake(address.host, address.port, HANDSHAKE_TIMEOUT_S, self._access)
            await self._may_use(PROBE)
        except HandshakeFailed as error:
            what = "no way into the broker" if isinstance(error, HandshakeRefused) or error.mend else "no Pulsar broker"
            raise SetupError(f"{what} at {address.service_url}: {error}", await self._mend(error)) from error
        self.version = connected.server_version or "unknown"
        self._product = product_of(self.name, self.version)
        if self._product == lite.LiteSystem.name:
            self.capabilities = lite.CAPABILITIES
        elif address.admin_url is not None:
            self._admin, self._settings = await reach_admin(address, self._access)
            self.capabilities = capabilities(self._settings, admin=True)
        self._reached = True
        return address

    async def _may_use(self, topic: str) -> None:
        """Raises HandshakeRefused when it is us whom the broker refuses; other trouble with lookups is for the run."""
        address = self._address
        try:
            await find_owner(address.host, address.port, HANDSHAKE_TIMEOUT_S, topic, self._access)
        except HandshakeFailed as error:
            if isinstance(error, HandshakeRefused) and error.of_access:
                raise

    async def _mend(self, error: HandshakeFailed) -> str:
        address = self._address
        if isinstance(error, HandshakeRefused):
            return self._mend_of_refusal(error)
        return (
            error.mend
            or await who_answers(address.host, address.port, tls=self._access.tls)
            or f"Check the address (is {address.port} the port of the binary protocol?), and that the broker runs."
        )

    def _mend_of_refusal(self, error: HandshakeRefused) -> str:
        token, use = self._access.token, f"may its role produce to and consume from {TENANT}/default?"
        if not error.of_access:
            return "The words are the broker's; its log may say more."
        if self._access.method == "none":
            return (
                "It wants to know who asks: name Pulsar's client.conf (authPlugin, authParams) with --client-conf FILE."
            )
        if token is not None and (end := expired_at(token)) is not None and end < datetime.now(UTC):
            return f"The token expired on {end:%Y-%m-%d at %H:%M} UTC; make a new one."
        if token is None:
            return f"Does the broker trust our certificate, and {use}"
        return f"Is the token of --client-conf signed with this broker's key, and {use}"

    async def stop(self) -> None:
        self._reached = False
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.aclose()

    def alive(self) -> bool:
        """Whether it answered when the run began: there is no process of ours to look at."""
        return self._reached


def parse_address(spec: str) -> Address:
    """The address that ``pulsar[+ssl]://host[:port][,http[s]://host[:port]]`` names. Raises ``UnknownSystem``."""
    service, _, admin = spec.partition(",")
    try:
        parts, admin_parts = urlsplit(service), urlsplit(admin)
        port, _ = parts.port, admin_parts.port
    except ValueError as error:
        raise _no_address(spec, str(error)) from error
    if "@" in spec or parts.path.strip("/") or parts.query or parts.fragment:
        # What stands before an @ may be a password: it is not repeated.
        raise _no_address(spec.split("@")[-1] if "@" in spec else spec, "nothing belongs around the host and the port")
    if parts.scheme not in ("pulsar", "pulsar+ssl"):
        raise _no_address(spec, f"its scheme is {parts.scheme or 'missing'!r}")
    if not parts.hostname or any(letter.isspace() for letter in parts.hostname):
        raise _no_address(spec, f"{parts.hostname or ''!r} is no host")
    if port == 0:
        raise _no_address(spec, "nobody listens on port 0")
    if admin and (admin_parts.scheme not in ("http", "https") or not admin_parts.hostname):
        raise UnknownSystem(f"{spec!r}: the admin service {admin!r} should look like http://host:8080")
    tls = parts.scheme == "pulsar+ssl"
    usual = DEFAULT_TLS_PORT if tls else DEFAULT_PORT
    return Address(parts.hostname, usual if port is None else port, admin or None, tls)


def _no_address(spec: str, why: str) -> UnknownSystem:
    return UnknownSystem(
        f"{spec!r} is no address of a broker ({why}); it should look like pulsar://host:6650[,http://host:8080]"
        " or pulsar+ssl://host:6651[,https://host:8443]"
    )
