"""Deduplication of one session's topics, switched by the admin service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from harness.systems.admin import Admin, AdminRefused

IN_FORCE_S = 10.0
"""How long a broker may take to switch its topics: it reads their recent entries again before it deduplicates."""

POLL_S = 0.05


class NotInForce(RuntimeError):
    """The broker accepted the switch and did not do it: the session would be judged by what is not so."""


class SwitchedByNamespace:
    """By the admin service, for a namespace that the session has for itself."""

    def __init__(self, admin: Admin, namespace: str) -> None:
        self._admin = admin
        self._namespace = namespace
        self._enabled = False

    async def switch(self, enabled: bool, topics: Sequence[str]) -> None:
        """Returns once it is so for these topics and for those to come. Raises NotInForce, AdminError."""
        self._enabled = enabled
        await self._admin.set_deduplication(self._namespace, enabled)
        for topic in topics:
            await self.check(topic)

    async def check(self, topic: str) -> None:
        """Returns once a topic that is new has what was switched last. Raises NotInForce, AdminError."""
        deadline = asyncio.get_running_loop().time() + IN_FORCE_S
        while True:
            try:
                said = (await self._admin.topic_stats(topic)).deduplication
            except AdminRefused:
                # Not loaded: it reads the policy when it is.
                return
            if said is None or said == self._enabled:
                return
            if asyncio.get_running_loop().time() > deadline:
                word = "on" if self._enabled else "off"
                raise NotInForce(f"deduplication was switched {word}, but after {IN_FORCE_S:.0f} s not so for {topic}")
            await asyncio.sleep(POLL_S)
