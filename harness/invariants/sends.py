"""The sends of one producer as the application saw them, and their sequence ids as the wire showed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.history.event import Event
from harness.invariants.sequence import members, position

Outcome = Literal["open", "OK", "DUP", "FAIL", "UNKNOWN"]


@dataclass(slots=True)
class Send:
    """One send operation. OK: acknowledged; DUP: acknowledged as a duplicate; FAIL: certainly not sent; UNKNOWN."""

    op: int
    actor: str | None
    invoked: int
    invoked_ns: int
    digest: str | None
    explicit: int | None
    outcome: Outcome = "open"
    completed: int = -1
    completed_ns: int = 0
    at: tuple[int, int] | None = None
    batch_index: int | None = None
    partition: int | None = None
    error: str | None = None


class SendBook:
    """Sends of one (topic, producer) by operation and by payload."""

    def __init__(self) -> None:
        self.sends: dict[int, Send] = {}
        self._by_digest: dict[str, list[Send]] = {}
        self._by_explicit: dict[int, list[Send]] = {}
        self._learned: dict[str, int] = {}
        self.renumbered = False

    def created(self, event: Event) -> None:
        """Read an API ``producer`` event: a successor told where to start counting may repeat ids on purpose."""
        options = event.extra.get("options") or {}
        if event.phase == "invoke" and self.sends and options.get("initial_sequence_id") is not None:
            self.renumbered = True

    def take(self, event: Event) -> Send | None:
        """Read an API ``send`` event; the send it belongs to, None when its invocation was not recorded."""
        if event.op is None:
            return None
        if event.phase == "invoke":
            send = Send(event.op, event.actor, event.index, event.time_ns, event.payload_digest, event.sequence_id)
            self.sends[event.op] = send
            if event.sequence_id is not None:
                self._by_explicit.setdefault(event.sequence_id, []).append(send)
            if event.payload_digest is not None:
                self._by_digest.setdefault(event.payload_digest, []).append(send)
            return send
        found = self.sends.get(event.op)
        if found is None or found.outcome != "open":
            return found
        found.completed, found.completed_ns, found.error = event.index, event.time_ns, event.error
        found.at, found.batch_index, found.partition = position(event), event.batch_index, event.partition
        if event.phase == "ok":
            found.outcome = "DUP" if event.extra.get("duplicate") else "OK"
        else:
            found.outcome = "FAIL" if event.phase == "fail" else "UNKNOWN"
        return found

    def learn(self, frame: Event) -> None:
        """Remember which sequence ids a client's SEND gave to its messages; the first transmission counts."""
        for member in members(frame):
            if member.digest is not None and member.sequence_id is not None:
                self._learned.setdefault(member.digest, member.sequence_id)

    @property
    def wired(self) -> bool:
        """Whether any frame has shown sequence ids yet."""
        return bool(self._learned)

    def of(self, digest: str | None) -> list[Send]:
        """The sends of this payload: one in a sound history, several when the application repeated itself."""
        return self._by_digest.get(digest, []) if digest is not None else []

    def only(self, digest: str | None) -> Send | None:
        """The send of this payload when exactly one is known."""
        found = self.of(digest)
        return found[0] if len(found) == 1 else None

    def repeated(self, send: Send) -> bool:
        """Whether the same payload was sent more than once: then a digest identifies nothing."""
        return len(self.of(send.digest)) > 1

    def contested(self, send: Send) -> bool:
        """Whether another send had this explicit id while this one was open.

        The client itself cannot tell their answers apart. A send that ended UNKNOWN may be pending in its client for
        longer than its call.
        """
        if send.explicit is None:
            return False
        return any(
            other is not send and _overlap(send, other) and _overlap(other, send)
            for other in self._by_explicit.get(send.explicit, [])
        )

    def sequence_of(self, send: Send) -> int | None:
        """The sequence id of a send: the application's own, else the one seen on the wire."""
        if send.explicit is not None:
            return send.explicit
        return self._learned.get(send.digest) if send.digest is not None else None

    @property
    def explicit(self) -> bool:
        """Whether the application chose any sequence id itself."""
        return any(send.explicit is not None for send in self.sends.values())


class SendBooks:
    """The sends of every producer of one topic."""

    def __init__(self) -> None:
        self._books: dict[str | None, SendBook] = {}

    def take(self, event: Event) -> Send | None:
        """Read an API ``send`` event."""
        return self._books.setdefault(event.producer, SendBook()).take(event)

    def contested(self, event: Event) -> bool:
        """Whether the send of this API event shared its id with another while it was open."""
        book = self._books.get(event.producer)
        send = book.sends.get(event.op) if book is not None and event.op is not None else None
        return book is not None and send is not None and book.contested(send)


def _overlap(first: Send, second: Send) -> bool:
    """Whether ``second`` began before ``first`` was surely over."""
    return first.outcome in ("open", "UNKNOWN") or second.invoked < first.completed
