"""Toxiproxy: real faults on real connections, between the two taps."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import psutil

from harness.faults.toxics import BadToxic, checked
from harness.faults.toxiproxy_api import ToxiproxyApi
from harness.faults.toxiproxy_binary import MEND, obtain
from harness.faults.toxiproxy_error import ToxiproxyDied, ToxiproxyError
from harness.mortal_directory import MortalDirectory
from harness.processes import ChildProcess
from harness.setup_error import SetupError

__all__ = ["BadToxic", "Link", "Toxiproxy", "ToxiproxyDied", "ToxiproxyError"]

HOST = "127.0.0.1"
START_TIMEOUT_S = 15.0
POLL_S = 0.005

# A name with a slash can be created but never be addressed again.
_NAME = re.compile(r"[A-Za-z0-9_.-]+")

T = TypeVar("T")


class Toxiproxy:
    """One server process, found or built on ``start``. Not to be used from two tasks at once."""

    def __init__(self, *, progress: Callable[[str], None] = lambda text: None) -> None:
        self.version: str | None = None
        self._progress = progress
        self._child: ChildProcess | None = None
        self._api: ToxiproxyApi | None = None
        self._directory: MortalDirectory | None = None
        self._links: list[Link] = []

    async def start(self) -> None:
        """Start a server on a free port of 127.0.0.1. Raises ``SetupError``; nothing is left running then."""
        found = await asyncio.to_thread(obtain, self._progress)
        self._directory = MortalDirectory("toxiproxy")
        try:
            # With port 0 the kernel chooses, so no other process can take the port between choice and use.
            self._child = await ChildProcess.spawn_logged(
                [found.path, "-host", HOST, "-port", "0"],
                name="toxiproxy",
                log=Path(self._directory.name) / "log",
                env={"LOG_LEVEL": "warn"},
            )
            port = await self._listening_port(self._child)
            self._api = ToxiproxyApi(HOST, port)
            self.version = await self._call(self._api.version)
        except BaseException as error:
            await self.stop()
            if isinstance(error, ToxiproxyError):
                raise SetupError(f"Toxiproxy ({found.path}) does not start: {error}", MEND) from error
            raise

    async def stop(self) -> None:
        """Stop the server; its links are of no use afterwards. Safe to call twice."""
        self._links.clear()
        if self._api is not None:
            self._api.close()
            self._api = None
        if self._child is not None:
            await self._child.stop()
            self._child = None
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def alive(self) -> bool:
        """Whether the server process runs."""
        return self._child is not None and self._child.alive()

    def check(self) -> None:
        """Raises ``ToxiproxyDied`` when the server has ended since ``start``, or once let a call run out of time."""
        if self._api is not None and self._api.silent:
            raise ToxiproxyDied(self._api.silent)
        if self._child is not None and not self._child.alive():
            # None: the event loop has not been told yet.
            status = "" if self._child.returncode is None else f", status {self._child.returncode}"
            raise ToxiproxyDied(f"Toxiproxy ended in the run{status}\n{self._child.logs_tail(3)}".rstrip())

    async def proxy(self, name: str, upstream: str) -> Link:
        """A new link that forwards to ``upstream`` (``host:port``). ``name``: letters, digits, ``_ . -``."""
        if not _NAME.fullmatch(name):
            raise ToxiproxyError(f"{name!r} cannot name a proxy: letters, digits, '_', '.' and '-' only")
        api = self._running_api()
        host, _, port = (await self._call(api.create, name, upstream)).rpartition(":")
        link = Link(self, api, name, upstream, (host, int(port)))
        self._links.append(link)
        return link

    async def reset(self) -> None:
        """Accept on every link again and remove every toxic; connections that a ``timeout`` held are closed by that."""
        await self._call(self._running_api().reset)
        for link in self._links:
            link.refusing = False

    async def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """For links: an API call off the event loop, with ``ToxiproxyDied`` telling why when the server has gone."""
        self.check()
        return await self._call(work, *arguments)

    async def _call(self, work: Callable[..., T], *arguments: Any) -> T:
        try:
            return await asyncio.to_thread(work, *arguments)
        except ToxiproxyError:
            self.check()
            raise

    def _running_api(self) -> ToxiproxyApi:
        self.check()
        if self._api is None:
            raise ToxiproxyError("Toxiproxy is not running")
        return self._api

    async def _listening_port(self, child: ChildProcess) -> int:
        """The port the child's API listens on, as the kernel sees it: the server prints only what it was asked for."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while True:
                    self.check()
                    try:
                        sockets = psutil.Process(child.pid).net_connections("tcp")
                    except psutil.Error:
                        sockets = []
                    for entry in sockets:
                        if entry.status == psutil.CONN_LISTEN:
                            return int(entry.laddr.port)
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise ToxiproxyError(f"it does not listen after {START_TIMEOUT_S:.0f} s") from error


class Link:
    """One proxy: what its connections suffer. Dial ``listen``; it forwards to ``upstream``.

    What Toxiproxy does to every connection, with or without toxics: it knows no half-close (the end of one direction
    ends both) and turns a reset into a plain end.
    """

    def __init__(self, server: Toxiproxy, api: ToxiproxyApi, name: str, upstream: str, listen: tuple[str, int]) -> None:
        self.name = name
        self.upstream = upstream
        self.listen = listen
        self.refusing = False
        self._server = server
        self._api = api

    async def add_toxic(self, kind: str, stream: str, attributes: Mapping[str, Any]) -> None:
        """Put a toxic on all connections, open ones too; one of the same kind and stream gets the new attributes.

        ``reset_peer`` resets only connections opened after it, and only when data arrives; on an open one it is a plain
        end. Raises ``BadToxic`` for what the server would silently ignore.
        """
        complete = checked(kind, stream, attributes)
        await self._server.call(self._api.put_toxic, self.name, f"{kind}_{stream}", kind, stream, complete)

    async def remove_toxics(self, kind: str, stream: str) -> None:
        """Remove the toxics of that kind and stream; an empty string stands for all. None there is no error.

        Removing a ``timeout`` closes the connections it held.
        """
        for name, (its_kind, its_stream, _) in (await self._server.call(self._api.toxics, self.name)).items():
            if kind in ("", its_kind) and stream in ("", its_stream):
                await self._server.call(self._api.remove_toxic, self.name, name)

    async def toxics(self) -> dict[str, tuple[str, str, dict[str, Any]]]:
        """Kind, stream and attributes of what is on the link, by toxic name, as the server tells it."""
        return await self._server.call(self._api.toxics, self.name)

    async def cut(self) -> None:
        """Close every connection now; bytes under way are lost. On return new connections are accepted.

        Between the two the port refuses for about a millisecond: a client that dials right then sees that. Toxics stay.
        """
        if not self.refusing:
            await self._server.call(self._api.set_enabled, self.name, False)
            await self._server.call(self._api.set_enabled, self.name, True)

    async def refuse(self) -> None:
        """Close every connection and refuse new ones (ECONNREFUSED) until ``restore``."""
        await self._server.call(self._api.set_enabled, self.name, False)
        self.refusing = True

    async def restore(self) -> None:
        """Accept connections again, on the same port."""
        await self._server.call(self._api.set_enabled, self.name, True)
        self.refusing = False

    async def reset(self) -> None:
        """Heal this link: no toxics, connections accepted."""
        await self.remove_toxics("", "")
        await self.restore()
