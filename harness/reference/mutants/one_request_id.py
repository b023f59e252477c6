"""The counters of a client, except that every request has the same number."""

from __future__ import annotations

from harness.reference.client.counters import Counters


class OneRequestId(Counters):
    """Ids of handles stay those of the client."""

    def __init__(self, counters: Counters) -> None:
        super().__init__()
        self.consumer_id = counters.consumer_id  # type: ignore[method-assign]  # the client's own counting goes on
        self.producer_id = counters.producer_id  # type: ignore[method-assign]

    def request_id(self) -> int:
        return 1_000_000
