"""Hand-made histories for tests: each method appends one event (or one operation) and returns it."""

from __future__ import annotations

import hashlib
from typing import Any

from harness.history.event import Event
from harness.invariants.core import Invariant
from harness.invariants.engine import ClauseResult, judge_history

TOPIC = "persistent://public/default/t"
SUBSCRIPTION = "s"
PRODUCER = "p"
CONSUMER = "c"


def digest(payload: str) -> str:
    """The payload digest of the event contract."""
    return hashlib.sha256(payload.encode()).hexdigest()[:16]


class History:
    """A growing list of events. ``add`` takes raw columns; the others fill in what a real run always has."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._operations = 0

    def add(self, **columns: Any) -> Event:
        index = len(self.events)
        event = Event(run="test", index=index, time_ns=columns.pop("time_ns", index * 1_000_000), **columns)
        self.events.append(event)
        return event

    # --- API ---------------------------------------------------------------------------------------------------

    def invoke(self, kind: str, **columns: Any) -> Event:
        """Open an operation; its number is the ``op`` of the event returned."""
        self._operations += 1
        columns.setdefault("topic", TOPIC)
        return self.add(layer="api", kind=kind, phase="invoke", op=self._operations, **columns)

    def complete(self, invoked: Event, phase: str = "ok", **columns: Any) -> Event:
        """Close an operation as ``ok``, ``fail`` or ``unknown``, with the identifying columns of its invocation."""
        for name in ("actor", "topic", "producer", "consumer", "subscription"):
            columns.setdefault(name, getattr(invoked, name))
        return self.add(layer="api", kind=invoked.kind, phase=phase, op=invoked.op, **columns)

    def send(self, payload: str, outcome: str = "ok", at: tuple[int, int] | None = None, **columns: Any) -> Event:
        """A whole send. ``at``: (ledger, entry) of the id returned; ``duplicate=True``: the -1:-1 answer."""
        duplicate = columns.pop("duplicate", False)
        error = columns.pop("error", None)
        batch_index = columns.pop("batch_index", None)
        columns.setdefault("producer", PRODUCER)
        columns.setdefault("payload_digest", digest(payload))
        invoked = self.invoke("send", **columns)
        return self.complete(
            invoked,
            outcome,
            error=error,
            batch_index=batch_index,
            ledger_id=at[0] if at else None,
            entry_id=at[1] if at else None,
            extra={"duplicate": True} if duplicate else {},
        )

    # --- frames ------------------------------------------------------------------------------------------------

    def frame(self, kind: str, *, side: str = "broker", to: str = "broker", conn: int = 1, **columns: Any) -> Event:
        """One frame as a tap saw it. ``side``: which tap (``client`` | ``broker``); ``to``: direction."""
        extra = {"direction": f"to_{to}"} | columns.pop("extra", {})
        columns.setdefault("topic", TOPIC)
        columns.setdefault("connection", f"{side}-{conn}")
        return self.add(layer=f"tap.{side}", kind=kind, extra=extra, **columns)

    def both(self, kind: str, *, to: str = "broker", **columns: Any) -> None:
        """The same frame at both taps, in the order in which it travels."""
        for side in ("client", "broker") if to == "broker" else ("broker", "client"):
            copy = dict(columns)
            copy["extra"] = dict(columns.get("extra", {}))
            self.frame(kind, side=side, to=to, **copy)

    # --- whole conversations of a producer -----------------------------------------------------------------------

    def send_columns(self, sequence_id: int, payload: str | list[str], **columns: Any) -> dict[str, Any]:
        """Columns of a sound SEND or MESSAGE; a list of payloads makes a batch."""
        extra: dict[str, Any] = {
            "producer_id": 0,
            "checksum_ok": True,
            "frame_digest": f"{sequence_id}:{payload}",
            "stored_size": 10,
            "metadata": {"producer_name": PRODUCER, "sequence_id": sequence_id, "publish_time": 1},
        }
        made: dict[str, Any] = {"producer": PRODUCER, "sequence_id": sequence_id, "num_messages": 1}
        if isinstance(payload, list):
            made["num_messages"] = extra["metadata"]["num_messages_in_batch"] = len(payload)
            made["highest_sequence_id"] = sequence_id + len(payload) - 1
            extra["messages"] = [
                {"digest": digest(text), "size": 10, "sequence_id": sequence_id + place, "key": None}
                for place, text in enumerate(payload)
            ]
        else:
            made["payload_digest"] = digest(payload)
        given = columns.pop("extra", {})
        extra["metadata"] |= given.pop("metadata", {})
        return made | columns | {"extra": extra | given}

    def sent(self, sequence_id: int, payload: str | list[str], side: str | None = None, **columns: Any) -> None:
        """A SEND frame, at both taps unless ``side`` says where."""
        conn = columns.pop("conn", 1)
        made = self.send_columns(sequence_id, payload, **columns)
        if side is None:
            self.both("SEND", conn=conn, **made)
        else:
            self.frame("SEND", side=side, conn=conn, **made)

    def receipt(self, sequence_id: int, at: tuple[int, int] | None, side: str | None = None, **columns: Any) -> None:
        """A SEND_RECEIPT (``at`` None: a duplicate), at both taps unless ``side`` says where."""
        made = {"producer": PRODUCER, "sequence_id": sequence_id} | columns
        made["extra"] = {"producer_id": 0, "duplicate": at is None}
        if at is not None:
            made["ledger_id"], made["entry_id"] = at
        if side is None:
            self.both("SEND_RECEIPT", to="client", **made)
        else:
            self.frame("SEND_RECEIPT", side=side, to="client", **made)

    def refused(self, sequence_id: int, error: str, side: str | None = None, **columns: Any) -> None:
        """A SEND_ERROR, at both taps unless ``side`` says where."""
        made = {"producer": PRODUCER, "sequence_id": sequence_id, "error": error} | columns
        if side is None:
            self.both("SEND_ERROR", to="client", **made)
        else:
            self.frame("SEND_ERROR", side=side, to="client", **made)

    def registered(self, conn: int = 1, request_id: int = 1, last: int | None = None) -> None:
        """PRODUCER and its PRODUCER_SUCCESS at both taps."""
        columns: dict[str, Any] = {"producer": PRODUCER, "conn": conn, "request_id": request_id}
        self.both("PRODUCER", **columns, extra={"producer_id": 0})
        self.both(
            "PRODUCER_SUCCESS",
            to="client",
            **columns,
            extra={"producer_id": 0, "last_sequence_id": last, "ready": True, "request": "PRODUCER"},
        )

    def closed(self, conn: int = 1, by: str = "tap", side: str | None = None) -> None:
        """The end of a connection, at both taps unless ``side`` says where."""
        for place in ("client", "broker") if side is None else (side,):
            self.add(layer=f"tap.{place}", kind="CONNECTION_CLOSED", connection=f"{place}-{conn}", extra={"by": by})

    def published(self, sequence_id: int, payload: str, at: tuple[int, int] | None, conn: int = 1) -> None:
        """A send from its invocation to its completion, with all frames; ``at`` None: answered as a duplicate."""
        invoked = self.invoke("send", producer=PRODUCER, payload_digest=digest(payload), actor="p0")
        self.sent(sequence_id, payload, conn=conn)
        self.receipt(sequence_id, at, conn=conn)
        self.acknowledged(invoked, at)

    def acknowledged(self, invoked: Event, at: tuple[int, int] | None, **columns: Any) -> Event:
        """A send completes ``ok``; ``at`` None: as a duplicate."""
        return self.complete(
            invoked,
            "ok",
            ledger_id=at[0] if at else None,
            entry_id=at[1] if at else None,
            extra={} if at else {"duplicate": True},
            **columns,
        )

    # --- faults and the end --------------------------------------------------------------------------------------

    def dedup(self, enabled: bool) -> Event:
        return self.add(layer="fault", kind="dedup", extra={"enabled": enabled}, fault="{}")

    def quiescent(self, drained: bool = True) -> Event:
        self.add(layer="fault", kind="healed")
        return self.add(layer="fault", kind="quiescent", extra={"drained": drained})

    def entry(self, ledger: int, entry: int, payload: str | None = None, **columns: Any) -> Event:
        """One stored entry of the final read."""
        for name, value in (("topic", TOPIC), ("producer", PRODUCER), ("num_messages", 1)):
            columns.setdefault(name, value)
        if payload is not None:
            columns["payload_digest"] = digest(payload)
        return self.add(layer="log", kind="ENTRY", ledger_id=ledger, entry_id=entry, **columns)

    def log_end(self, complete: bool = True, topic: str = TOPIC) -> Event:
        return self.add(layer="log", kind="LOG_END", topic=topic, extra={"complete": complete})


def judge(history: History, *invariants: Invariant[Any]) -> dict[str, ClauseResult]:
    """The results of the invariants over the history, by clause."""
    return judge_history(history.events, invariants).results


def broken(results: dict[str, ClauseResult]) -> set[str]:
    """The clauses with at least one anomaly."""
    return {clause for clause, result in results.items() if result.anomalies}


def names(results: dict[str, ClauseResult]) -> set[tuple[str, str]]:
    """(clause, anomaly name) of every anomaly."""
    return {(clause, found.name) for clause, result in results.items() for found in result.anomalies}
