"""The events that a world itself adds to a history: faults and what the system's own view of a cursor says."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from harness.history.event import Event
from harness.worlds.plan import Fault


class Records(Protocol):
    def record(self, **columns: Any) -> Event: ...


class PositionLike(Protocol):
    @property
    def ledger(self) -> int: ...
    @property
    def entry(self) -> int: ...


class CursorView(Protocol):
    """What a system tells of a subscription's cursor; ``mark_delete`` is None before anything is acknowledged."""

    @property
    def mark_delete(self) -> PositionLike | None: ...
    @property
    def individually_deleted(self) -> Any: ...
    @property
    def backlog(self) -> int | None: ...


HEALING = frozenset({"untoxic", "restore"})
"""Faults recorded after they took hold; all others before, so that no effect precedes its cause in the history."""


BrokerEvent = Literal["broker_stop", "broker_resume", "broker_ready"]
"""What a broker goes through in the course of a fault of another kind, or when a session heals it."""


def record_fault(recorder: Records, fault: Fault, **about: Any) -> None:
    """One event of the fault layer; the ``fault`` column is the fault's JSON. ``about``: topic and subscription."""
    recorder.record(
        layer="fault",
        kind=fault.kind,
        fault=msgspec.json.encode(fault).decode(),
        extra={"client": fault.client},
        **about,
    )


def record_broker(recorder: Records, kind: BrokerEvent) -> None:
    """One event of the fault layer that no step of the plan names."""
    recorder.record(layer="fault", kind=kind)


def record_not_injected(recorder: Records, fault: Fault, why: str, **about: Any) -> None:
    """A fault that the system cannot do, or refused: it disturbs nothing. ``about``: topic and subscription."""
    recorder.record(
        layer="fault",
        kind="not_injected",
        fault=msgspec.json.encode(fault).decode(),
        extra={"client": fault.client, "fault": fault.kind, "why": why},
        **about,
    )


def record_dedup(recorder: Records, enabled: bool) -> None:
    """Deduplication is in force, or not, from here on."""
    recorder.record(layer="fault", kind="dedup", extra={"enabled": enabled})


def record_cursor(recorder: Records, topic: str, subscription: str, view: CursorView, **more: Any) -> None:
    """One ``CURSOR`` sample of the admin layer; ``more`` goes to its ``extra``."""
    position = view.mark_delete
    recorder.record(
        layer="admin",
        kind="CURSOR",
        topic=topic,
        subscription=subscription,
        ledger_id=position.ledger if position else None,
        entry_id=position.entry if position else None,
        extra={
            "individually_deleted": [list(item) for item in view.individually_deleted],
            "backlog": view.backlog,
            **more,
        },
    )
