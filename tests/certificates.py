"""An authority and the certificates it made, for tests that speak TLS on 127.0.0.1."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


@dataclass(frozen=True)
class Certificates:
    """PEM files. ``stranger`` is an authority that made none of the others; ``client`` names the role ``client``."""

    authority: Path
    stranger: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path

    def serving(self, *, wants_certificate: bool = False) -> ssl.SSLContext:
        """For a server at 127.0.0.1."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server, self.server_key)
        if wants_certificate:
            context.load_verify_locations(self.authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def trusting(self) -> ssl.SSLContext:
        """For whoever dials it."""
        return ssl.create_default_context(cafile=self.authority)


def make_certificates(directory: Path, *names: str) -> Certificates:
    """A server certificate for ``names``, 127.0.0.1 when there are none, and one for a client."""
    authority, stranger = trustme.CA(), trustme.CA()
    made = Certificates(*(directory / f"{name}.pem" for name in ("ca", "other", "server", "key", "client", "ckey")))
    authority.cert_pem.write_to_path(made.authority)
    stranger.cert_pem.write_to_path(made.stranger)
    for leaf, certificate, key in (
        (authority.issue_cert(*(names or ("127.0.0.1",))), made.server, made.server_key),
        (authority.issue_cert("client.example", common_name="client"), made.client, made.client_key),
    ):
        certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        # Java reads PKCS #8 only.
        pair = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        key.write_bytes(pair.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return made
