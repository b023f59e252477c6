"""Who is on a port that is no Pulsar broker's: asked only to tell the person which mistake was made."""

from __future__ import annotations

import asyncio
import ssl

ASK_TIMEOUT_S = 2.0
_MARKUP = (b"http/", b"<!doctype html", b"<html")


def speaks_http(begin: bytes) -> bool:
    """Whether an answer begins as an HTTP server's. To bytes it does not understand one may send a bare HTML page."""
    return begin.lstrip().lower().startswith(_MARKUP)


async def who_answers(host: str, port: int) -> str:
    """What the port seems to be instead and what to give, as one sentence; empty when it does not say."""
    if await _tls(host, port):
        return "This is a TLS port; give the plain-text port of the binary protocol (6650), as frames have to be read."
    if await _http(host, port):
        return "This is an HTTP port; give the port of the binary protocol (6650)."
    return ""


async def _http(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                return speaks_http(await reader.read(64))
            finally:
                writer.close()
    except (OSError, TimeoutError, UnicodeError):
        return False


async def _tls(host: str, port: int) -> bool:
    # Nothing is sent through it and nothing is believed of it: only whether a TLS handshake is answered.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
            writer.close()
    except ssl.SSLError as error:
        # An alert is an answer too (a client certificate is wanted, say).
        return "ALERT" in (error.reason or "")
    except (OSError, TimeoutError, UnicodeError):
        return False
    return True
