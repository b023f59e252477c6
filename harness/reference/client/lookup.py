"""Who owns a topic, and whether it has partitions (clauses LOOKUP-01 to LOOKUP-12)."""

from __future__ import annotations

from collections.abc import Callable

from harness.reference.client.address import service_address
from harness.reference.client.connection import Connection
from harness.reference.client.counters import Counters
from harness.reference.client.failure import Failure, from_broker
from harness.reference.client.pool import ConnectionPool
from harness.reference.client.runtime import Runtime
from harness.wire.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)

OnFailure = Callable[[Failure], None]
OnOwner = Callable[[str, str], None]


class Lookup:
    """Questions that start at ``service``, the address the client was given."""

    def __init__(self, runtime: Runtime, pool: ConnectionPool, counters: Counters, service: str) -> None:
        self._runtime = runtime
        self._pool = pool
        self._counters = counters
        self._service = service

    def partitions(self, topic: str, on_count: Callable[[int], None], on_failure: OnFailure) -> None:
        """Number of partitions, 0 for a plain topic (clause LOOKUP-12)."""
        connection = self._pool.get(self._service, self._service)

        def ask() -> None:
            request_id = self._counters.request_id()
            question = CommandPartitionedTopicMetadata(topic=topic, request_id=request_id)
            command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA, partitionMetadata=question)
            connection.request(request_id, command, answered, on_failure)

        def answered(command: BaseCommand) -> None:
            answer = command.partitionMetadataResponse
            if answer.response == CommandPartitionedTopicMetadataResponse.Failed or answer.HasField("error"):
                self._failed(connection, answer.error, answer.message, on_failure)
            else:
                on_count(answer.partitions)

        connection.when_ready(ask, on_failure)

    def owner(self, topic: str, on_owner: OnOwner, on_failure: OnFailure) -> None:
        """Logical and physical address of the owner. The first hop is never authoritative (clause LOOKUP-01)."""
        self._hop(topic, self._service, False, 0, on_owner, on_failure)

    def _hop(
        self, topic: str, address: str, authoritative: bool, hops: int, on_owner: OnOwner, on_failure: OnFailure
    ) -> None:
        connection = self._pool.get(address, address)

        def ask() -> None:
            request_id = self._counters.request_id()
            question = CommandLookupTopic(topic=topic, request_id=request_id, authoritative=authoritative)
            command = BaseCommand(type=BaseCommand.LOOKUP, lookupTopic=question)
            connection.request(request_id, command, answered, on_failure)

        def answered(command: BaseCommand) -> None:
            answer = command.lookupTopicResponse
            if not answer.HasField("response") or answer.response == CommandLookupTopicResponse.Failed:
                self._failed(connection, answer.error, answer.message, on_failure)
                return
            try:
                broker = service_address(answer.brokerServiceUrl)
            except ValueError as error:
                # LOOKUP-05 and LOOKUP-06: without a usable plain URL this lookup fails, nothing else does.
                on_failure(Failure("other", f"unusable lookup answer: {error}"))
                return
            if answer.response == CommandLookupTopicResponse.Redirect:
                if hops >= self._runtime.config.max_redirects:
                    on_failure(Failure("other", f"more than {hops} redirects", final=True))
                else:
                    self._hop(topic, broker, answer.authoritative, hops + 1, on_owner, on_failure)
            elif answer.proxy_through_service_url:
                on_owner(broker, address)
            else:
                on_owner(broker, broker)

        connection.when_ready(ask, on_failure)

    @staticmethod
    def _failed(connection: Connection, error: int, message: str, on_failure: OnFailure) -> None:
        failure = from_broker(error, message)
        on_failure(failure)
        if error == ServerError.ServiceNotReady:
            connection.close(failure)  # LOOKUP-11
