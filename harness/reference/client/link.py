"""Keeps one producer or consumer attached to its topic's owner: look up, connect, register, and again after a loss."""

from __future__ import annotations

from typing import Literal, Protocol

from harness.reference.client.backoff import Backoff
from harness.reference.client.connection import Connection
from harness.reference.client.failure import TIMED_OUT, Failure
from harness.reference.client.lookup import Lookup
from harness.reference.client.pool import ConnectionPool
from harness.reference.client.runtime import Runtime
from harness.reference.client.timers import Timer

LinkState = Literal["idle", "resolving", "registering", "attached", "stopped"]


class Registrant(Protocol):
    """What a link keeps attached."""

    def register(self, connection: Connection, timeout: int) -> None:
        """Send PRODUCER or SUBSCRIBE; end in ``link.registered()`` or ``link.failed(failure)``."""

    def unregistered(self, failure: Failure) -> None:
        """It was attached and is no more; the link goes on by itself."""

    def creation_failed(self, failure: Failure) -> None:
        """It never got attached and the link has given up."""


class Link:
    """One reconnect at a time (clause BACK-03).

    Before the first success only retriable failures are retried, inside the operation timeout (PROD-10, PROD-11,
    CONS-05); afterwards every failure is, for ever (PROD-12, CONS-07).
    """

    def __init__(
        self, runtime: Runtime, pool: ConnectionPool, lookup: Lookup, topic: str, owner: Registrant, backoff: Backoff
    ) -> None:
        self._runtime = runtime
        self._pool = pool
        self._lookup = lookup
        self._topic = topic
        self._owner = owner
        self._backoff = backoff
        self._deadline = runtime.now + runtime.config.operation_timeout
        self._attempt = 0
        self._retry: Timer | None = None
        self._partitions_known = False
        self.state: LinkState = "idle"
        self.connection: Connection | None = None
        self.created = False
        runtime.timers.at(self._deadline, self._budget_spent)

    @property
    def attached(self) -> bool:
        """Registered on a live connection."""
        return self.state == "attached"

    def start(self) -> None:
        """Begin an attempt now."""
        if self.state != "idle":
            return
        self._retry = None
        self.state = "resolving"
        self._attempt += 1
        attempt = self._attempt
        if self._partitions_known:
            self._find_owner(attempt)
        else:
            self._lookup.partitions(
                self._topic,
                lambda count: self._partitions(attempt, count),
                lambda failure: self._attempt_failed(attempt, failure),
            )

    def registered(self) -> None:
        """The owner is attached."""
        if self.state != "registering":
            return
        self.state = "attached"
        self.created = True
        self._backoff.succeeded()

    def failed(self, failure: Failure) -> None:
        """The registration under way did not succeed."""
        if self.state == "registering":
            self._release()
            self._again(failure)

    def lost(self, failure: Failure) -> None:
        """The attachment is gone, or must be given up: reattach (clauses CONN-11, PROD-16, CONS-16, ERR-04)."""
        if self.state == "attached":
            self._release()
            self.state = "idle"
            self._owner.unregistered(failure)
            if self.state == "idle":
                self._again(failure)
        elif self.state == "registering":
            self.failed(failure)

    def stop(self) -> None:
        """No further attempt; what is attached stays where it is until the owner detaches it."""
        self.state = "stopped"
        self._attempt += 1
        if self._retry is not None:
            self._retry.cancel()

    def _release(self) -> None:
        self.connection = None

    def _partitions(self, attempt: int, count: int) -> None:
        if attempt != self._attempt:
            return
        if count > 0:
            message = f"{self._topic} has {count} partitions; the reference client takes plain topics only"
            self._attempt_failed(attempt, Failure("unsupported", message, final=True))
            return
        self._partitions_known = True
        self._find_owner(attempt)

    def _find_owner(self, attempt: int) -> None:
        # LOOKUP-07: also when reconnecting, never from memory.
        self._lookup.owner(
            self._topic,
            lambda logical, physical: self._connect(attempt, logical, physical),
            lambda failure: self._attempt_failed(attempt, failure),
        )

    def _connect(self, attempt: int, logical: str, physical: str) -> None:
        if attempt != self._attempt:
            return
        connection = self._pool.get(logical, physical)
        connection.when_ready(
            lambda: self._register(attempt, connection), lambda failure: self._attempt_failed(attempt, failure)
        )

    def _register(self, attempt: int, connection: Connection) -> None:
        if attempt != self._attempt:
            return
        self.state = "registering"
        self.connection = connection
        timeout = self._runtime.config.operation_timeout
        if not self.created:
            timeout = min(timeout, max(self._deadline - self._runtime.now, 1))
        self._owner.register(connection, timeout)

    def _budget_spent(self) -> None:
        if not self.created and self.state in ("idle", "resolving"):
            if self._retry is not None:
                self._retry.cancel()
            self._again(TIMED_OUT)

    def _attempt_failed(self, attempt: int, failure: Failure) -> None:
        if attempt == self._attempt and self.state == "resolving":
            self._again(failure)

    def _again(self, failure: Failure) -> None:
        self.state = "idle"
        self._attempt += 1
        delay = self._backoff.next_delay(self._runtime.now)
        if not self.created:
            left = self._deadline - self._runtime.now
            if left <= 0 or not failure.retriable:
                self.state = "stopped"
                self._owner.creation_failed(failure)
                return
            delay = min(delay, left)
        self._retry = self._runtime.after(delay, self.start)
