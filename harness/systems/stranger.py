"""Who is on a port that is no Pulsar broker's: asked only to tell the person which mistake was made."""

from __future__ import annotations

import asyncio
import ssl

from harness.systems.handshake import WANTS_CERTIFICATE, HandshakeFailed, HandshakeRefused, handshake

ASK_TIMEOUT_S = 2.0
_MARKUP = (b"http/", b"<!doctype html", b"<html")


def speaks_http(begin: bytes) -> bool:
    """Whether an answer begins as an HTTP server's. To bytes it does not understand one may send a bare HTML page."""
    return begin.lstrip().lower().startswith(_MARKUP)


async def who_answers(host: str, port: int, *, tls: bool = False) -> str:
    """What the port seems to be instead and what to give, as one sentence; empty when it does not say.

    ``tls``: whether the port was given as one of TLS.
    """
    url = f"{f'[{host}]' if ':' in host else host}:{port}"
    if await _tls(host, port):
        if await _http(host, port, _unverified()):
            return "This is an HTTPS port; give the port of the binary protocol with TLS (6651)."
        return WANTS_CERTIFICATE if tls else f"This is a TLS port; give it as pulsar+ssl://{url}."
    if tls and await _broker(host, port):
        return f"This port speaks the binary protocol without TLS; give it as pulsar://{url}."
    if await _http(host, port, None):
        return f"This is an HTTP port; give the port of the binary protocol ({6651 if tls else 6650})."
    return ""


async def _broker(host: str, port: int) -> bool:
    try:
        await handshake(host, port, ASK_TIMEOUT_S)
    except HandshakeRefused:
        return True
    except HandshakeFailed:
        return False
    return True


async def _http(host: str, port: int, context: ssl.SSLContext | None) -> bool:
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                return speaks_http(await reader.read(64))
            finally:
                writer.close()
    except (OSError, TimeoutError, UnicodeError):
        return False


async def _tls(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=_unverified())
            writer.close()
    except ssl.SSLError as error:
        # An alert is an answer too (a client certificate is wanted, say).
        return "ALERT" in (error.reason or "")
    except (OSError, TimeoutError, UnicodeError):
        return False
    return True


def _unverified() -> ssl.SSLContext:
    # Nothing of ours is sent through it and nothing is believed of it: only whether and how it is answered.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
