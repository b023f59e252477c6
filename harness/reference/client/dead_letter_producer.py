"""The producer behind a dead letter topic: made when first needed, closed with its consumer (CDLQ-04, CDLQ-12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.reference.client.counters import Counters
from harness.reference.client.failure import Failure
from harness.reference.client.lookup import Lookup
from harness.reference.client.outgoing import Outgoing
from harness.reference.client.pool import ConnectionPool
from harness.reference.client.producer import Producer, ProducerOptions
from harness.reference.client.runtime import Runtime


class DeadLetterProducer:
    """Publishes copies one by one, in pieces when they are large.

    A copy that fails is reported; the next one tries again from scratch.
    """

    def __init__(
        self, runtime: Runtime, pool: ConnectionPool, lookup: Lookup, counters: Counters, topic: str, name: str
    ) -> None:
        self._runtime = runtime
        self._pool = pool
        self._lookup = lookup
        self._counters = counters
        self._options = ProducerOptions(topic=topic, name=name, chunking=True, max_pending=0)
        self._producer: Producer | None = None
        self._waiting: list[Outgoing] = []

    def publish(
        self,
        payload: bytes,
        key: str | None,
        properties: dict[str, str],
        on_sent: Callable[[dict[str, Any]], None],
        on_failed: Callable[[Failure], None],
    ) -> None:
        """Exactly one of the two callbacks, once."""
        message = Outgoing(0, payload, on_sent, on_failed, key=key, properties=properties)
        if self._producer is not None and self._producer.state == "open":
            self._producer.send(message)
            return
        self._waiting.append(message)
        if self._producer is None or self._producer.state != "creating":
            self._producer = self._runtime.parts.producer(
                self._runtime, self._pool, self._lookup, self._counters, self._options, self._created, self._failed
            )

    def close(self, on_done: Callable[[], None], on_failed: Callable[[Failure], None]) -> None:
        """Close what was made."""
        if self._producer is None:
            on_done()
        else:
            self._producer.close(on_done, on_failed)

    def _created(self, _: int) -> None:
        waiting, self._waiting = self._waiting, []
        assert self._producer is not None
        for message in waiting:
            self._producer.send(message)

    def _failed(self, failure: Failure) -> None:
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            message.on_failed(failure)
