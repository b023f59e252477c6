"""What a broker's admin service can be asked and told, as the worlds need it; topics by their complete names.

Times are seconds, sizes bytes. Every call raises ``AdminRefused`` (the service said no: the message has its words and
what to do; ``AdminMissing`` when what it is about does not exist), ``AdminUnreachable`` (no answer, also while the
broker is down) and nothing else.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from harness.wire.message_id import Position

QuotaPolicy = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]


class AdminError(Exception):
    """The admin service did not do what it was asked."""


class AdminRefused(AdminError):
    """It answered, and refused: no such topic, no permission, a setting that this version does not have."""


class AdminMissing(AdminRefused):
    """There is no such topic, subscription or namespace."""


class AdminExists(AdminRefused):
    """There is one of that name already, and whoever made it may need it."""


class AdminUnreachable(AdminError):
    """It did not answer."""


class ConsumerStats(msgspec.Struct, frozen=True, kw_only=True):
    """``permits`` is how many messages the broker may still send; ``unacked`` how many it waits for."""

    name: str
    permits: int
    unacked: int
    blocked: bool = False


class SubscriptionStats(msgspec.Struct, frozen=True, kw_only=True):
    """``backlog`` counts messages (an unopened batch may count as one entry, see ``exact`` of the request)."""

    type: str
    backlog: int
    unacked: int
    consumers: tuple[ConsumerStats, ...] = ()


class TopicStats(msgspec.Struct, frozen=True, kw_only=True):
    """``deduplication``: whether it is in force on the topic now; None when the broker does not say."""

    subscriptions: dict[str, SubscriptionStats]
    deduplication: bool | None = None
    storage_size: int | None = None


class LedgerStats(msgspec.Struct, frozen=True, kw_only=True):
    """``entries`` is None of the ledger that is being written, whose count the broker gives apart."""

    ledger: int
    entries: int | None
    size: int | None = None


class CursorStats(msgspec.Struct, frozen=True, kw_only=True):
    """``mark_delete``: None when nothing is deleted yet. ``individually_deleted``: inclusive
    ``(ledger, first, last)``. Satisfies ``harness.worlds.record.CursorView``.
    """

    mark_delete: Position | None
    individually_deleted: tuple[tuple[int, int, int], ...] = ()
    backlog: int | None = None
    read_position: Position | None = None


class InternalStats(msgspec.Struct, frozen=True, kw_only=True):
    """The storage of a topic: its ledgers in order, the last confirmed position (None: empty), cursors by name."""

    ledgers: tuple[LedgerStats, ...]
    last_confirmed: Position | None
    entries: int | None
    state: str
    cursors: dict[str, CursorStats]


class Admin(Protocol):
    """The admin service of one system. All calls are idempotent where the word allows it."""

    async def create_namespace(self, namespace: str) -> None:
        """``tenant/name``. ``AdminExists`` for one that is there: it is not the caller's to use or to remove."""

    async def remove_namespace(self, namespace: str) -> None:
        """With all its topics, whoever is connected to them."""

    async def topic_stats(self, topic: str) -> TopicStats: ...

    async def internal_stats(self, topic: str) -> InternalStats: ...

    async def set_deduplication(self, namespace: str, enabled: bool) -> None:
        """Returns once the namespace says so; topics that are loaded follow, see ``TopicStats.deduplication``."""

    async def set_backlog_quota(
        self, namespace: str, policy: QuotaPolicy, *, size: int | None = None, seconds: int | None = None
    ) -> None: ...

    async def unload_topic(self, topic: str) -> None: ...

    async def unload_namespace(self, namespace: str) -> None: ...

    async def terminate_topic(self, topic: str) -> Position | None:
        """No further message is stored; the last position (None: none ever was)."""

    async def delete_subscription(self, topic: str, subscription: str, *, force: bool = False) -> None: ...

    async def create_partitions(self, topic: str, partitions: int) -> None:
        """A partitioned topic of that many partitions."""

    async def grow_partitions(self, topic: str, partitions: int) -> None:
        """To that many in all."""
