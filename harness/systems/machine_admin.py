"""The admin service of a reference broker machine: its own accounts and words, no HTTP in between."""

from __future__ import annotations

from collections.abc import Callable

from harness.reference.broker.machine import BrokerMachine
from harness.reference.broker.statistics import Statistics
from harness.reference.outputs import BrokerOutput
from harness.systems.admin import (
    AdminMissing,
    AdminRefused,
    AdminUnreachable,
    ConsumerStats,
    CursorStats,
    InternalStats,
    LedgerStats,
    QuotaPolicy,
    SubscriptionStats,
    TopicStats,
)
from harness.wire.message_id import Position


def machine_stats(machine: BrokerMachine, topic: str) -> TopicStats:
    """What the machine tells of a topic now. Raises ``AdminMissing``, ``AdminUnreachable`` while it is down."""
    told = _statistics(machine, topic)
    return TopicStats(
        subscriptions={
            name: SubscriptionStats(
                type=told.kind(subscription),
                backlog=told.cursor(subscription).backlog,
                unacked=told.unacked(subscription),
                consumers=tuple(
                    ConsumerStats(name=one.name, permits=one.permits, unacked=one.unacked, blocked=one.blocked)
                    for one in told.consumers(subscription)
                ),
            )
            for name, subscription in told.topic.subscriptions.items()
        },
        deduplication=told.deduplication(),
        storage_size=sum(size for _, _, size in told.ledgers()),
    )


def machine_internal(machine: BrokerMachine, topic: str) -> InternalStats:
    """The storage of a topic now. Raises as ``machine_stats`` does."""
    told = _statistics(machine, topic)
    ledgers = told.ledgers()
    return InternalStats(
        ledgers=tuple(LedgerStats(ledger=ledger, entries=entries, size=size) for ledger, entries, size in ledgers),
        last_confirmed=told.last_confirmed(),
        entries=sum(entries for _, entries, _ in ledgers),
        state="Terminated" if told.topic.terminated else "LedgerOpened",
        cursors={
            name: CursorStats(
                mark_delete=cursor.mark_delete,
                individually_deleted=cursor.individually_deleted,
                backlog=cursor.backlog,
                read_position=cursor.read,
            )
            for name, cursor in ((name, told.cursor(one)) for name, one in told.topic.subscriptions.items())
        },
    )


def _statistics(machine: BrokerMachine, topic: str) -> Statistics:
    if machine.down:
        raise AdminUnreachable("the reference broker is down")
    told = machine.statistics(topic)
    if told is None:
        raise AdminMissing(f"there is no topic {topic}")
    return told


class MachineAdmin:
    """``Admin`` of a machine that somebody else pumps: no call ever waits.

    ``now`` is the machine's clock in ns; ``perform`` carries out what the machine wants written and closed. A namespace
    is the beginning of a topic's name here, which nobody has to create.
    """

    def __init__(
        self, machine: BrokerMachine, now: Callable[[], int], perform: Callable[[list[BrokerOutput]], None]
    ) -> None:
        self._machine = machine
        self._now = now
        self._perform = perform

    async def create_namespace(self, namespace: str) -> None:
        self._up()

    async def remove_namespace(self, namespace: str) -> None:
        for topic in self._topics_of(namespace):
            self._perform(self._up().delete_topic(topic, self._now()))

    async def topic_stats(self, topic: str) -> TopicStats:
        return machine_stats(self._machine, topic)

    async def internal_stats(self, topic: str) -> InternalStats:
        return machine_internal(self._machine, topic)

    async def set_deduplication(self, namespace: str, enabled: bool) -> None:
        self._up().set_dedup(enabled, _prefix(namespace))

    async def set_backlog_quota(
        self, namespace: str, policy: QuotaPolicy, *, size: int | None = None, seconds: int | None = None
    ) -> None:
        raise AdminRefused("the reference broker has no backlog quotas")

    async def unload_topic(self, topic: str) -> None:
        self._known(topic)
        self._perform(self._machine.unload(topic, self._now()))

    async def unload_namespace(self, namespace: str) -> None:
        for topic in self._topics_of(namespace):
            self._perform(self._up().unload(topic, self._now()))

    async def terminate_topic(self, topic: str) -> Position | None:
        told = self._known(topic)
        self._perform(self._machine.terminate(topic, self._now()))
        return told.last_confirmed()

    async def delete_subscription(self, topic: str, subscription: str, *, force: bool = False) -> None:
        found = self._known(topic).topic.subscriptions.get(subscription)
        if found is not None and found.dispatcher.consumers and not force:
            raise AdminRefused(f"subscription {subscription} has connected consumers")
        self._perform(self._machine.delete_subscription(topic, subscription, self._now()))

    async def create_partitions(self, topic: str, partitions: int) -> None:
        known = self._partitions(topic)
        if known not in (0, partitions) or (not known and self._machine.statistics(topic) is not None):
            raise AdminRefused(f"the topic {topic} exists already")
        self._machine.set_partitions(topic, partitions)

    async def grow_partitions(self, topic: str, partitions: int) -> None:
        known = self._partitions(topic)
        if not known:
            raise AdminRefused(f"{topic} is no partitioned topic")
        if partitions < known:
            raise AdminRefused(f"{topic} has {known} partitions, which cannot become {partitions}")
        self._machine.set_partitions(topic, partitions)

    def _partitions(self, topic: str) -> int:
        return self._up().core.config.partitions.get(topic, 0)

    def _up(self) -> BrokerMachine:
        if self._machine.down:
            raise AdminUnreachable("the reference broker is down")
        return self._machine

    def _known(self, topic: str) -> Statistics:
        return _statistics(self._machine, topic)

    def _topics_of(self, namespace: str) -> list[str]:
        return [topic for topic in self._up().topics() if topic.startswith(_prefix(namespace))]


def _prefix(namespace: str) -> str:
    return f"persistent://{namespace}/"
