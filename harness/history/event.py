"""One recorded fact: the row every tap, adapter, fault and invariant agrees on.

The columns are described for other tools in ``docs/history.md``; a missing value is ``None``, never -1.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Layer = Literal["api", "tap.client", "tap.broker", "fault", "admin", "log"]
Phase = Literal["invoke", "ok", "fail", "unknown", "event"]

SCHEMA_VERSION = 1


class Event(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A row of a history.

    ``index`` is the recorder's total order, unique in a run; ``time_ns`` one clock for all layers (monotonic in the
    real world, virtual in the simulated one). ``kind`` is the API verb (``send``) or the wire command (``SEND``).
    """

    run: str = ""
    index: int = 0
    time_ns: int = 0
    layer: Layer = "api"
    kind: str = ""
    phase: Phase = "event"
    op: int | None = None
    actor: str | None = None
    connection: str | None = None
    topic: str | None = None
    partition: int | None = None
    subscription: str | None = None
    producer: str | None = None
    consumer: str | None = None
    sequence_id: int | None = None
    highest_sequence_id: int | None = None
    num_messages: int | None = None
    ledger_id: int | None = None
    entry_id: int | None = None
    batch_index: int | None = None
    ack_set: list[int] | None = None
    ack_type: str | None = None
    redelivery_count: int | None = None
    chunk_uuid: str | None = None
    chunk_id: int | None = None
    num_chunks: int | None = None
    payload_digest: str | None = None
    payload_size: int | None = None
    permits: int | None = None
    request_id: int | None = None
    error: str | None = None
    fault: str | None = None
    extra: dict[str, Any] = {}


COLUMNS: tuple[str, ...] = Event.__struct_fields__
