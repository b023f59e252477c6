"""Toxiproxy's HTTP API, blocking: toxiproxy-python where it works, plain HTTP where it does not."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import toxiproxy
import toxiproxy.api
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from harness.faults.toxiproxy_error import ToxiproxyDied, ToxiproxyError

# The server itself gives up on a proxy that it cannot stop after 25 s.
TIMEOUT_S = 30.0

_LIBRARY = threading.Lock()


class ToxiproxyApi:
    """Calls to one server. Raises ``ToxiproxyError`` for a refusal, ``ToxiproxyDied`` when nobody is there.

    ``silent`` says so once a call has run out of time; further calls are not tried.
    """

    def __init__(self, host: str, port: int) -> None:
        self.silent = ""
        self._host = host
        self._port = port
        # trust_env: the loopback must not be looked for behind the proxy of HTTP_PROXY.
        self._http = httpx.Client(
            base_url=f"http://{host}:{port}",
            timeout=TIMEOUT_S,
            trust_env=False,
            event_hooks={"response": [_refuse_server_errors]},
        )

    def close(self) -> None:
        self._http.close()

    def version(self) -> str:
        with self._errors():
            return str(self._http.get("/version").raise_for_status().json()["version"])

    def create(self, name: str, upstream: str) -> str:
        """A proxy on a free port of 127.0.0.1; the ``host:port`` it listens on."""
        with self._library() as server:
            return str(server.create(upstream=upstream, name=name, listen="127.0.0.1:0", enabled=True).listen)

    def set_enabled(self, name: str, enabled: bool) -> None:
        """Disabling closes every connection and stops listening; the port is kept for enabling.

        The library uses a POST that the server calls deprecated, and takes no notice of a failure.
        """
        with self._errors():
            answer = self._http.patch(f"/proxies/{name}", json={"enabled": enabled}).raise_for_status().json()
        if answer.get("enabled") is not enabled:
            raise ToxiproxyError(f"proxy {name}: asked for enabled={enabled}, got {answer}")

    def put_toxic(self, proxy: str, toxic: str, kind: str, stream: str, attributes: dict[str, int]) -> None:
        """Add the toxic, or give it these attributes if the proxy has it; then ask the server what it understood."""
        with self._library() as server:
            link = server.get_proxy(proxy)
            present = link.get_toxic(toxic)
            if present is None:
                link.add_toxic(name=toxic, type=kind, stream=stream, toxicity=1.0, attributes=attributes)
            else:
                # The library cannot update.
                self._http.patch(f"/proxies/{proxy}/toxics/{toxic}", json={"attributes": attributes}).raise_for_status()
            there = link.get_toxic(toxic)
        if there is None or there.stream != stream or there.toxicity != 1 or there.attributes != attributes:
            understood = None if there is None else there.attributes
            raise ToxiproxyError(f"toxic {kind} on {proxy}: asked for {attributes}, the server has {understood}")

    def toxics(self, proxy: str) -> dict[str, tuple[str, str, dict[str, Any]]]:
        """Type, stream and attributes of the toxics of a proxy, by name."""
        with self._library() as server:
            found = server.get_proxy(proxy).toxics()
        return {name: (toxic.type, toxic.stream, toxic.attributes) for name, toxic in found.items()}

    def remove_toxic(self, proxy: str, toxic: str) -> None:
        with self._library() as server:
            server.get_proxy(proxy).destroy_toxic(toxic)

    def reset(self) -> None:
        """Enable every proxy and remove every toxic."""
        with self._library() as server:
            server.reset()

    @contextlib.contextmanager
    def _library(self) -> Iterator[Any]:
        """toxiproxy-python, pointed at this server and made to speak through our HTTP client.

        It keeps the server's address in class attributes, calls without a timeout, obeys HTTP_PROXY and takes a server
        error for an answer; the client in the place of its ``requests`` mends the last three. Put back afterwards.
        """
        consumer = toxiproxy.api.APIConsumer
        with self._errors(), _LIBRARY:
            # Whoever held the lock before may have found that nobody answers.
            self._refuse_if_silent()
            before = consumer.host, consumer.port, toxiproxy.api.requests
            consumer.host, consumer.port, toxiproxy.api.requests = self._host, self._port, self._http
            try:
                yield toxiproxy.Toxiproxy()
            finally:
                consumer.host, consumer.port, toxiproxy.api.requests = before

    def _refuse_if_silent(self) -> None:
        if self.silent:
            raise ToxiproxyDied(self.silent)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        self._refuse_if_silent()
        try:
            yield
        except httpx.TimeoutException as error:
            self.silent = f"Toxiproxy did not answer within {TIMEOUT_S:.0f} s"
            raise ToxiproxyDied(self.silent) from error
        except httpx.TransportError as error:
            raise ToxiproxyDied(f"Toxiproxy is not reachable any more: {error}") from error
        except httpx.HTTPStatusError as error:
            raise ToxiproxyError(f"Toxiproxy refused: {error}: {error.response.text.strip()}") from error
        except (InvalidToxic, NotFound, ProxyExists) as error:
            raise ToxiproxyError(f"Toxiproxy refused: {error}") from error


def _refuse_server_errors(response: httpx.Response) -> None:
    if response.is_server_error:
        response.read()
        response.raise_for_status()
