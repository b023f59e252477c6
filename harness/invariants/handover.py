"""What a client hands to the application, judged against the frames it got at tap B."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.history.event import Event
from harness.invariants.acknowledged import Position, acked_ids, bits, position_of
from harness.invariants.calm import Calm, calm_or_storm
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.members import Members

Place = tuple[int, int, int | None]


@dataclass
class Inbox:
    """The frames of one consumer (by name, over all its sessions) and what the application took of them."""

    frames: dict[Position, list[int]] = field(default_factory=dict)
    counts: dict[Position, set[int]] = field(default_factory=dict)
    left: dict[Position, int | None] = field(default_factory=dict)
    damaged: dict[Position, list[int]] = field(default_factory=dict)
    good: set[Position] = field(default_factory=set)
    refused: dict[Position, tuple[int, str]] = field(default_factory=dict)
    reached: int = -1
    reached_place: tuple[int, int] | None = None
    reached_receive: int = -1
    open: set[int] = field(default_factory=set)
    overlapped: bool = False
    connections: set[str] = field(default_factory=set)


class HandoverState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.members = Members()
        self.calm = Calm()
        self.inboxes: dict[tuple[str, str], Inbox] = {}
        self.closed: set[str] = set()


class Handover(Invariant[HandoverState]):
    """RECV-01, RECV-06, RECV-02, BIDX-01, CORR-01 and CHECKSUM-03. Keyed by topic.

    Sound because tap B records a MESSAGE before the client can see it, and the driver records a receive after it.
    """

    name = "handover"
    family = "delivery"
    clauses = ("RECV-01", "RECV-06", "BIDX-01", "CORR-01", "CHECKSUM-03", "RECV-02")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer in ("api", "tap.client") else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> HandoverState:
        return HandoverState(key)

    def step(self, state: HandoverState, event: Event) -> Iterable[Anomaly]:
        state.calm.observe(event)
        state.members.observe(event)
        if event.kind == "CONNECTION_CLOSED" and event.connection is not None:
            state.closed.add(event.connection)
        if event.consumer is None:
            return
        inbox = state.inboxes.setdefault((event.subscription or "", event.consumer), Inbox())
        if event.layer == "tap.client":
            if event.kind == "MESSAGE":
                self._frame(inbox, event)
            elif event.kind == "ACK" and event.error is not None:
                for acked in acked_ids(event):
                    inbox.refused.setdefault(acked.position, (event.index, event.error))
        elif event.kind == "receive" and event.op is not None:
            if event.phase == "invoke":
                inbox.overlapped = bool(inbox.open)
                inbox.open.add(event.op)
                return
            alone = inbox.open == {event.op} and not inbox.overlapped
            inbox.open.discard(event.op)
            position = position_of(event)
            if event.phase == "ok" and event.payload_digest is not None and position is not None and inbox.frames:
                yield from self._received(state, inbox, position, event, alone)

    @staticmethod
    def _frame(inbox: Inbox, event: Event) -> None:
        position = position_of(event)
        if position is None:
            return
        if event.connection is not None:
            inbox.connections.add(event.connection)
        if event.extra.get("checksum_ok") is False:
            inbox.damaged.setdefault(position, []).append(event.index)
            return
        inbox.good.add(position)
        inbox.frames.setdefault(position, []).append(event.index)
        inbox.counts.setdefault(position, set()).add(event.redelivery_count or 0)
        left = bits(event.ack_set)
        before = inbox.left.get(position, 0)
        # None: some frame offered all members.
        inbox.left[position] = None if left is None or before is None else before | left

    def _received(
        self, state: HandoverState, inbox: Inbox, position: Position, event: Event, alone: bool
    ) -> Iterable[Anomaly]:
        key = (*state.key, event.consumer or "")
        frames = inbox.frames.get(position)
        if frames is None:
            if position in inbox.damaged:
                yield Anomaly(
                    name="damaged-message-delivered",
                    clause="CORR-01",
                    key=key,
                    witness=(inbox.damaged[position][0], event.index),
                    message=f"the only frame with entry {position} had a wrong checksum; the application got it",
                )
            else:
                state.judged["RECV-02"] += 1
                yield Anomaly(
                    name="message-from-nowhere",
                    clause="RECV-02",
                    key=key,
                    witness=(event.index,),
                    message=f"the application received entry {position}, which no frame brought to this consumer",
                )
            return
        state.judged["RECV-02"] += 1
        if event.redelivery_count is not None:
            state.judged["RECV-06"] += 1
            if event.redelivery_count not in inbox.counts[position]:
                yield Anomaly(
                    name="redelivery-count-changed",
                    clause="RECV-06",
                    key=key,
                    witness=(frames[-1], event.index),
                    message=f"entry {position}: frames said {sorted(inbox.counts[position])}, "
                    f"the application was told {event.redelivery_count}",
                )
        left = inbox.left.get(position)
        if left is not None and event.batch_index is not None:
            state.judged["BIDX-01"] += 1
            if not left >> event.batch_index & 1:
                yield Anomaly(
                    name="acked-member-delivered",
                    clause="BIDX-01",
                    key=key,
                    witness=(frames[-1], event.index),
                    message=f"member {event.batch_index} of {position} was marked as acked in every frame",
                )
        yield from self._order(state, inbox, position, event, alone)

    def _order(
        self, state: HandoverState, inbox: Inbox, position: Position, event: Event, alone: bool
    ) -> Iterable[Anomaly]:
        if not alone or event.extra.get("first_chunk") is not None:
            return
        frames = inbox.frames[position]
        member = event.batch_index if event.batch_index is not None else -1
        here = (inbox.reached, inbox.reached_place[1] if inbox.reached_place else -1)
        if inbox.reached >= 0:
            state.judged["RECV-01"] += 1
        if inbox.reached in frames and member > here[1]:
            inbox.reached_place = (inbox.reached, member)
        else:
            later = bisect_right(frames, inbox.reached)
            if later == len(frames):
                yield Anomaly(
                    name="handed-over-out-of-order",
                    clause="RECV-01",
                    key=(*state.key, event.consumer or ""),
                    witness=(frames[-1], inbox.reached, inbox.reached_receive, event.index),
                    message=f"{position} came before an entry that the application had already been given",
                )
                return
            inbox.reached = frames[later]
            inbox.reached_place = (inbox.reached, member)
        inbox.reached_receive = event.index

    def finish(self, state: HandoverState) -> Iterable[Anomaly]:
        for (_, consumer), inbox in state.inboxes.items():
            member = state.members.by_name.get(consumer)
            for position, frames in inbox.damaged.items():
                if position in inbox.good:
                    continue
                state.judged["CORR-01"] += 1
                refusal = inbox.refused.get(position)
                key = (*state.key, consumer)
                if refusal is not None:
                    state.judged["CHECKSUM-03"] += 1
                    if refusal[1] != "ChecksumMismatch":
                        yield Anomaly(
                            name="wrong-validation-error",
                            clause="CHECKSUM-03",
                            key=key,
                            severity="conformance",
                            witness=(frames[0], refusal[0]),
                            message=f"a wrong checksum was answered with {refusal[1]}",
                        )
                elif not state.calm.drained or member is None or not member.alive or inbox.connections & state.closed:
                    state.undecided.append(
                        Undecided(clause="CHECKSUM-03", key=key, reason="the consumer did not stay to the end")
                    )
                else:
                    state.judged["CHECKSUM-03"] += 1
                    yield Anomaly(
                        name="damaged-message-not-discarded",
                        clause="CHECKSUM-03",
                        key=key,
                        severity="liveness",
                        witness=(frames[0],),
                        message=f"entry {position} had a wrong checksum and no ACK with a validation error followed",
                    )


class IdentityState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.at: dict[Place, tuple[str, int]] = {}
        self.pieces: set[Position] = set()
        self.digest_of: dict[int, str] = {}
        self.told: set[Place] = set()


class OneIdentity(Invariant[IdentityState]):
    """LEDGER-04: an id names the same message for the producer, every consumer and the final read. Keyed by topic."""

    name = "one-identity"
    family = "delivery"
    clauses = ("LEDGER-04",)

    def key(self, event: Event) -> Key | None:
        wanted = (
            (event.layer == "api" and event.kind in ("send", "receive"))
            or (event.layer == "tap.broker" and event.kind == "MESSAGE")
            or event.kind == "ENTRY"
        )
        # Non-persistent topics give every message the id 0:0.
        return (event.topic,) if wanted and event.topic and event.topic.startswith("persistent://") else None

    def start(self, key: Key) -> IdentityState:
        return IdentityState(key)

    def step(self, state: IdentityState, event: Event) -> Iterable[Anomaly]:
        position = position_of(event)
        if event.layer == "api":
            if event.kind == "send" and event.phase == "invoke" and event.op is not None:
                if event.payload_digest is not None:
                    state.digest_of[event.op] = event.payload_digest
                return
            if event.phase != "ok" or position is None or event.extra.get("first_chunk") is not None:
                return
            digest = event.payload_digest
            if event.kind == "send":
                digest = digest or state.digest_of.pop(event.op or -1, None)
            yield from self._named(state, (*position, event.batch_index), digest, event)
            return
        if position is None or event.extra.get("checksum_ok") is False:
            return
        if event.chunk_uuid is not None:
            state.pieces.add(position)
            return
        members = event.extra.get("messages")
        if members:
            for index, member in enumerate(members):
                yield from self._named(state, (*position, index), member.get("digest"), event)
        else:
            yield from self._named(state, (*position, None), event.payload_digest, event)

    def _named(self, state: IdentityState, place: Place, digest: str | None, event: Event) -> Iterable[Anomaly]:
        if digest is None or (place[0], place[1]) in state.pieces:
            return
        known = state.at.get(place)
        if known is None:
            state.at[place] = (digest, event.index)
            return
        state.judged["LEDGER-04"] += 1
        if known[0] != digest and place not in state.told:
            state.told.add(place)
            yield Anomaly(
                name="two-messages-one-id",
                clause="LEDGER-04",
                key=state.key,
                witness=(known[1], event.index),
                message=f"id {place} stood for message {known[0]} and for message {digest}",
            )

    def finish(self, state: IdentityState) -> Iterable[Anomaly]:
        return ()
