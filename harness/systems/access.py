"""How a broker lets us in: what Pulsar's own ``client.conf`` says of tokens and certificates."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from harness.regular_file import read_regular
from harness.usage_error import UsageError

if TYPE_CHECKING:
    from harness.wire.pulsar_pb2 import CommandConnect

TOKEN_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
TLS_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationTls"
_METHODS = {TOKEN_PLUGIN: "token", "token": "token", TLS_PLUGIN: "tls", "tls": "tls"}


@dataclass(frozen=True)
class Access:
    """What a connection to a broker needs beside its address. Nothing that is shown or stored may hold ``token``.

    ``tls``: the binary protocol itself goes through TLS (``pulsar+ssl://``). ``method`` is Pulsar's name of how we say
    who we are: ``none``, ``token``, or ``tls`` for the name in our certificate. Paths are PEM files.
    """

    tls: bool = False
    method: str = "none"
    token: str | None = field(default=None, repr=False)
    tls_trust_certs: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_insecure: bool = False
    tls_hostname_verification: bool = True

    @cached_property
    def context(self) -> ssl.SSLContext:
        """For any connection through TLS, the admin service's among them. Raises ``OSError`` for unusable files."""
        context = ssl.create_default_context(cafile=self.tls_trust_certs)
        context.check_hostname = self.tls_hostname_verification and not self.tls_insecure
        if self.tls_insecure:
            context.verify_mode = ssl.CERT_NONE
        if self.tls_certificate is not None:
            # Without a password an encrypted key would be asked for at the terminal, in the middle of a run.
            context.load_cert_chain(self.tls_certificate, self.tls_key, password="")
        return context

    def over_tls(self) -> Access:
        """The same, with the binary protocol through TLS."""
        return replace(self, tls=True)

    @property
    def stream_context(self) -> ssl.SSLContext | None:
        """For connections of the binary protocol; None when they are plain."""
        return self.context if self.tls else None

    @property
    def client_auth(self) -> dict[str, str] | None:
        """``auth`` of the adapter contract's ``client``; None when nobody asks who we are."""
        if self.method == "none":
            return None
        return {"method": self.method} if self.token is None else {"method": self.method, "data": self.token}

    def introduce(self, connect: CommandConnect) -> None:
        """Put into a CONNECT who we are."""
        if self.method != "none":
            connect.auth_method_name = self.method
        if self.token is not None:
            connect.auth_data = self.token.encode()


OPEN = Access()
"""Plain connections, and nobody asks who we are."""

EXTERNAL = ("pulsar://", "pulsar+ssl://")
"""How the name of a system begins that somebody else runs."""


def access_for(systems: Iterable[str], client_conf: Path | None) -> Access:
    """What the file says, if one of ``systems`` is somebody else's: ours let everybody in.

    For ours it is not even read, because a shell may name it for all of Pulsar's tools. Raises ``UsageError``.
    """
    if client_conf is None or not any(system.startswith(EXTERNAL) for system in systems):
        return OPEN
    return read_client_conf(client_conf)


def read_client_conf(path: Path) -> Access:
    """What a ``client.conf`` of Pulsar says. Its addresses are not used: ``tls`` is left to the address that is given.

    Raises ``UsageError`` that names file and line, and never shows a token.
    """
    settings = _Settings(path)
    if settings.flag("useKeyStoreTls", False):
        raise settings.error("useKeyStoreTls", "key stores are Java's; give PEM files (tlsTrustCertsFilePath)")
    method = settings.method()
    certificate, key = settings.file("tlsCertificateFilePath"), settings.file("tlsKeyFilePath")
    if method == "tls":
        parameters = settings.tls_parameters()
        certificate = parameters.get("tlsCertFile", certificate)
        key = parameters.get("tlsKeyFile", key)
        if certificate is None:
            raise settings.error("authPlugin", "TLS authentication needs tlsCertificateFilePath and tlsKeyFilePath")
    access = Access(
        method=method,
        token=settings.token() if method == "token" else None,
        tls_trust_certs=settings.file("tlsTrustCertsFilePath"),
        tls_certificate=certificate,
        tls_key=key,
        tls_insecure=settings.flag("tlsAllowInsecureConnection", False),
        # Pulsar's clients only verify the name when they are told to; without a word about it we do.
        tls_hostname_verification=settings.flag("tlsEnableHostnameVerification", True),
    )
    settings.check(access)
    return access


class _Settings:
    """The ``key=value`` lines of one file, each with its line number."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            text = read_regular(path).decode()
        except OSError as error:
            raise UsageError(f"cannot read the client configuration {path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is no client.conf: it is not text") from error
        self._values: dict[str, tuple[int, str]] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            line = line.strip()
            if not line or line[0] in "#!":
                continue
            name, equals, value = line.partition("=")
            if not equals:
                raise UsageError(f"{path}, line {number}: no 'key=value' as in Pulsar's client.conf")
            self._values[name.strip()] = (number, value.strip())

    def error(self, name: str, why: str) -> UsageError:
        number, _ = self._values.get(name, (0, ""))
        return UsageError(f"{self._path}, line {number}: {name}: {why}" if number else f"{self._path}: {name}: {why}")

    def text(self, name: str) -> str:
        return self._values.get(name, (0, ""))[1]

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name).lower()
        if value not in ("", "true", "false"):
            raise self.error(name, f"{value!r} is neither true nor false")
        return value == "true" if value else default

    def file(self, name: str) -> Path | None:
        value = self.text(name)
        return self._readable(name, value) if value else None

    def _readable(self, name: str, value: str) -> Path:
        path = Path(value).expanduser()
        try:
            read_regular(path)
        except OSError as error:
            raise self.error(name, f"cannot read {value}: {error.strerror or error}") from error
        return path

    def method(self) -> str:
        plugin = self.text("authPlugin")
        if not plugin:
            return "none"
        if plugin not in _METHODS:
            raise self.error(
                "authPlugin",
                f"{plugin!r} is not supported; there are token ({TOKEN_PLUGIN}) and tls ({TLS_PLUGIN})",
            )
        return _METHODS[plugin]

    def token(self) -> str:
        parameters = self.text("authParams")
        if parameters.startswith("file:"):
            path = unquote(urlsplit(parameters).path)
            try:
                token = read_regular(Path(path)).decode("ascii", "replace").strip()
            except OSError as error:
                raise self.error("authParams", f"cannot read {path}: {error.strerror or error}") from error
        elif parameters.startswith("env:"):
            variable = parameters.removeprefix("env:")
            token = os.environ.get(variable, "").strip()
            if not token:
                raise self.error("authParams", f"the environment variable {variable!r} is not set")
        else:
            token = _token_in(parameters)
        if not token:
            raise self.error("authParams", "no token; give token:TOKEN, file:///PATH or env:VARIABLE")
        if not token.isascii() or any(not letter.isprintable() or letter == " " for letter in token):
            raise self.error("authParams", "what is given is no token: a token is one word of ASCII characters")
        return token

    def tls_parameters(self) -> dict[str, Path]:
        """``tlsCertFile:/path,tlsKeyFile:/path``, as Pulsar's plugin takes it; both are optional here."""
        found: dict[str, Path] = {}
        for part in filter(None, self.text("authParams").split(",")):
            name, _, value = part.partition(":")
            if name not in ("tlsCertFile", "tlsKeyFile") or not value:
                raise self.error("authParams", "it should look like tlsCertFile:/PATH,tlsKeyFile:/PATH")
            found[name] = self._readable("authParams", value)
        return found

    def check(self, access: Access) -> None:
        """Whether the files hold what they should, told here, where the line is known."""
        for name, load in _loads(access):
            try:
                load()
            except (OSError, ValueError) as error:
                raise self.error(name, f"no usable PEM file: {getattr(error, 'strerror', None) or error}") from error


def _loads(access: Access) -> Iterator[tuple[str, Callable[[], object]]]:
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if (trusted := access.tls_trust_certs) is not None:
        yield "tlsTrustCertsFilePath", lambda: probe.load_verify_locations(trusted)
    if (own := access.tls_certificate) is not None:
        yield "tlsCertificateFilePath", lambda: probe.load_cert_chain(own, access.tls_key, password="")


def _token_in(parameters: str) -> str:
    """``token:TOKEN``, JSON with a ``token``, or the bare token."""
    if parameters.startswith("token:"):
        return parameters.removeprefix("token:").strip()
    try:
        decoded = json.loads(parameters)
    except ValueError:
        return parameters
    return str(decoded.get("token", "")) if isinstance(decoded, dict) else parameters
