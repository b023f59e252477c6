"""Which classes a broker is made of. A mutant is the same registry with one class replaced."""

from __future__ import annotations

from dataclasses import dataclass

from harness.reference.broker.connection import Connection
from harness.reference.broker.consume import ConsumeService
from harness.reference.broker.consumer import Consumer
from harness.reference.broker.cursor import Cursor
from harness.reference.broker.dedup import DedupMarks
from harness.reference.broker.key_shared import KeySharedDispatcher
from harness.reference.broker.ledger import LedgerChain
from harness.reference.broker.lookup import LookupService
from harness.reference.broker.permits import Permits
from harness.reference.broker.producer import Producer
from harness.reference.broker.publish import PublishService
from harness.reference.broker.redelivery_counts import RedeliveryCounts
from harness.reference.broker.sessions import Sessions
from harness.reference.broker.shared import SharedDispatcher
from harness.reference.broker.single_active import SingleActiveDispatcher
from harness.reference.broker.statistics import Statistics
from harness.reference.broker.subscription import Subscription
from harness.reference.broker.topic import Topic


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """One class for each part; subclasses fit as well."""

    connection: type[Connection] = Connection
    sessions: type[Sessions] = Sessions
    lookup: type[LookupService] = LookupService
    publish: type[PublishService] = PublishService
    consume: type[ConsumeService] = ConsumeService
    topic: type[Topic] = Topic
    producer: type[Producer] = Producer
    ledgers: type[LedgerChain] = LedgerChain
    dedup: type[DedupMarks] = DedupMarks
    subscription: type[Subscription] = Subscription
    consumer: type[Consumer] = Consumer
    cursor: type[Cursor] = Cursor
    permits: type[Permits] = Permits
    redelivery_counts: type[RedeliveryCounts] = RedeliveryCounts
    single_active: type[SingleActiveDispatcher] = SingleActiveDispatcher
    shared: type[SharedDispatcher] = SharedDispatcher
    key_shared: type[KeySharedDispatcher] = KeySharedDispatcher
    statistics: type[Statistics] = Statistics
