"""The order in which a client puts the messages of one producer on the wire, over all its connections.

A *session* is one registration: a producer id on a connection, from its PRODUCER frame on. What was pending is sent
again at the start of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.history.event import Event
from harness.invariants.core import Anomaly, Invariant, Key
from harness.invariants.producer_fold import SETTLE_NS, ProducerState, producer_key
from harness.invariants.sends import SendBook
from harness.invariants.sequence import announced, covered, is_chunk, members
from harness.invariants.unanswered import Sent, Unanswered

FrameKey = tuple[int, str | None, int | None]


@dataclass(slots=True)
class _Session:
    number: int
    registered: bool
    ready: Event | None = None
    ended_ns: int | None = None
    owed: dict[int, Event] = field(default_factory=dict)
    closed: int | None = None
    last: int = -1
    sent: set[int] = field(default_factory=set)


def _link(event: Event) -> tuple[str | None, int | None]:
    """A name in use elsewhere is registered on two connections at once, one of which is refused."""
    return event.connection, event.extra.get("producer_id")


@dataclass(slots=True)
class _First:
    ordinal: int
    frame: Event


class TransmissionState(ProducerState):
    """Everything one producer incarnation sent first, in order, and what of it is pending."""

    __slots__ = (
        "answers", "book", "first", "gaps", "handles", "highest", "muddled", "number", "opaque", "opened", "ordinals",
        "owners", "pending", "seen", "sessions", "skipped", "transmitted",
    )  # fmt: skip

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.book = SendBook()
        self.handles: set[str | None] = set()
        self.muddled = False
        self.sessions: dict[tuple[str | None, int | None], _Session] = {}
        self.number = 0
        self.opened: list[_Session] = []
        self.skipped: list[tuple[Event, Event]] = []
        self.seen: dict[str, Event] = {}
        self.opaque = False
        self.gaps: list[tuple[int, int]] = []
        self.forget()

    def forget(self) -> None:
        """Begin a new incarnation: its predecessor's pending messages died with it."""
        self.answers = Unanswered()
        self.first: dict[FrameKey, list[_First]] = {}
        self.owners: dict[int, tuple[str, FrameKey]] = {}
        self.ordinals: dict[int, int] = {}
        self.pending: dict[int, Event] = {}
        self.highest = -1
        self.transmitted = 0


class Transmission(Invariant[TransmissionState]):
    """First transmissions ascend; a new session repeats what is pending, in order and unchanged, before the new."""

    name = "transmission-order"
    family = "receipts"
    clauses = ("SEQ-01", "SEND-02", "O6", "PROD-05", "PROD-07", "PCLOSE-04", "BATCH-03")

    def key(self, event: Event) -> Key | None:
        wanted = (event.layer == "api" and event.kind in ("send", "producer", "close")) or (
            event.layer == "tap.client"
            and event.kind in ("SEND", "SEND_RECEIPT", "SEND_ERROR", "PRODUCER", "PRODUCER_SUCCESS", "CLOSE_PRODUCER")
        )
        return producer_key(event) if wanted else None

    def broadcast(self, event: Event) -> bool:
        whole_client = event.kind == "close" and event.producer is None and event.consumer is None
        return (event.layer == "api" and whole_client) or (
            event.layer == "tap.client" and event.kind == "CONNECTION_CLOSED"
        )

    def start(self, key: Key) -> TransmissionState:
        return TransmissionState(key)

    def step(self, state: TransmissionState, event: Event) -> Iterable[Anomaly]:
        if event.layer == "api":
            self._api(state, event)
        elif event.kind == "CONNECTION_CLOSED":
            for (connection, _), ended in state.sessions.items():
                if connection == event.connection and ended.ended_ns is None:
                    ended.ended_ns = event.time_ns
        elif event.kind == "PRODUCER":
            replaced = state.sessions.get(_link(event))
            if replaced is not None:
                replaced.ended_ns = event.time_ns
            state.number += 1
            state.sessions[_link(event)] = _Session(state.number, registered=True)
        elif event.kind == "PRODUCER_SUCCESS":
            session = state.sessions.get(_link(event))
            if session is not None and event.extra.get("ready") is not False:
                session.ready = event
                session.owed = dict(state.pending)
                state.opened.append(session)
        elif event.kind == "CLOSE_PRODUCER":
            session = state.sessions.get(_link(event))
            if session is not None:
                session.ended_ns = event.time_ns if session.ended_ns is None else session.ended_ns
                if event.extra.get("direction") == "to_broker":
                    session.closed = event.index
                    state.judged["PCLOSE-04"] += 1
        elif event.kind == "SEND":
            return list(self._send(state, event))
        else:
            answered = state.answers.answered(event)
            if answered is not None:
                self._settle(state, answered)
        return ()

    @staticmethod
    def _settle(state: TransmissionState, answered: Sent) -> None:
        """An answered message is pending no more; of contested ones any may be the one."""
        over = [sent for sent in state.answers.all if sent.contested] if answered.contested else [answered]
        for sent in over:
            state.pending.pop(state.ordinals.get(sent.frame.index, -1), None)

    def _api(self, state: TransmissionState, event: Event) -> None:
        if event.kind == "send":
            state.book.take(event)
        elif event.kind == "close":
            if event.producer is None:
                state.handles.clear()
            elif event.phase == "ok":
                state.handles.discard(event.actor)
        elif event.phase == "invoke":
            state.book.created(event)
            state.handles.add(event.actor)
            # Two live producers of one name fight for it; whose frame is whose cannot be told.
            state.muddled = state.muddled or len(state.handles) > 1
            state.forget()
        elif event.phase == "fail":
            state.handles.discard(event.actor)

    def _send(self, state: TransmissionState, event: Event) -> Iterator[Anomaly]:
        session = state.sessions.setdefault(_link(event), _Session(state.number, registered=False))
        yield from self._allowed(state, session, event)
        for member in members(event):
            if member.digest is None:
                state.opaque = True
            else:
                state.seen.setdefault(member.digest, event)
        wire = announced(event)
        if wire is None or state.muddled:
            return
        yield from self._identity(state, event, wire[0])
        frame_key: FrameKey = (wire[0], event.chunk_uuid, event.chunk_id)
        known = state.first.get(frame_key, [])
        earlier = next((one for one in reversed(known) if not self._another_message(one.frame, event)), None)
        if known and earlier is None and not state.book.explicit and not state.book.renumbered:
            yield state.anomaly(
                "PROD-05", "sequence-id-reused", f"id {wire[0]} was given to two different messages",
                known[-1].frame.index, event.index,
            )  # fmt: skip
        if earlier is None:
            yield from self._fresh(state, session, event, frame_key, wire[0])
        else:
            yield from self._again(state, session, event, earlier)

    def _allowed(self, state: TransmissionState, session: _Session, event: Event) -> Iterator[Anomaly]:
        if session.closed is not None:
            yield state.anomaly(
                "PCLOSE-04", "sent-after-close", "a SEND followed CLOSE_PRODUCER", session.closed, event.index
            )
        elif session.registered and session.ready is None:
            yield state.anomaly(
                "PROD-07", "sent-before-registration", "a SEND left before PRODUCER_SUCCESS arrived", event.index
            )
        elif session.registered and not session.sent:
            state.judged["PROD-07"] += 1

    def _identity(self, state: TransmissionState, event: Event, lowest: int) -> Iterator[Anomaly]:
        """The id of the command, of the metadata and of the application are one."""
        inside = (event.extra.get("metadata") or {}).get("sequence_id", lowest)
        if inside != lowest:
            yield state.anomaly(
                "SEQ-01", "two-sequence-ids", f"SEND says {lowest}, its metadata {inside}", event.index,
                severity="conformance",
            )  # fmt: skip
        for member in members(event):
            send = state.book.only(member.digest)
            if send is None or send.explicit is None:
                continue
            if send.explicit != member.sequence_id:
                yield state.anomaly(
                    "SEQ-01", "application-id-changed", f"the application said {send.explicit}, the wire {lowest}",
                    send.invoked, event.index,
                )  # fmt: skip
            else:
                state.judged["SEQ-01"] += 1

    def _another_message(self, before: Event, now: Event) -> bool:
        left = [member.digest for member in members(before)]
        right = [member.digest for member in members(now)]
        if is_chunk(before) or is_chunk(now):
            left, right = [before.payload_digest], [now.payload_digest]
        if None in left or None in right:
            return False
        return not set(left) & set(right)

    def _fresh(
        self, state: TransmissionState, session: _Session, event: Event, frame_key: FrameKey, lowest: int
    ) -> Iterator[Anomaly]:
        ids = covered(event)
        rebuilt = None if is_chunk(event) else self._rebuilt(state, event, frame_key)
        if rebuilt is not None:
            yield state.anomaly(
                "O6", "sent-again-in-other-batches", "a pending message was sent again inside another frame",
                state.first[rebuilt][0].frame.index, event.index,
            )  # fmt: skip
        elif not state.book.explicit and not state.book.renumbered:
            continues = is_chunk(event) and (event.chunk_id or 0) > 0 and lowest == state.highest
            if state.highest >= 0 and lowest <= state.highest and not continues:
                yield state.anomaly(
                    "SEQ-01", "ids-not-ascending", f"id {lowest} was first sent after id {state.highest}", event.index
                )
            elif state.highest >= 0:
                state.judged["SEQ-01"] += 1
                if lowest > state.highest + 1:
                    state.gaps.append((lowest - state.highest - 1, event.index))
            if session.number > 1:
                state.judged["PROD-05"] += 1
        elif len(ids) > 1 and lowest <= state.highest:
            if ids[-1] > state.highest:
                yield state.anomaly(
                    "BATCH-03", "suspect-batched-with-fresh", f"ids {lowest}..{ids[-1]} in one batch after id "
                    f"{state.highest} was sent", event.index, severity="conformance",
                )  # fmt: skip
            else:
                state.judged["BATCH-03"] += 1
        state.highest = max(state.highest, ids[-1])
        ordinal = state.transmitted
        state.transmitted += 1
        self._note_skipped(state, session, ordinal, event)
        state.first.setdefault(frame_key, []).append(_First(ordinal, event))
        for member in members(event):
            if member.digest is not None and member.sequence_id is not None:
                state.owners[member.sequence_id] = (member.digest, frame_key)
        self._note(state, session, event, ordinal)

    def _rebuilt(self, state: TransmissionState, event: Event, frame_key: FrameKey) -> FrameKey | None:
        """The frame in which a message of this one was first sent, when that was another frame."""
        for member in members(event):
            if member.sequence_id is None or state.book.only(member.digest) is None:
                continue
            owner = state.owners.get(member.sequence_id)
            if owner is not None and owner[0] == member.digest and owner[1] != frame_key:
                return owner[1]
        return None

    def _again(self, state: TransmissionState, session: _Session, event: Event, earlier: _First) -> Iterator[Anomaly]:
        if any(state.book.of(member.digest) and state.book.only(member.digest) is None for member in members(event)):
            self._note(state, session, event, earlier.ordinal)
            return  # The application itself sent this payload twice.
        left, right = earlier.frame.extra.get("frame_digest"), event.extra.get("frame_digest")
        if (left is not None and right is not None and left != right) or announced(earlier.frame) != announced(event):
            yield state.anomaly(
                "O6", "sent-again-with-other-bytes", f"id {event.sequence_id} was sent again, but not the same bytes",
                earlier.frame.index, event.index,
            )  # fmt: skip
        else:
            state.judged["O6"] += 1
        if earlier.ordinal not in session.sent:
            if earlier.ordinal < session.last:
                yield state.anomaly(
                    "SEND-02", "older-after-newer", f"id {event.sequence_id} was sent again after a later message",
                    earlier.frame.index, event.index,
                )  # fmt: skip
            else:
                state.judged["SEND-02"] += 1
                self._note_skipped(state, session, earlier.ordinal, event)
        self._note(state, session, event, earlier.ordinal)

    def _note_skipped(self, state: TransmissionState, session: _Session, ordinal: int, event: Event) -> None:
        for pending, frame in state.pending.items():
            if session.last < pending < ordinal and pending not in session.sent:
                state.skipped.append((frame, event))

    def _note(self, state: TransmissionState, session: _Session, event: Event, ordinal: int) -> None:
        state.answers.sent(event)
        state.ordinals[event.index] = ordinal
        state.pending.setdefault(ordinal, event)
        session.sent.add(ordinal)
        session.last = max(session.last, ordinal)
        session.owed.pop(ordinal, None)

    def finish(self, state: TransmissionState) -> Iterator[Anomaly]:
        if state.muddled:
            return
        reported: set[int] = set()
        for frame, successor in state.skipped:
            sends = [state.book.only(member.digest) for member in members(frame)]
            # Failed and timed-out messages leave the queue by right; their completion may be recorded a little later.
            if any(send is not None and send.outcome in ("OK", "DUP") for send in sends):
                reported.add(frame.index)
                yield state.anomaly(
                    "SEND-02", "pending-message-skipped",
                    f"id {frame.sequence_id} was pending when id {successor.sequence_id} was sent on a new connection",
                    frame.index, successor.index,
                )  # fmt: skip
        yield from self._owed(state, reported)
        yield from self._never_sent(state)

    def _owed(self, state: TransmissionState, reported: set[int]) -> Iterator[Anomaly]:
        """What was pending when a registration succeeded and stayed so, yet was not sent again on it."""
        for session in state.opened:
            if session.ready is None:
                continue
            until = session.ended_ns
            for frame in session.owed.values():
                for send in (state.book.only(member.digest) for member in members(frame)):
                    if send is None or send.completed < 0 or frame.index in reported:
                        continue
                    end_ns = send.completed_ns if until is None else min(until, send.completed_ns)
                    if end_ns - session.ready.time_ns >= SETTLE_NS:
                        reported.add(frame.index)
                        yield state.anomaly(
                            "SEND-02", "pending-message-forgotten",
                            f"id {frame.sequence_id} stayed pending, but was not sent again after the registration",
                            frame.index, session.ready.index, send.completed, severity="liveness",
                        )  # fmt: skip

    def _never_sent(self, state: TransmissionState) -> Iterator[Anomaly]:
        """Messages that later ones of the same handle overtook inside the client, and ids nobody used."""
        if state.opaque or not state.seen:
            return
        missing = [send for send in state.book.sends.values() if send.digest not in state.seen]
        if sum(size for size, _ in state.gaps) > len(missing):
            yield state.anomaly(
                "SEQ-01", "ids-skipped", "more ids were left out than messages stayed unsent",
                *(index for _, index in state.gaps[:4]), severity="conformance",
            )  # fmt: skip
        overtaking: dict[str | None, Event] = {}
        for send in reversed(list(state.book.sends.values())):
            later = overtaking.get(send.actor)
            frame = state.seen.get(send.digest) if send.digest is not None else None
            if frame is not None:
                if later is None or frame.index < later.index:
                    overtaking[send.actor] = frame
            elif (
                later is not None
                and send.outcome in ("OK", "DUP", "UNKNOWN")
                and send.completed_ns - later.time_ns >= SETTLE_NS
            ):
                yield state.anomaly(
                    "SEND-02", "never-sent", "a message was never sent although a later one was, long before it ended",
                    send.invoked, later.index, send.completed, severity="liveness",
                )  # fmt: skip
