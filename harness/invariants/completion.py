"""Sends that must end together: the members of a batch, and all that waits when a send times out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.history.event import Event
from harness.invariants.core import Anomaly, Invariant, Key
from harness.invariants.producer_fold import ProducerState, producer_key
from harness.invariants.sends import SendBook
from harness.invariants.sequence import is_batch, members


class CompletionState(ProducerState):
    """Sends, the batches they left in, and per handle the last-invoked send that timed out."""

    __slots__ = ("batches", "book", "timed_out")

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.book = SendBook()
        self.batches: dict[tuple[str | None, ...], Event] = {}
        self.timed_out: dict[str | None, tuple[int, int]] = {}


class Completion(Invariant[CompletionState]):
    """One receipt ends a whole batch (BATCH-04); a time-out ends everything that waits (SEND-03)."""

    name = "grouped-completion"
    family = "receipts"
    clauses = ("BATCH-04", "SEND-03")

    def key(self, event: Event) -> Key | None:
        wanted = (event.layer == "api" and event.kind == "send") or (
            event.layer == "tap.client" and event.kind == "SEND"
        )
        return producer_key(event) if wanted else None

    def start(self, key: Key) -> CompletionState:
        return CompletionState(key)

    def step(self, state: CompletionState, event: Event) -> Iterable[Anomaly]:
        if event.kind == "SEND":
            if is_batch(event):
                state.batches.setdefault(tuple(member.digest for member in members(event)), event)
            return ()
        send = state.book.take(event)
        if send is None or event.phase == "invoke" or send.completed != event.index:
            return ()
        if send.outcome == "UNKNOWN" and send.error == "timeout":
            state.judged["SEND-03"] += 1
            last = state.timed_out.get(send.actor)
            if last is None or send.invoked > last[0]:
                state.timed_out[send.actor] = (send.invoked, send.completed)
        elif send.outcome == "OK" and send.partition is None:
            last = state.timed_out.get(send.actor)
            if last is not None and send.invoked < last[0]:
                return [
                    state.anomaly(
                        "SEND-03", "outlived-a-timeout",
                        "a send succeeded after one that was sent later had already timed out",
                        send.invoked, last[1], send.completed, severity="conformance",
                    )
                ]  # fmt: skip
        return ()

    def finish(self, state: CompletionState) -> Iterator[Anomaly]:
        for digests, frame in state.batches.items():
            sends = [send for digest in digests if (send := state.book.only(digest)) is not None]
            if len(sends) != len(digests) or len(sends) < 2 or any(send.outcome == "open" for send in sends):
                continue
            outcomes = {send.outcome for send in sends}
            # A client that died in the middle of its callbacks says nothing about its batches.
            if outcomes - {"OK", "DUP"} and not all(
                send.outcome in ("OK", "DUP") or send.error in ("timeout", "broker_error") for send in sends
            ):
                continue
            witness = [frame.index, *(send.completed for send in sends[:3])]
            if len(outcomes) > 1:
                yield state.anomaly(
                    "BATCH-04", "batch-split", f"the members of one batch ended {sorted(outcomes)}", *witness
                )
            elif outcomes == {"OK"} and (
                len({send.at for send in sends}) > 1 or [send.batch_index for send in sends] != list(range(len(sends)))
            ):
                yield state.anomaly(
                    "BATCH-04", "batch-ids-differ",
                    f"members of one batch got {[(send.at, send.batch_index) for send in sends[:4]]}", *witness,
                )  # fmt: skip
            else:
                state.judged["BATCH-04"] += 1
