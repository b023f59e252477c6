"""Consumers as the application knows them: their options and whether they are still in use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.history.event import Event


@dataclass(eq=False)
class Member:
    """One consumer of the API. ``leaving`` is set when its close or unsubscribe is invoked, ``gone`` when it is ok."""

    consumer: str
    subscription: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    created: int = 0
    ready: bool = False
    leaving: int | None = None
    gone: int | None = None
    gone_ns: int = 0
    gone_by: str = ""

    @property
    def alive(self) -> bool:
        return self.ready and self.leaving is None

    def milliseconds(self, option: str, default: int) -> int:
        """An option in milliseconds, in nanoseconds."""
        value = self.options.get(option)
        return (default if value is None else int(value)) * 1_000_000


class Members:
    """The consumers of one topic by name. A name that is used again starts a new member."""

    def __init__(self) -> None:
        self.by_name: dict[str, Member] = {}
        self.names_reused: set[str] = set()

    def observe(self, event: Event) -> Member | None:
        """Take an API event; answer the member it concerns."""
        if event.layer != "api":
            return None
        if event.kind == "close" and event.topic is None and event.phase == "invoke":
            # The event of a whole client does not say which consumers it had: treat all as leaving, judge less.
            for member in self.by_name.values():
                member.leaving = event.index if member.leaving is None else member.leaving
            return None
        if event.consumer is None:
            return None
        if event.kind == "consumer":
            return self._create(event)
        found = self.by_name.get(event.consumer)
        if found is not None and event.kind in ("close", "unsubscribe"):
            if event.phase == "invoke" and found.leaving is None:
                found.leaving = event.index
            if event.phase == "ok" and found.gone is None:
                found.gone, found.gone_ns, found.gone_by = event.index, event.time_ns, event.kind
        return found

    def _create(self, event: Event) -> Member | None:
        name = event.consumer or ""
        if event.phase == "invoke":
            if name in self.by_name:
                self.names_reused.add(name)
            self.by_name[name] = Member(
                consumer=name,
                subscription=event.subscription or "",
                kind=str(event.extra.get("type", "")),
                options=dict(event.extra.get("options") or {}),
                created=event.index,
            )
        member = self.by_name.get(name)
        if member is not None and event.phase == "ok":
            member.ready = True
        return member
