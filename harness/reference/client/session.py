"""One ``client`` handle: its own lookups, connections, producers and consumers (clauses CLIENT-01 to CLIENT-05)."""

from __future__ import annotations

from collections.abc import Callable

from harness.reference.client.consumer import Consumer
from harness.reference.client.consumer_options import ConsumerOptions
from harness.reference.client.counters import Counters
from harness.reference.client.failure import CLOSED, DISCONNECTED, Failure
from harness.reference.client.lookup import Lookup
from harness.reference.client.pool import ConnectionPool
from harness.reference.client.producer import Producer, ProducerOptions
from harness.reference.client.runtime import Runtime

OnDone = Callable[[], None]
OnFailed = Callable[[Failure], None]


class Session:
    """``service`` is the ``host:port`` every lookup starts at."""

    def __init__(self, runtime: Runtime, service: str) -> None:
        self._runtime = runtime
        self.pool = ConnectionPool(runtime)
        self._counters = Counters()
        self._lookup = Lookup(runtime, self.pool, self._counters, service)
        self._children: list[Producer | Consumer] = []
        self.closing = False
        self.closed = False

    def produce(self, options: ProducerOptions, on_created: Callable[[int], None], on_failed: OnFailed) -> Producer:
        """A producer; exactly one of the callbacks says how its creation ended."""
        producer = self._runtime.parts.producer(
            self._runtime, self.pool, self._lookup, self._counters, options, on_created, on_failed
        )
        self._children.append(producer)
        return producer

    def consume(self, options: ConsumerOptions, on_created: OnDone, on_failed: OnFailed) -> Consumer:
        """A consumer; exactly one of the callbacks says how its creation ended."""
        consumer = self._runtime.parts.consumer(
            self._runtime, self.pool, self._lookup, self._counters, options, on_created, on_failed
        )
        self._children.append(consumer)
        return consumer

    def close(self, on_done: OnDone, on_failed: OnFailed) -> None:
        """Children first, all of them, then the connections (CLIENT-02). The first child's trouble is reported, and
        the connections are closed all the same (CLIENT-03). A second close fails.
        """
        if self.closing:
            on_failed(CLOSED)
            return
        self.closing = True
        remaining = len(self._children)
        trouble: list[Failure] = []

        def child_closed(failure: Failure | None) -> None:
            nonlocal remaining
            remaining -= 1
            if failure is not None:
                trouble.append(failure)
            if remaining <= 0:
                finish()

        def finish() -> None:
            self.closed = True
            self.pool.close_all(DISCONNECTED)
            if trouble:
                on_failed(trouble[0])
            else:
                on_done()

        if not self._children:
            finish()
        for child in list(self._children):
            child.close(lambda: child_closed(None), child_closed)
