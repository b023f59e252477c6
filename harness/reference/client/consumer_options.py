"""What a consumer is told when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.reference.client.config import MILLISECOND, SECOND

SubscriptionType = Literal["exclusive", "failover", "shared", "key_shared"]


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Times in nanoseconds; ``ack_timeout`` 0 is off, ``ack_group`` 0 sends at once, ``expire_chunks`` 0 is never."""

    topic: str
    subscription: str
    name: str
    type: SubscriptionType
    earliest: bool = False
    queue: int = 1000
    nack_delay: int = 60 * SECOND
    ack_timeout: int = 0
    max_redeliver: int | None = None
    dead_letter_topic: str | None = None
    max_pending_chunked: int = 10
    auto_ack_oldest_chunked: bool = False
    expire_chunks: int = 60 * SECOND
    ack_group: int = 100 * MILLISECOND
    batch_index_ack: bool = False
    ack_receipt: bool = False

    @property
    def shared(self) -> bool:
        """Whether several consumers get messages of one topic, so that single ones are asked for again."""
        return self.type in ("shared", "key_shared")
