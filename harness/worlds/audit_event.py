"""The columns of an ``ENTRY``: one stored entry, as the final full read of a topic found it."""

from __future__ import annotations

import struct
from typing import Any

from harness.faults.message_columns import message_columns, present, text
from harness.reference.broker.stored_entry import StoredEntry
from harness.wire.frame import Frame, decode
from harness.wire.message import is_batch
from harness.wire.pulsar_pb2 import BaseCommand, MessageMetadata


def columns_of_message(topic: str, frame: Frame) -> dict[str, Any]:
    """From the MESSAGE frame in which the auditor was sent the entry."""
    body = frame.command.message
    position = {"ledger_id": present(body.message_id.ledgerId), "entry_id": present(body.message_id.entryId)}
    identity = {} if frame.metadata is None else _identity(frame.metadata)
    return {**message_columns(frame), "topic": topic, **position, **identity}


def columns_of_entry(topic: str, entry: StoredEntry) -> dict[str, Any]:
    """From the reference broker's own storage: the stored bytes are read as a consumer would be sent them."""
    command = BaseCommand(type=BaseCommand.MESSAGE)
    command.message.consumer_id = 0
    command.message.message_id.ledgerId = entry.ledger
    command.message.message_id.entryId = entry.entry
    head = command.SerializeToString()
    sizes = struct.pack(">II", 4 + len(head) + len(entry.body), len(head))
    return columns_of_message(topic, decode(sizes + head + entry.body))


def _identity(metadata: MessageMetadata) -> dict[str, Any]:
    return {
        "producer": text(metadata.producer_name),
        "sequence_id": present(metadata.sequence_id),
        "highest_sequence_id": present(metadata.highest_sequence_id) or None,
        "num_messages": metadata.num_messages_in_batch if is_batch(metadata) else 1,
    }
