"""Where a broker listens, as URLs say it."""

from __future__ import annotations

from urllib.parse import urlsplit


def service_address(url: str) -> str:
    """``pulsar://host:port`` -> ``host:port``; the port is 6650 when left out.

    Raises ``ValueError`` for anything else: blank, another scheme, TLS (clause OPT-02; TLS and HTTP lookups are not
    part of the reference client).
    """
    parts = urlsplit(url.strip())
    if parts.scheme != "pulsar" or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(f"not a service URL of the form pulsar://host:port: {url!r}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port if parts.port is not None else 6650}"
