"""One subscribed consumer."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from harness.reference.broker import answers
from harness.reference.broker.ack_set import full, to_words
from harness.reference.broker.connection import Connection
from harness.reference.broker.permits import Permits
from harness.reference.broker.stored_entry import StoredEntry
from harness.wire.pulsar_pb2 import CommandSubscribe

if TYPE_CHECKING:
    from harness.reference.broker.subscription import Subscription

_SIZES = struct.Struct(">II")


class Consumer:
    """Lives on one connection. ``pending``: offset to messages sent and unacknowledged (Shared and Key_Shared only).

    ``request`` is the SUBSCRIBE it came from; ``epoch`` numbers its redelivery requests, None when it has none.
    """

    def __init__(
        self, request: CommandSubscribe, name: str, subscription: Subscription, connection: Connection, permits: Permits
    ) -> None:
        self.id = request.consumer_id
        self.name = name
        self.request = request
        self.priority = request.priority_level
        self.epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
        self.subscription = subscription
        self.connection = connection
        self.permits = permits
        self.pending: dict[int, int] = {}
        self.unacked = 0

    def deliver(self, stored: StoredEntry, remaining: int, redelivery_count: int) -> None:
        """Writes MESSAGE; charges the messages of the entry that are not acknowledged yet."""
        partial = stored.is_batch and remaining != full(stored.num_messages)
        at = answers.message_id(stored.ledger, stored.entry, self.subscription.topic.name.partition)
        head = answers.message(
            self.id, at, redelivery_count, to_words(remaining) if partial else (), self.epoch
        ).SerializeToString()
        self.permits.charge(remaining.bit_count())
        self.connection.send_bytes(_SIZES.pack(4 + len(head) + len(stored.body), len(head)) + head + stored.body)

    def hold(self, offset: int, messages: int) -> None:
        """An entry was sent, and this many of its messages are still to be acknowledged."""
        self.unacked += messages - self.pending.get(offset, 0)
        self.pending[offset] = messages

    def let_go(self, offset: int) -> bool:
        """The entry is acknowledged or goes to somebody else; False when this consumer did not hold it."""
        messages = self.pending.pop(offset, None)
        if messages is None:
            return False
        self.unacked -= messages
        return True
