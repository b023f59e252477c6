"""One connection: the handshake, requests and their answers, keep-alive, bytes that are no frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.history.event import Event
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Severity, Undecided
from harness.invariants.faults import RESTORING
from harness.invariants.producer_fold import SETTLE_NS

_LOOKUPS = {"LOOKUP": "LOOKUP_RESPONSE", "PARTITIONED_METADATA": "PARTITIONED_METADATA_RESPONSE"}
_LOOKUP_ANSWERS = {answer: request for request, answer in _LOOKUPS.items()}


class ConnectionState(FoldState):
    """What one tap saw of one connection."""

    __slots__ = (
        "asked_names", "closed", "closing", "connected", "drained", "ended_ns", "expelled", "frames", "limit_changed",
        "lookups", "max_message_size", "opened", "pings", "producers", "requests", "restored_ns",
    )  # fmt: skip

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.opened: int | None = None
        self.connected = False
        self.closed = False
        self.drained = False
        self.ended_ns = 0
        self.restored_ns = 0
        self.limit_changed = False
        self.expelled: set[int | None] = set()
        self.frames = 0
        self.max_message_size: int | None = None
        self.lookups: dict[tuple[str, int], Event] = {}
        self.closing: dict[int, Event] = {}
        self.requests: dict[tuple[str, int], int] = {}
        self.asked_names: dict[int, Event] = {}
        self.producers: dict[int, tuple[str | None, str | None]] = {}
        self.pings: list[Event] = []

    def anomaly(
        self, clause: str, name: str, message: str, *witness: int, severity: Severity = "conformance"
    ) -> Anomaly:
        self.judged[clause] += 1
        return Anomaly(
            name=name, clause=clause, key=self.key, message=message, witness=tuple(sorted(set(witness))),
            severity=severity,
        )  # fmt: skip


class Connection(Invariant[ConnectionState]):
    """The rules of one connection. What the client must do is read next to it, what the broker must do next to that."""

    name = "connection-rules"
    family = "receipts"
    clauses = (
        "CONN-05", "CONN-06", "LOOKUP-14", "CLIENT-05", "META-01", "KEEP-02", "SEND-05", "PROD-03", "PROD-04",
        "PCLOSE-05",
    )  # fmt: skip

    def key(self, event: Event) -> Key | None:
        if event.connection is None or event.layer not in ("tap.client", "tap.broker"):
            return None
        return event.layer, event.connection

    def broadcast(self, event: Event) -> bool:
        return event.layer == "fault" and (event.kind in RESTORING or event.kind in ("quiescent", "max_message_size"))

    def start(self, key: Key) -> ConnectionState:
        return ConnectionState(key)

    def step(self, state: ConnectionState, event: Event) -> Iterable[Anomaly]:
        if event.layer == "fault":
            if event.kind == "quiescent":
                state.drained = bool(event.extra.get("drained"))
                state.ended_ns = event.time_ns
            elif event.kind == "max_message_size":
                state.limit_changed = True
            else:
                state.restored_ns = event.time_ns
            return ()
        if event.kind == "CONNECTION_CLOSED":
            state.closed = True
            return ()
        if event.kind == "CONNECTION_OPEN":
            state.opened = event.index
            return ()
        to_broker = event.extra.get("direction") == "to_broker"
        beside_client = state.key[0] == "tap.client"
        if event.kind == "WIRE_ERROR":
            if to_broker == beside_client:
                who = "client" if beside_client else "broker"
                return [
                    state.anomaly(
                        "META-01", "bytes-that-are-no-frame", f"the {who} sent bytes that are no frame: {event.error}",
                        event.index, severity="safety",
                    )
                ]  # fmt: skip
            return ()
        state.frames += to_broker == beside_client
        return list(self._client_rules(state, event, to_broker) if beside_client else self._broker_rules(state, event))

    def _client_rules(self, state: ConnectionState, event: Event, to_broker: bool) -> Iterator[Anomaly]:
        if event.kind == "CONNECTED":
            state.connected = True
            state.max_message_size = event.extra.get("max_message_size")
        if not to_broker:
            if event.kind == "PING":
                state.pings.append(event)
            return
        yield from self._handshake(state, event)
        if event.kind == "PONG":
            if state.pings:
                state.pings.pop(0)
                state.judged["KEEP-02"] += 1
        elif event.kind == "SEND":
            size = event.extra.get("stored_size")
            limit = state.max_message_size
            if size is not None and limit:
                if size > limit and state.limit_changed:
                    state.undecided.append(
                        Undecided(
                            clause="SEND-05", key=state.key, witness=(event.index,),
                            reason="the limit was lowered; the message may have been accepted under the former one",
                        )
                    )  # fmt: skip
                elif size > limit:
                    yield state.anomaly(
                        "SEND-05", "message-over-the-limit", f"a SEND of {size} bytes; the broker allows {limit}",
                        event.index,
                    )  # fmt: skip
                elif size * 2 >= limit:
                    state.judged["SEND-05"] += 1
        elif event.kind == "PRODUCER":
            yield from self._registration(state, event)
        if event.request_id is not None and event.kind != "ACK":
            yield from self._fresh_request(state, event)

    def _handshake(self, state: ConnectionState, event: Event) -> Iterator[Anomaly]:
        first = state.frames == 1
        if event.kind == "CONNECT":
            if not first:
                yield state.anomaly("CONN-05", "connect-twice", "CONNECT is not the first frame", event.index)
            if not event.extra.get("client_version") or event.extra.get("protocol_version") is None:
                if "client_version" in event.extra or "protocol_version" in event.extra:
                    yield state.anomaly("CONN-06", "connect-without-versions", "CONNECT names no version", event.index)
            else:
                state.judged["CONN-06"] += 1
        elif state.opened is not None and not state.connected and event.kind != "AUTH_RESPONSE":
            yield state.anomaly(
                "CONN-05", "overtook-the-handshake", f"{event.kind} was sent before CONNECTED arrived",
                state.opened, event.index,
            )  # fmt: skip
        elif state.frames == 2:
            state.judged["CONN-05"] += 1

    def _registration(self, state: ConnectionState, event: Event) -> Iterator[Anomaly]:
        number = event.extra.get("producer_id")
        if event.topic is None or event.request_id is None or number is None:
            yield state.anomaly(
                "PROD-03", "incomplete-registration", "PRODUCER lacks topic, producer id or request id", event.index
            )
            return
        state.judged["PROD-03"] += 1
        known = state.producers.get(number)
        # One that registered without a name comes again, after an unload, with the one the broker gave it.
        nameless = known is not None and known[1] is None and known[0] == event.topic
        if known is not None and known != (event.topic, event.producer) and not nameless:
            yield state.anomaly(
                "CLIENT-05", "producer-id-reused", f"producer id {number} stands for two producers", event.index
            )
        state.producers[number] = (event.topic, event.producer)

    def _fresh_request(self, state: ConnectionState, event: Event) -> Iterator[Anomaly]:
        # Lookups and other requests are numbered apart by some clients, so an id is only unique within its kind.
        asked = (event.kind, event.request_id or 0)
        if asked in state.requests:
            yield state.anomaly(
                "CLIENT-05", "request-id-reused", f"{event.kind} uses request id {event.request_id} again",
                state.requests[asked], event.index,
            )  # fmt: skip
        elif state.requests:
            state.judged["CLIENT-05"] += 1
        state.requests[asked] = event.index

    def _broker_rules(self, state: ConnectionState, event: Event) -> Iterator[Anomaly]:
        request = event.request_id
        downward = event.extra.get("direction") == "to_client"
        refused = event.kind == "ERROR" and event.extra.get("request") == "PRODUCER"
        if downward and (event.kind == "CLOSE_PRODUCER" or refused):
            state.expelled.add(event.extra.get("producer_id"))
        if event.extra.get("direction") == "to_broker":
            if event.kind == "PING":
                state.pings.append(event)
            elif request is None:
                return
            elif event.kind in _LOOKUPS:
                state.lookups[event.kind, request] = event
            elif event.kind == "PRODUCER":
                state.asked_names[request] = event
                state.expelled.discard(event.extra.get("producer_id"))
            elif event.kind == "CLOSE_PRODUCER":
                state.closing[request] = event
            return
        if event.kind == "PONG":
            if state.pings:
                state.pings.pop(0)
                state.judged["KEEP-02"] += 1
        elif request is None:
            return
        elif event.kind in _LOOKUP_ANSWERS:
            if state.lookups.pop((_LOOKUP_ANSWERS[event.kind], request), None) is None:
                yield state.anomaly(
                    "LOOKUP-14", "answer-to-nothing", f"{event.kind} for request {request}, which is not open",
                    event.index,
                )  # fmt: skip
            else:
                state.judged["LOOKUP-14"] += 1
        elif event.kind == "PRODUCER_SUCCESS":
            yield from self._name(state, event, request)
        elif event.kind in ("SUCCESS", "ERROR") and request in state.closing:
            asked = state.closing.pop(request)
            if event.kind == "ERROR" and asked.extra.get("producer_id") in state.expelled:
                return  # The broker had refused it or closed it itself: it knows no such producer.
            if event.kind == "ERROR":
                yield state.anomaly(
                    "PCLOSE-05", "close-refused", f"CLOSE_PRODUCER was answered with {event.error}",
                    asked.index, event.index,
                )  # fmt: skip
            else:
                state.judged["PCLOSE-05"] += 1
        elif event.kind == "ERROR":
            for kind in _LOOKUPS:
                if event.extra.get("request") == kind and state.lookups.pop((kind, request), None) is not None:
                    state.judged["LOOKUP-14"] += 1

    def _name(self, state: ConnectionState, event: Event, request: int) -> Iterator[Anomaly]:
        asked = state.asked_names.pop(request, None)
        if asked is None or asked.producer is None:
            return
        if event.producer != asked.producer:
            yield state.anomaly(
                "PROD-04", "another-name", f"asked for producer {asked.producer}, got {event.producer}",
                asked.index, event.index,
            )  # fmt: skip
        else:
            state.judged["PROD-04"] += 1

    def finish(self, state: ConnectionState) -> Iterator[Anomaly]:
        if state.frames:
            state.judged["META-01"] += 1
        open_questions = (
            [("LOOKUP-14", event) for event in state.lookups.values()]
            + [("PCLOSE-05", event) for event in state.closing.values()]
            + [("KEEP-02", event) for event in state.pings]
        )
        for clause, event in open_questions:
            if state.closed:
                continue
            if not state.drained or state.ended_ns - max(event.time_ns, state.restored_ns) < SETTLE_NS:
                state.undecided.append(
                    Undecided(
                        clause=clause, key=state.key, reason="the run ended too soon to miss an answer",
                        witness=(event.index,),
                    )
                )  # fmt: skip
            else:
                yield state.anomaly(
                    clause, "unanswered", f"{event.kind} was never answered", event.index, severity="liveness"
                )
