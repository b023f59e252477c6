"""The namespaces that sessions have for themselves, where there is an admin service to make them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from harness.setup_error import SetupError
from harness.systems.admin import Admin, AdminError, AdminExists, AdminRefused, AdminUnreachable

TENANT = "public"

BUSY_S = 20.0
"""How long a service may leave a request for a namespace unanswered: a broker with much to do takes its time."""

BUSY_PAUSE_S = 0.5


class Namespaces:
    """Made one by one, removed beside what goes on. Used by one event loop."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._present: set[str] = set()
        self._removing: set[asyncio.Task[None]] = set()

    @property
    def present(self) -> list[str]:
        """Those that were made and are not known to be gone."""
        return sorted(self._present)

    async def make(self, name: str, gone: Callable[[], str]) -> None:
        """Raises AdminExists when the name is taken by somebody else, whose namespace is left alone; SetupError when
        the service refuses, since it would refuse any other; AdminUnreachable when it does not answer for ``BUSY_S``,
        or ``gone`` says why it never will (empty as long as it may).
        """
        unanswered = False
        deadline = asyncio.get_running_loop().time() + BUSY_S
        while True:
            try:
                await self._admin.create_namespace(name)
            except AdminExists:
                if not unanswered:
                    raise
                # Of a name that nobody else draws: the request was carried out, its answer came too late.
                self._present.add(name)
                return
            except AdminRefused as error:
                raise SetupError(
                    f"the namespace {name} could not be created: {error}",
                    f"Every session makes a namespace: the role must be allowed to, in the tenant {TENANT}.",
                ) from error
            except AdminUnreachable as error:
                if gone() or asyncio.get_running_loop().time() >= deadline:
                    raise AdminUnreachable(f"the namespace {name} could not be created: {error}") from error
                unanswered = True
                await asyncio.sleep(BUSY_PAUSE_S)
            else:
                self._present.add(name)
                return

    def remove_later(self, name: str) -> None:
        """Nobody uses it any more."""
        task = asyncio.get_running_loop().create_task(self._remove(name))
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def at_rest(self) -> None:
        """No removal is under way: before the broker is taken away, which would break it off."""
        if self._removing:
            await asyncio.wait(self._removing)

    async def remove_all(self) -> list[str]:
        """Remove what is still there; the names of those that the broker kept."""
        await self.at_rest()
        await asyncio.gather(*(self._remove(name) for name in list(self._present)))
        return self.present

    async def _remove(self, name: str) -> None:
        if name not in self._present:
            return
        try:
            await self._admin.remove_namespace(name)
        except AdminError:
            # Tried once more at the end, and told then.
            return
        self._present.discard(name)
