"""A real standalone Pulsar that asks who comes: TLS, tokens, client certificates, and roles with rights."""

from __future__ import annotations

import asyncio
from pathlib import Path

from harness.processes import ChildProcess
from harness.systems.access import Access
from harness.systems.handshake import HandshakeFailed, find_owner
from harness.systems.pulsar.installation import Installation
from harness.systems.pulsar.jdk import Java
from harness.systems.pulsar.ports import HOST, Ports, free_block
from harness.systems.pulsar.standalone import Standalone
from tests.certificates import Certificates
from tests.tokens import SECRET, token_for

TOKEN_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
TLS_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationTls"
SUPERUSERS = ("admin", "client")


class SecuredPulsar(Standalone):
    """The same broker as any other of ours, with a configuration that lets nobody in unasked."""

    def __init__(self, installation: Installation, java: Java, directory: Path, certificates: Certificates) -> None:
        super().__init__(installation, java, installation.archive(java), directory, free_block())
        self.certificates = certificates
        self.tls_port, self.web_tls_port = _two_more(self.ports)
        self.admin_token = token_for("admin")

    @property
    def plain(self) -> str:
        return f"pulsar://{HOST}:{self.ports.broker}"

    @property
    def secure(self) -> str:
        return f"pulsar+ssl://{HOST}:{self.tls_port}"

    @property
    def secure_admin(self) -> str:
        return f"https://{HOST}:{self.web_tls_port}"

    def _write_files(self, ports: Ports) -> None:
        super()._write_files(ports)
        secret, own = self._directory / "secret.key", self._directory / "admin.token"
        secret.write_bytes(SECRET)
        own.write_text(self.admin_token)
        lines = {
            "brokerServicePortTls": self.tls_port,
            "webServicePortTls": self.web_tls_port,
            "tlsCertificateFilePath": self.certificates.server,
            "tlsKeyFilePath": self.certificates.server_key,
            "tlsTrustCertsFilePath": self.certificates.authority,
            "authenticationEnabled": "true",
            "authenticationProviders": ",".join(
                f"org.apache.pulsar.broker.authentication.AuthenticationProvider{kind}" for kind in ("Token", "Tls")
            ),
            "tokenSecretKey": f"file://{secret}",
            "authorizationEnabled": "true",
            "superUserRoles": ",".join(SUPERUSERS),
            "brokerClientTlsEnabled": "true",
            "brokerClientTrustCertsFilePath": self.certificates.authority,
            "brokerClientAuthenticationPlugin": TOKEN_PLUGIN,
            "brokerClientAuthenticationParameters": f"file://{own}",
        }
        with (self._directory / "standalone.conf").open("a") as conf:
            conf.writelines(f"{name}={value}\n" for name, value in lines.items())

    async def _ready(self, child: ChildProcess, ports: Ports) -> None:
        access = Access(method="token", token=self.admin_token)
        async with asyncio.timeout(60):
            while True:
                assert child.alive(), self.logs_tail()
                try:
                    await find_owner(HOST, ports.broker, 5, "persistent://public/default/ready", access)
                except HandshakeFailed:
                    await asyncio.sleep(0.05)
                else:
                    return


def _two_more(taken: Ports) -> tuple[int, int]:
    while True:
        block = free_block()
        if not set(block.all().values()) & set(taken.all().values()):
            return block.broker, block.web
