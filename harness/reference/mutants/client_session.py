"""Clients that break a promise about when a consumer is subscribed, and what it may send then."""

from __future__ import annotations

from harness.reference.client.connection import Connection
from harness.reference.client.consumer import Consumer, OnDone, OnFailed
from harness.reference.client.consumer_options import ConsumerOptions
from harness.reference.client.counters import Counters
from harness.reference.client.failure import Failure
from harness.reference.client.lookup import Lookup
from harness.reference.client.pool import ConnectionPool
from harness.reference.client.runtime import Runtime
from harness.reference.mutants.mutant import Mutant
from harness.reference.mutants.one_request_id import OneRequestId
from harness.wire.pulsar_pb2 import BaseCommand, CommandFlow


class GrantsBeforeSubscribed(Consumer):
    def register(self, connection: Connection, timeout: int) -> None:
        super().register(connection, timeout)
        flow = CommandFlow(consumer_id=self.id, messagePermits=1)
        connection.send(BaseCommand(type=BaseCommand.FLOW, flow=flow))


class NumbersRequestsAlike(Consumer):
    def __init__(
        self,
        runtime: Runtime,
        pool: ConnectionPool,
        lookup: Lookup,
        counters: Counters,
        options: ConsumerOptions,
        on_created: OnDone,
        on_creation_failed: OnFailed,
    ) -> None:
        super().__init__(runtime, pool, lookup, OneRequestId(counters), options, on_created, on_creation_failed)


class StaysAwayWhenClosed(Consumer):
    def _reattach(self, failure: Failure) -> None:
        self._link.stop()
        self._disconnect()


class StaysAwayWhenLost(Consumer):
    def connection_lost(self, failure: Failure) -> None:
        self._link.stop()
        self._disconnect()


class KeepsWhatItHadBeforeTheSeek(Consumer):
    def _sought(self) -> None:
        seek, self._seek = self._seek, None
        if seek is not None:
            seek.on_done()


class GrantsAfterClose(Consumer):
    def close(self, on_done: OnDone, on_failed: OnFailed) -> None:
        connection = self._connection
        super().close(on_done, on_failed)
        if connection is not None:
            flow = CommandFlow(consumer_id=self.id, messagePermits=1)
            command = BaseCommand(type=BaseCommand.FLOW, flow=flow)
            self._runtime.after(1_200_000_000, lambda: connection.send(command))


MUTANTS = (
    Mutant(
        name="client-grants-before-subscribed",
        family="acks",
        side="client",
        breaks="A consumer grants permits before its subscription is confirmed.",
        expected=("ACK-27",),
        shown_by="acks-after-redelivery-request",
        parts={"consumer": GrantsBeforeSubscribed},
    ),
    Mutant(
        name="client-numbers-subscriptions-alike",
        family="acks",
        side="client",
        breaks="All requests of consumers have the same request id.",
        expected=("CONS-01",),
        shown_by="acks-after-redelivery-request",
        parts={"consumer": NumbersRequestsAlike},
    ),
    Mutant(
        name="client-stays-away-when-closed",
        family="acks",
        side="client",
        breaks="A consumer that the broker closed does not come back.",
        expected=("CONS-16",),
        shown_by="acks-seek-by-time",
        parts={"consumer": StaysAwayWhenClosed},
    ),
    Mutant(
        name="client-stays-away-when-lost",
        family="acks",
        side="client",
        breaks="A consumer that lost its connection does not come back.",
        expected=("CONS-07",),
        shown_by="acks-failover-lost-link",
        parts={"consumer": StaysAwayWhenLost},
    ),
    Mutant(
        name="client-keeps-what-it-had-before-the-seek",
        family="acks",
        side="client",
        breaks="Messages from before a seek are received after it.",
        expected=("SEEK-06",),
        shown_by="acks-seek-to-message",
        parts={"consumer": KeepsWhatItHadBeforeTheSeek},
    ),
    Mutant(
        name="client-grants-after-close",
        family="acks",
        side="client",
        breaks="A consumer that was closed sends a frame later.",
        expected=("CCLOSE-08",),
        shown_by="acks-failover-takeover",
        parts={"consumer": GrantsAfterClose},
    ),
)
