"""Consumer sessions as one tap saw them: from a SUBSCRIBE to whatever ended it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.history.event import Event, Layer

SINGLE_ACTIVE = frozenset({"exclusive", "failover"})
_READ = frozenset({"SUBSCRIBE", "FLOW", "MESSAGE", "ERROR", "CLOSE_CONSUMER", "UNSUBSCRIBE", "CONNECTION_CLOSED"})


@dataclass(eq=False)
class Session:
    """One SUBSCRIBE on one connection. ``number`` counts the SUBSCRIBEs of that consumer id on that connection.

    ``credit``: permits granted and not used, as this tap saw it. ``lost``: it did not end by the client's own close;
    ``expelled``: the broker closed it. ``fresh``: no frame of an earlier session can follow its SUBSCRIBE at this tap,
    because there was none on the connection or the broker's CLOSE_CONSUMER came after the last of them.
    """

    connection: str
    consumer_id: int
    subscription: str
    consumer: str
    kind: str
    durable: bool
    earliest: bool
    opened: int
    opened_ns: int
    request_id: int | None
    number: int
    ended: int | None = None
    ended_ns: int = 0
    lost: bool = False
    expelled: bool = False
    fresh: bool = True
    credit: int = 0
    first_flow: int | None = None

    @property
    def live(self) -> bool:
        return self.ended is None


def session_address(event: Event) -> tuple[str, int] | None:
    """(connection, raw consumer id) of a frame, or None when the frame names no consumer."""
    number = event.extra.get("consumer_id")
    if event.connection is None or not isinstance(number, int):
        return None
    return (event.connection, number)


class Sessions:
    """The sessions of one topic, fed with the frames of one tap (``layer``) and the broadcast connection ends.

    A CLOSE_CONSUMER ends a session when it is recorded, in either direction: frames of the old session may still be
    under way to the client, so nothing is judged on an ended session.
    """

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.current: dict[tuple[str, int], Session] = {}
        self.all: list[Session] = []

    def observe(self, event: Event) -> Session | None:
        """Take an event; answer the session it opened or ended, if it did one of the two to exactly one session."""
        if event.kind not in _READ or event.layer != self.layer:
            return None
        if event.kind == "CONNECTION_CLOSED":
            for one in self.all:
                if one.live and one.connection == event.connection:
                    one.ended, one.ended_ns, one.lost = event.index, event.time_ns, True
            return None
        address = session_address(event)
        if address is None:
            return None
        if event.kind == "SUBSCRIBE":
            return self._open(address, event)
        session: Session | None = self.current.get(address)
        if session is None or not session.live:
            return None
        if event.kind == "FLOW":
            session.credit += event.permits or 0
            session.first_flow = event.index if session.first_flow is None else session.first_flow
        elif event.kind == "MESSAGE":
            session.credit -= event.num_messages or 1
        refused = event.kind == "ERROR" and event.request_id is not None and event.request_id == session.request_id
        if event.kind in ("CLOSE_CONSUMER", "UNSUBSCRIBE") or refused:
            session.ended, session.ended_ns = event.index, event.time_ns
            session.lost = event.extra.get("direction") == "to_client"
            session.expelled = session.lost and event.kind == "CLOSE_CONSUMER"
            return session
        return None

    def of(self, event: Event) -> Session | None:
        """The session a frame of this tap belongs to, live or ended."""
        if event.layer != self.layer:
            return None
        address = session_address(event)
        return self.current.get(address) if address is not None else None

    def live(self, subscription: str) -> Iterator[Session]:
        """The live sessions of a subscription."""
        return (session for session in self.all if session.live and session.subscription == subscription)

    def _open(self, address: tuple[str, int], event: Event) -> Session:
        before = self.current.get(address)
        if before is not None and before.live:
            before.ended, before.ended_ns, before.lost = event.index, event.time_ns, True
        session = Session(
            connection=address[0],
            consumer_id=address[1],
            subscription=event.subscription or "",
            consumer=event.consumer or "",
            kind=str(event.extra.get("type", "")),
            durable=event.extra.get("durable") is not False,
            earliest=event.extra.get("initial_position") == "earliest",
            opened=event.index,
            opened_ns=event.time_ns,
            request_id=event.request_id,
            number=before.number + 1 if before is not None else 0,
            fresh=before is None or before.expelled,
        )
        self.current[address] = session
        self.all.append(session)
        return session
