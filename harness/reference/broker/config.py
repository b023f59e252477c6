"""Settings of the reference broker. Times are nanoseconds, sizes bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SECOND = 1_000_000_000
MILLISECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Everything that can be chosen; the defaults are those of a 4.0 broker unless the comment says otherwise.

    ``service_url`` is what lookups answer. ``max_message_size`` is announced in CONNECTED; frames larger than that plus
    ``frame_padding`` close the connection (SEND-05). ``storage_latency`` is the time between accepting an entry and
    having it persisted (0: at once). ``partitions`` maps complete topic names to their number of partitions.
    ``cursor_save_interval`` limits how often a cursor is persisted, ``cursor_flush_interval`` bounds how long a
    changed one stays unsaved (MARKDEL-04).
    """

    service_url: str = "pulsar://127.0.0.1:6650"
    server_version: str = "Starquake reference 4.0"
    protocol_version: int = 21
    cluster: str = "reference"
    max_message_size: int = 5 * 1024 * 1024
    frame_padding: int = 10 * 1024
    keep_alive: int = 30 * SECOND
    liveness_timeout: int = 5 * SECOND
    storage_latency: int = 0
    max_entries_per_ledger: int = 50_000
    dedup_enabled: bool = False
    dedup_snapshot_entries: int = 1000
    cursor_save_interval: int = 1 * SECOND
    cursor_flush_interval: int = 60 * SECOND
    batch_index_ack: bool = True  # a 4.0 broker has it off; clauses about it would otherwise never be judged
    failover_delay: int = 1 * SECOND
    max_unacked_per_consumer: int = 50_000
    look_ahead: int = 1000
    partitions: Mapping[str, int] = field(default_factory=dict)
