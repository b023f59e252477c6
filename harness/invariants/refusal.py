"""Requests a broker must answer, and not by dropping the connection: DISPATCH-01 and SEEK-03, read at tap A."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.history.event import Event
from harness.invariants.acknowledged import Position, position_of
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.faults import PROCESS, RELOADS

AT_ONCE_NS = 1_000_000_000
"""A second: a connection that ends later than this after a request did not end because of it."""


@dataclass
class Attached:
    """A consumer id of the connection. ``confirmed``: the broker said SUCCESS to its SUBSCRIBE."""

    topic: str
    subscription: str
    kind: str
    request: int | None
    confirmed: int | None = None


class RefusalState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.attached: dict[int, Attached] = {}
        self.shown: set[tuple[str, Position]] = set()
        self.asked: tuple[str, Event, tuple[int, ...]] | None = None
        self.doubtful = False
        self.crashed = False
        self.dropped: list[Anomaly] = []


class Refusal(Invariant[RefusalState]):
    """A second exclusive SUBSCRIBE and a legal SEEK get an answer. Keyed by broker-side connection.

    Only where the request was the last frame of the client before the broker closed the connection, and no earlier
    frame named a consumer that the broker did not know: then nothing else can have been the cause.
    """

    name = "refusal"
    family = "delivery"
    clauses = ("DISPATCH-01", "SEEK-03")

    def key(self, event: Event) -> Key | None:
        return (event.connection,) if event.layer == "tap.broker" and event.connection else None

    def broadcast(self, event: Event) -> bool:
        return event.layer == "fault" and event.kind in RELOADS | PROCESS

    def start(self, key: Key) -> RefusalState:
        return RefusalState(key)

    def step(self, state: RefusalState, event: Event) -> Iterable[Anomaly]:
        if event.layer == "fault":
            state.crashed = True
        elif event.kind == "CONNECTION_CLOSED":
            self._closed(state, event)
        elif event.kind == "WIRE_ERROR":
            state.doubtful = True
        elif event.extra.get("direction") == "to_broker":
            self._from_client(state, event)
        else:
            self._from_broker(state, event)
        return ()

    def _from_client(self, state: RefusalState, event: Event) -> None:
        number = event.extra.get("consumer_id")
        if event.kind in ("PING", "PONG"):
            return
        state.asked = None
        if not isinstance(number, int):
            return
        known = state.attached.get(number)
        if event.kind == "SUBSCRIBE":
            held = self._held(state, event)
            if held is not None:
                state.asked = ("DISPATCH-01", event, (held,))
            state.attached[number] = Attached(
                event.topic or "", event.subscription or "", str(event.extra.get("type", "")), event.request_id
            )
            return
        state.doubtful |= known is None or known.confirmed is None
        if known is not None and known.confirmed is not None and event.kind == "SEEK" and self._legal(state, event):
            state.asked = ("SEEK-03", event, (known.confirmed,))
        elif event.kind in ("CLOSE_CONSUMER", "UNSUBSCRIBE"):
            state.attached.pop(number, None)

    @staticmethod
    def _held(state: RefusalState, event: Event) -> int | None:
        """Where this connection's exclusive consumer of the same subscription was confirmed, if there is one."""
        for number, other in state.attached.items():
            if (
                number != event.extra.get("consumer_id")
                and other.confirmed is not None
                and other.kind == event.extra.get("type") == "exclusive"
                and (other.topic, other.subscription) == (event.topic, event.subscription)
            ):
                return other.confirmed
        return None

    @staticmethod
    def _legal(state: RefusalState, event: Event) -> bool:
        """Whether a SEEK asks for an end of the topic or for an entry that this connection has shown."""
        position = position_of(event)
        if position is None:
            return event.extra.get("position") in ("earliest", "latest")
        return (event.topic or "", position) in state.shown

    @staticmethod
    def _from_broker(state: RefusalState, event: Event) -> None:
        position = position_of(event)
        number = event.extra.get("consumer_id")
        if event.kind == "MESSAGE" and position is not None:
            state.shown.add((event.topic or "", position))
        elif event.kind == "CLOSE_CONSUMER" and isinstance(number, int):
            state.attached.pop(number, None)
        elif event.kind == "SUCCESS":
            for other in state.attached.values():
                if other.confirmed is None and other.request is not None and other.request == event.request_id:
                    other.confirmed = event.index
        if state.asked is not None and event.kind in ("SUCCESS", "ERROR"):
            clause, request, _ = state.asked
            if request.request_id == event.request_id:
                expected = event.kind == "SUCCESS" if clause == "SEEK-03" else event.error == "ConsumerBusy"
                state.judged[clause] += expected
                state.asked = None
        if event.kind == "ERROR":
            refused = [known for known, other in state.attached.items() if other.request == event.request_id]
            for known in refused:
                del state.attached[known]

    @staticmethod
    def _closed(state: RefusalState, event: Event) -> None:
        if state.asked is None or state.doubtful or event.extra.get("by") != "broker":
            return
        clause, request, because = state.asked
        if event.time_ns - request.time_ns > AT_ONCE_NS:
            return
        state.dropped.append(
            Anomaly(
                name="connection-dropped-instead-of-busy" if clause == "DISPATCH-01" else "seek-dropped-the-connection",
                clause=clause,
                key=state.key,
                witness=(*because, request.index, event.index),
                message="a second exclusive consumer was answered by the end of the connection, not by ConsumerBusy"
                if clause == "DISPATCH-01"
                else "a seek to a position of the topic was answered by the end of the connection",
            )
        )

    def finish(self, state: RefusalState) -> Iterator[Anomaly]:
        for found in state.dropped:
            if state.crashed:
                state.undecided.append(
                    Undecided(clause=found.clause, key=state.key, reason="the broker went", witness=found.witness)
                )
            else:
                state.judged[found.clause] += 1
                yield found
