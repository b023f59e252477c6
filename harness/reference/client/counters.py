"""Numbers that are unique for the life of one client handle, on every connection (clause CLIENT-05)."""

from __future__ import annotations


class Counters:
    """Three independent counters from 0."""

    def __init__(self) -> None:
        self._producers = self._consumers = self._requests = -1

    def producer_id(self) -> int:
        """Number of a new producer."""
        self._producers += 1
        return self._producers

    def consumer_id(self) -> int:
        """Number of a new consumer."""
        self._consumers += 1
        return self._consumers

    def request_id(self) -> int:
        """Number of a new request."""
        self._requests += 1
        return self._requests
