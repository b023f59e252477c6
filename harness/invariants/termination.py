"""A terminated topic: what its broker refuses from then on, and what a client makes of the refusal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.history.event import Event
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Severity
from harness.invariants.faults import concerns
from harness.invariants.producer_fold import volatile
from harness.invariants.sequence import position
from harness.invariants.unanswered import Unanswered

TERMINATED = "TopicTerminatedError"


class TerminationState(FoldState):
    """When the topic was to be terminated, and since when it surely was.

    ``asks``: the requests not refused so far. ``latest``: whether the latest request of all was about this topic.
    """

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.asks: list[int] = []
        self.latest = False
        self.certain: int | None = None
        self.sends: dict[str | None, Unanswered] = {}
        self.final: dict[str | None, int] = {}

    @property
    def asked(self) -> int | None:
        """The first request that was not refused."""
        return self.asks[0] if self.asks else None

    def anomaly(
        self, clause: str, name: str, message: str, *witness: int, severity: Severity = "conformance"
    ) -> Anomaly:
        self.judged[clause] += 1
        return Anomaly(
            name=name, clause=clause, key=self.key, message=message, witness=tuple(sorted(set(witness))),
            severity=severity,
        )  # fmt: skip


class Termination(Invariant[TerminationState]):
    """ERR-05 and CONS-11 next to the broker, PROD-14 next to the client. Keyed by topic.

    The administrator's call has returned when the plan goes on: the next send or producer it asks for comes after it,
    unless a ``not_injected`` about the same topic told that it was refused: that is the answer to the latest request.
    """

    name = "termination"
    family = "receipts"
    clauses = ("ERR-05", "PROD-14", "CONS-11")

    def key(self, event: Event) -> Key | None:
        if event.topic is None or volatile((event.topic,)):
            return None
        wanted = (event.layer == "api" and event.kind in ("send", "producer")) or (
            event.layer in ("tap.client", "tap.broker")
            and event.kind
            in ("SEND", "SEND_RECEIPT", "SEND_ERROR", "PRODUCER", "PRODUCER_SUCCESS", "ERROR", "REACHED_END_OF_TOPIC")
        )
        return (event.topic,) if wanted else None

    def broadcast(self, event: Event) -> bool:
        return event.layer == "fault" and event.kind in ("terminate", "not_injected")

    def start(self, key: Key) -> TerminationState:
        return TerminationState(key)

    def step(self, state: TerminationState, event: Event) -> Iterable[Anomaly]:
        if event.layer == "fault":
            mine = concerns(event, state.key[0])
            if event.kind == "terminate":
                state.latest = mine
                if mine:
                    state.asks.append(event.index)
            elif event.extra.get("fault") == "terminate" and mine and state.latest and state.certain is None:
                # Histories of earlier versions do not name the topic: the refusal is of the latest request.
                state.latest = False
                state.asks.pop()
        elif event.layer == "api":
            if event.phase == "invoke":
                if state.asked is not None and state.certain is None:
                    state.certain = event.index
                if event.kind == "producer":
                    state.final.pop(event.producer, None)
        elif event.layer == "tap.broker":
            return list(self._broker(state, event))
        else:
            return list(self._client(state, event))
        return ()

    def _broker(self, state: TerminationState, event: Event) -> Iterator[Anomaly]:
        sends = state.sends.setdefault(event.producer, Unanswered())
        if event.kind == "SEND":
            sends.sent(event)
        elif event.kind == "REACHED_END_OF_TOPIC":
            if state.asked is None:
                yield state.anomaly(
                    "CONS-11", "end-of-a-topic-that-goes-on",
                    "a consumer was told that the topic has ended, but nobody terminated it", event.index,
                    severity="safety",
                )  # fmt: skip
            else:
                state.judged["CONS-11"] += 1
        elif event.error == TERMINATED:
            sends.answered(event)
            if state.asked is None:
                yield state.anomaly(
                    "ERR-05", "terminated-by-nobody", f"{event.kind} says {TERMINATED}, but nobody did that",
                    event.index,
                )  # fmt: skip
            else:
                state.judged["ERR-05"] += 1
                state.certain = event.index if state.certain is None else state.certain
        elif event.kind in ("SEND_RECEIPT", "SEND_ERROR"):
            sent = sends.answered(event)
            late = sent is not None and state.certain is not None and sent.frame.index > state.certain
            if sent is not None and late and sent.stored and not sent.contested:
                yield state.anomaly(
                    "ERR-05", "stored-after-termination", f"a message was stored at {position(event)} of a terminated "
                    "topic", state.asked or 0, sent.frame.index, event.index, severity="safety",
                )  # fmt: skip

    def _client(self, state: TerminationState, event: Event) -> Iterator[Anomaly]:
        if event.kind == "ERROR" and event.error == TERMINATED and event.extra.get("request") == "PRODUCER":
            state.final.setdefault(event.producer, event.index)
            state.judged["PROD-14"] += 1
        elif event.kind == "PRODUCER" and event.producer in state.final:
            yield state.anomaly(
                "PROD-14", "registered-again-after-termination",
                "the client was told that the topic is terminated, and registers the producer again",
                state.final[event.producer], event.index,
            )  # fmt: skip

    def finish(self, state: TerminationState) -> Iterable[Anomaly]:
        return ()
