"""Short texts for events, operations and faults, the same in every report."""

from __future__ import annotations

import json
from typing import Any

from harness.history.event import Event
from harness.worlds.plan import Fault, Operation


def event_label(event: Event) -> str:
    """What an arrow of the sequence chart says: the kind and the ids that tell one frame from the next."""
    parts = [event.kind]
    if event.sequence_id is not None:
        last = event.highest_sequence_id
        parts.append(f"seq {event.sequence_id}" + (f"..{last}" if last not in (None, event.sequence_id) else ""))
    if event.entry_id is not None:
        batch = f":{event.batch_index}" if event.batch_index is not None else ""
        parts.append(f"id {event.ledger_id}:{event.entry_id}{batch}")
    elif event.kind == "ACK" and isinstance(event.extra.get("ids"), list):
        # A history of another tool's may hold anything here; it is shown, not trusted.
        parts.append(f"{len(event.extra['ids'])} ids")
    if event.chunk_id is not None:
        parts.append(f"chunk {event.chunk_id + 1}/{event.num_chunks}")
    if event.extra.get("duplicate"):
        parts.append("duplicate")
    if event.redelivery_count:
        parts.append(f"redelivery {event.redelivery_count}")
    if event.ack_type:
        parts.append(event.ack_type)
    if event.permits is not None:
        parts.append(f"{event.permits} permits")
    if event.extra.get("empty"):
        parts.append("nothing")
    if event.error:
        parts.append(f"error {event.error}")
    return " ".join(parts)


def event_details(event: Event) -> str:
    """The columns a label leaves out, for the trace table."""
    columns: dict[str, Any] = {
        "topic": event.topic and event.topic.rsplit("/", 1)[-1],
        "producer": event.producer,
        "subscription": event.subscription,
        "consumer": event.consumer,
        "payload": event.payload_digest and event.payload_digest[:8],
        "size": event.payload_size,
        "messages": event.num_messages if (event.num_messages or 1) > 1 else None,
        "request": event.request_id,
        "fault": event.fault,
    }
    return " ".join(f"{name}={value}" for name, value in columns.items() if value is not None)


def operation_label(operation: Operation) -> str:
    """One operation on one line, as in ``send p0 tag=fresh sequence_id=4 (not awaited)``."""
    words: list[str] = [operation.verb]
    if operation.handle:
        words.append(operation.handle)
    if operation.client != "a":
        words.append(f"on client {operation.client}")
    words += [f"{name}={_value(value)}" for name, value in operation.params.items()]
    if not operation.wait:
        words.append("(not awaited)")
    return " ".join(words)


def fault_label(fault: Fault) -> str:
    """One fault on one line, as in ``toxic limit_data upstream bytes=120``."""
    words = [word for word in (fault.kind, fault.toxic, fault.stream) if word]
    if fault.client != "a":
        words.append(f"on client {fault.client}")
    words += [f"{name}={_value(value)}" for name, value in fault.attributes.items()]
    if fault.frame is not None:
        words.append(f"frame={_value(fault.frame)}")
    return " ".join(words)


def step_label(step: Operation | Fault) -> str:
    """Either of the two."""
    return operation_label(step) if isinstance(step, Operation) else fault_label(step)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
