"""Receipts: one answer for each SEND, in order, durable; and what the client makes of them.

Broker-bound clauses read the tap next to the broker, client-bound ones the tap next to the client: a receipt lost
between the two is nobody's fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from harness.history.event import Event
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.final_read import ends_or_disturbs
from harness.invariants.producer_fold import SETTLE_NS, ProducerState, producer_key, volatile
from harness.invariants.sends import Send, SendBook, SendBooks
from harness.invariants.sequence import announced, is_chunk, members, position
from harness.invariants.unanswered import CONTESTED, Sent, Unanswered

UNFINISHED_NS = 60_000_000_000
"""Twice the usual send timeout: a send still open after this long was forgotten by its client."""

_ANSWERS = ("SEND_RECEIPT", "SEND_ERROR")


def _link_event(event: Event) -> bool:
    return event.kind == "CONNECTION_CLOSED" or ends_or_disturbs(event)


class AnsweringState(ProducerState):
    """SENDs and answers next to the broker."""

    __slots__ = ("closed", "expelled", "last_id", "last_ordinal", "sends")

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sends = Unanswered()
        self.expelled: set[str] = set()
        self.closed: set[str] = set()
        self.last_id: dict[str, tuple[tuple[int, int], int]] = {}
        self.last_ordinal: dict[str, tuple[int, int]] = {}


class Answering(Invariant[AnsweringState]):
    """Each SEND that reached the broker is answered once, stored ones in order (O1 to O3, RECEIPT-01, RECEIPT-02)."""

    name = "receipt-matching"
    family = "receipts"
    clauses = ("O1", "O2", "O3", "RECEIPT-01", "RECEIPT-02")

    def key(self, event: Event) -> Key | None:
        wanted = event.layer == "tap.broker" and event.kind in ("SEND", *_ANSWERS, "PRODUCER", "CLOSE_PRODUCER")
        return producer_key(event) if wanted else None

    def broadcast(self, event: Event) -> bool:
        return _link_event(event)

    def start(self, key: Key) -> AnsweringState:
        return AnsweringState(key)

    def step(self, state: AnsweringState, event: Event) -> Iterable[Anomaly]:
        connection = event.connection or ""
        if event.kind == "CONNECTION_CLOSED":
            state.closed.add(connection)
        elif ends_or_disturbs(event):
            state.around.take(event)
        elif event.kind == "SEND":
            # What was under way to a producer that the broker has closed may be dropped in silence (unload).
            state.sends.sent(event).excused = connection in state.expelled
        elif event.kind in ("PRODUCER", "CLOSE_PRODUCER"):
            state.sends.excuse(connection)
            if event.extra.get("direction") == "to_client":
                state.expelled.add(connection)
            elif event.kind == "PRODUCER":
                state.expelled.discard(connection)
        else:
            return list(self._answer(state, event, connection))
        return ()

    def _answer(self, state: AnsweringState, event: Event, connection: str) -> Iterator[Anomaly]:
        sent = state.sends.answered(event)
        if sent is None:
            yield state.anomaly(
                "O1", "answer-to-nothing", f"{event.kind} for id {event.sequence_id}, which no waiting SEND has",
                event.index,
            )  # fmt: skip
            return
        state.judged["O1"] += 1
        overtaken = [earlier for earlier in state.sends.waiting(connection) if earlier.ordinal < sent.ordinal]
        if not sent.stored:
            if overtaken:
                state.judged["O3"] += 1
            return
        if volatile(state.key):
            return
        previous = state.last_ordinal.get(connection)
        if sent.contested:
            for clause in ("O2", "O3"):
                state.unsure(clause, CONTESTED, sent.frame.index, event.index)
        elif previous is not None:
            if sent.ordinal < previous[0]:
                message = f"the receipt of id {event.sequence_id} came after that of a later SEND"
                yield state.anomaly("O2", "receipt-out-of-order", message, sent.frame.index, previous[1], event.index)
                yield state.anomaly("O3", "receipt-overtook", message, sent.frame.index, previous[1], event.index)
            else:
                state.judged["O2"] += 1
        if not sent.contested and (previous is None or sent.ordinal > previous[0]):
            state.last_ordinal[connection] = (sent.ordinal, event.index)
        here, last = position(event), state.last_id.get(connection)
        if here is None:
            return
        if last is not None and here <= last[0]:
            yield state.anomaly(
                "RECEIPT-02", "ids-not-increasing", f"receipt id {here} follows {last[0]}", last[1], event.index
            )
        elif last is not None:
            state.judged["RECEIPT-02"] += 1
        state.last_id[connection] = (here, event.index)

    def finish(self, state: AnsweringState) -> Iterator[Anomaly]:
        for sent in state.sends.all:
            passed = state.last_ordinal.get(sent.frame.connection or "")
            if sent.answer is not None:
                state.judged["RECEIPT-01"] += 1
            elif not sent.excused and passed is not None and passed[0] > sent.ordinal:
                # Receipts come in order, so the one of a later SEND proves that this one will not come.
                yield state.anomaly(
                    "RECEIPT-01", "passed-over", f"id {sent.frame.sequence_id} stayed unanswered, a later SEND did not",
                    sent.frame.index, passed[1],
                )  # fmt: skip
            elif sent.excused or (sent.frame.connection or "") in state.closed:
                continue
            elif not state.around.drained or state.around.waited_ns(sent.frame.time_ns) < SETTLE_NS:
                state.unsure("RECEIPT-01", "the run ended too soon to miss an answer", sent.frame.index)
            else:
                yield state.anomaly(
                    "RECEIPT-01", "unanswered", f"SEND of id {sent.frame.sequence_id} was never answered",
                    sent.frame.index, severity="liveness",
                )  # fmt: skip


class DurableState(ProducerState):
    """SENDs and answers next to the broker, and the final read."""

    __slots__ = ("closed_by_broker", "entries", "sends")

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sends = Unanswered()
        self.entries: dict[tuple[int, int] | None, Event] = {}
        self.closed_by_broker: dict[str, int] = {}


class Durable(Invariant[DurableState]):
    """A receipt with an id means stored there, byte for byte; a damaged SEND is refused (RECEIPT-05, CHECKSUM-01)."""

    name = "durable-receipts"
    family = "receipts"
    clauses = ("RECEIPT-05", "CHECKSUM-01")

    def key(self, event: Event) -> Key | None:
        wanted = (event.layer == "tap.broker" and event.kind in ("SEND", *_ANSWERS)) or event.kind == "ENTRY"
        return producer_key(event) if wanted else None

    def broadcast(self, event: Event) -> bool:
        return _link_event(event)

    def start(self, key: Key) -> DurableState:
        return DurableState(key)

    def step(self, state: DurableState, event: Event) -> Iterable[Anomaly]:
        if event.kind == "CONNECTION_CLOSED":
            if event.extra.get("by") == "broker":
                state.closed_by_broker[event.connection or ""] = event.index
        elif ends_or_disturbs(event):
            state.around.take(event)
        elif event.kind == "ENTRY":
            state.entries[position(event)] = event
        elif event.kind == "SEND":
            state.sends.sent(event)
        else:
            state.sends.answered(event)
        return ()

    def finish(self, state: DurableState) -> Iterator[Anomaly]:
        for sent in state.sends.all:
            if sent.frame.extra.get("checksum_ok") is False:
                yield from self._damaged(state, sent)
            elif sent.stored and not volatile(state.key):
                yield from self._stored(state, sent)

    def _damaged(self, state: DurableState, sent: Sent) -> Iterator[Anomaly]:
        answer = sent.answer
        closed = state.closed_by_broker.get(sent.frame.connection or "")
        if answer is None:
            if closed is not None:
                yield state.anomaly(
                    "CHECKSUM-01", "damaged-frame-closed-the-connection",
                    "the broker closed the connection over a damaged SEND instead of refusing it",
                    sent.frame.index, closed, severity="conformance",
                )  # fmt: skip
            return
        if not sent.refused:
            yield state.anomaly(
                "CHECKSUM-01", "damaged-frame-accepted", "a SEND with a wrong checksum got a receipt",
                sent.frame.index, answer.index,
            )  # fmt: skip
        elif answer.error != "ChecksumError":
            yield state.anomaly(
                "CHECKSUM-01", "damaged-frame-refused-as-something-else",
                f"a SEND with a wrong checksum was refused with {answer.error}",
                sent.frame.index, answer.index, severity="conformance",
            )  # fmt: skip
        else:
            state.judged["CHECKSUM-01"] += 1

    def _stored(self, state: DurableState, sent: Sent) -> Iterator[Anomaly]:
        answer = sent.answer
        if answer is None:
            return
        if sent.contested:
            state.unsure("RECEIPT-05", CONTESTED, sent.frame.index, answer.index)
            return
        if not state.around.log_complete:
            state.unsure("RECEIPT-05", "there is no complete final read of the topic", answer.index)
            return
        entry = state.entries.get(position(answer))
        if entry is None:
            yield state.anomaly(
                "RECEIPT-05", "receipted-but-missing", f"receipt for {position(answer)}, but no such entry is stored",
                sent.frame.index, answer.index,
            )  # fmt: skip
        elif not _same_content(sent.frame, entry):
            yield state.anomaly(
                "RECEIPT-05", "other-content-stored", f"the entry at {position(answer)} is not what was sent",
                sent.frame.index, answer.index, entry.index,
            )  # fmt: skip
        else:
            state.judged["RECEIPT-05"] += 1


def _same_content(frame: Event, entry: Event) -> bool:
    """Whether frame and entry hold the same messages, as far as both tell."""
    if is_chunk(frame) or is_chunk(entry):
        pairs = [
            (frame.chunk_uuid, entry.chunk_uuid), (frame.chunk_id, entry.chunk_id),
            (frame.payload_digest, entry.payload_digest),
        ]  # fmt: skip
        return all(left == right for left, right in pairs if left is not None and right is not None)
    sent, stored = members(frame), members(entry)
    if any(member.digest is None for member in (*sent, *stored)):
        return True
    return [member.digest for member in sent] == [member.digest for member in stored]


class ClientState(ProducerState):
    """API sends and the frames next to the client."""

    __slots__ = (
        "book", "by_digest", "closed", "closes", "early", "heads", "last_ok", "order", "provoked", "sends", "stale",
    )  # fmt: skip

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.book = SendBook()
        self.sends = Unanswered()
        self.by_digest: dict[str, list[Sent]] = defaultdict(list)
        self.order: dict[str | None, tuple[int, int]] = {}
        self.closes: list[tuple[str | None, int]] = []
        self.last_ok: dict[tuple[object, ...], tuple[tuple[int, int], int]] = {}
        self.closed: dict[str, Event] = {}
        self.heads: set[int] = set()
        self.early: list[tuple[Sent, Sent]] = []
        self.stale: dict[str, Event] = {}
        self.provoked: set[str] = set()


class ClientReceipts(Invariant[ClientState]):
    """What the client tells the application about the answers it got (O4, O7, RCPT-*, RECEIPT-06, CHECKSUM-02)."""

    name = "client-receipts"
    family = "receipts"
    clauses = ("O4", "O7", "RCPT-01", "RCPT-02", "RCPT-03", "RCPT-05", "RECEIPT-06", "CHECKSUM-02")

    def key(self, event: Event) -> Key | None:
        wanted = (event.layer == "api" and event.kind == "send") or (
            event.layer == "tap.client" and event.kind in ("SEND", *_ANSWERS, "PRODUCER", "CLOSE_PRODUCER")
        )
        return producer_key(event) if wanted else None

    def broadcast(self, event: Event) -> bool:
        return _link_event(event) or (event.layer == "api" and event.kind == "close")

    def start(self, key: Key) -> ClientState:
        return ClientState(key)

    def step(self, state: ClientState, event: Event) -> Iterable[Anomaly]:
        connection = event.connection or ""
        if event.kind == "CONNECTION_CLOSED":
            state.closed[connection] = event
            if event.layer == "tap.client":
                return list(self._after_stale(state, event, connection))
        elif event.kind == "PRODUCER":
            # What was sent after the broker closed the producer, before the client knew, is not answered either.
            state.sends.excuse(connection)
        elif event.kind in ("close", "CLOSE_PRODUCER"):
            state.stale.clear()
            if event.extra.get("direction") == "to_client":
                # The same frames may follow again on this connection; which of the two an answer means is not told.
                state.sends.excuse(connection)
                state.provoked.add(connection)
            if event.phase == "invoke":
                state.closes.append((event.actor if event.topic is not None else None, event.index))
        elif ends_or_disturbs(event):
            state.around.take(event)
            state.stale.clear()
        elif event.layer == "api":
            return list(self._api(state, event))
        elif event.kind == "SEND":
            sent = state.sends.sent(event)
            state.book.learn(event)
            for place, member in enumerate(members(event)):
                if member.digest is not None:
                    state.by_digest[member.digest].append(sent)
                    state.order.setdefault(member.digest, (len(state.sends.all), place))
            return list(self._after_stale(state, event, connection))
        else:
            self._answer(state, event, connection)
        return ()

    def _after_stale(self, state: ClientState, event: Event, connection: str) -> Iterator[Anomaly]:
        """The first thing the client does on a connection after a receipt that it must ignore."""
        stale = state.stale.pop(connection, None)
        if stale is None:
            return
        if event.kind == "CONNECTION_CLOSED" and event.extra.get("by") == "client":
            yield state.anomaly(
                "RCPT-03", "stale-receipt-closed-the-connection",
                f"the client dropped its connection over a receipt for id {stale.sequence_id}, which it should ignore",
                stale.index, event.index,
            )  # fmt: skip
        elif event.kind == "SEND":
            state.judged["RCPT-03"] += 1

    def _answer(self, state: ClientState, event: Event, connection: str) -> None:
        # What the client does next is owed to this answer, no longer to an earlier stale one.
        state.stale.pop(connection, None)
        pending = [
            sent for sent in state.sends.waiting(connection)
            if not sent.excused and not self._resolved(state, sent)
        ]  # fmt: skip
        waiting = [sent for sent in pending if self._open(state, sent)]
        sent, number = state.sends.answered(event), event.sequence_id
        if event.kind != "SEND_RECEIPT" or number is None:
            state.provoked.add(connection)
            return
        # Whichever call had ended unknown may be the oldest that the client waits for, up to the first still open.
        oldest = pending[: pending.index(waiting[0]) + 1] if waiting else pending
        lowest = [ids[0] for item in oldest if (ids := announced(item.frame)) is not None]
        # The id of a call that is still open is no stale one; that of one that ended unknown is, or completes it.
        if len(lowest) < len(oldest) or any(number > first for first in lowest):
            state.provoked.add(connection)
        elif not (waiting and number == lowest[-1]) and connection not in state.provoked:
            state.stale[connection] = event
        if sent is None or sent.contested:
            return
        if pending and sent is pending[0]:
            state.heads.add(sent.frame.index)
        head_ids = announced(waiting[0].frame) if waiting else None
        if head_ids is not None and number > head_ids[1]:
            ascending = [ids[0] for item in waiting if (ids := announced(item.frame)) is not None]
            if ascending == sorted(ascending):
                state.early.append((waiting[0], sent))

    def _open(self, state: ClientState, sent: Sent) -> bool:
        """Whether the application has not been told anything yet about some message of a frame."""
        known = [state.book.only(member.digest) for member in members(sent.frame)]
        return any(send is None or send.outcome == "open" for send in known)

    def _resolved(self, state: ClientState, sent: Sent) -> bool:
        """Whether the client is surely done with a frame. A call that ended unknown may be pending in it for longer."""
        known = [state.book.only(member.digest) for member in members(sent.frame)]
        return all(send is not None and send.outcome in ("OK", "DUP", "FAIL") for send in known)

    def _api(self, state: ClientState, event: Event) -> Iterator[Anomaly]:
        earlier = state.book.sends.get(event.op) if event.op is not None else None
        if event.phase != "invoke" and earlier is not None and earlier.outcome != "open":
            yield state.anomaly(
                "O4", "resolved-twice", "one send was completed a second time",
                earlier.invoked, earlier.completed, event.index,
            )  # fmt: skip
            return
        send = state.book.take(event)
        if send is None or event.phase == "invoke":
            return
        if send.outcome == "OK":
            yield from self._callback_order(state, send)
        if send.outcome in ("OK", "DUP") and not state.book.repeated(send):
            yield from self._same_answer(state, send)

    def _callback_order(self, state: ClientState, send: Send) -> Iterator[Anomaly]:
        if state.book.repeated(send):
            return
        place = (send.invoked, 0)
        if state.sends.all:
            if send.digest not in state.order:
                return  # A chunked message: its frames cannot be recognised by the payload.
            place = state.order[send.digest]
        # A handle that was closed and created again is another producer, each partition of a topic has one of its own.
        life = sum(actor in (None, send.actor) and index < send.invoked for actor, index in state.closes)
        line = (send.actor, send.partition, life, bool(state.sends.all))
        before = state.last_ok.get(line)
        if state.book.contested(send):
            state.unsure("O4", CONTESTED, send.invoked, send.completed)
            return
        if before is not None and place < before[0]:
            yield state.anomaly(
                "O4", "callbacks-out-of-order", "a send succeeded after one that was sent later",
                send.invoked, before[1], send.completed,
            )  # fmt: skip
            return
        if before is not None:
            state.judged["O4"] += 1
        state.last_ok[line] = (place, send.completed)

    def _same_answer(self, state: ClientState, send: Send) -> Iterator[Anomaly]:
        frames = state.by_digest.get(send.digest or "", [])
        if not frames:
            return
        if state.book.contested(send) or any(sent.contested for sent in frames):
            state.unsure("RCPT-01", CONTESTED, send.invoked, send.completed)
            return
        answers = [sent for sent in frames if sent.answer is not None and sent.answer.kind == "SEND_RECEIPT"]
        wanted = None if send.outcome == "DUP" else send.at
        if any(sent.answer is not None and position(sent.answer) == wanted for sent in answers):
            state.judged["RCPT-01"] += 1
            return
        yield state.anomaly(
            "RCPT-01", "result-without-its-receipt",
            f"the application was told {send.at or 'duplicate'}, which no receipt for this message said",
            send.invoked, frames[0].frame.index, send.completed,
        )  # fmt: skip

    def finish(self, state: ClientState) -> Iterator[Anomaly]:
        yield from self._unresolved(state)
        for sent in state.sends.all:
            if sent.contested:
                continue
            for member in members(sent.frame):
                send = state.book.only(member.digest)
                if send is not None and send.outcome != "open" and not state.book.contested(send):
                    yield from self._ambiguity(state, sent, send)
                    yield from self._refusal(state, sent, send)
                    yield from self._duplicate_is_success(state, sent, send)
        for head, sent in state.early:
            yield from self._future(state, head, sent)

    def _unresolved(self, state: ClientState) -> Iterator[Anomaly]:
        for send in state.book.sends.values():
            if send.error != "unfinished":
                continue
            healed = state.around.healed
            if healed is not None and send.completed_ns - send.invoked_ns >= UNFINISHED_NS:
                yield state.anomaly(
                    "O4", "never-resolved", "a send was still open long after the faults were healed",
                    send.invoked, send.completed, severity="liveness",
                )  # fmt: skip
            else:
                state.unsure("O4", "the run ended while a send was open", send.invoked)

    def _ambiguity(self, state: ClientState, sent: Sent, send: Send) -> Iterator[Anomaly]:
        closed = state.closed.get(sent.frame.connection or "")
        if sent.answer is not None or closed is None:
            return
        frames = state.by_digest.get(send.digest or "", [])
        if send.outcome == "FAIL":
            yield state.anomaly(
                "O7", "certain-failure-after-sending",
                "the client called a send certainly failed although its frame had left unanswered",
                sent.frame.index, closed.index, send.completed,
            )  # fmt: skip
        elif send.outcome in ("OK", "DUP") and not any(again.answer is not None for again in frames):
            yield state.anomaly(
                "O7", "success-without-an-answer", "a send succeeded although no answer for it ever arrived",
                sent.frame.index, closed.index, send.completed,
            )  # fmt: skip
        else:
            state.judged["O7"] += 1

    def _refusal(self, state: ClientState, sent: Sent, send: Send) -> Iterator[Anomaly]:
        if not sent.refused or sent.answer is None or send.completed < sent.answer.index:
            return
        if sent.answer.error == "PersistenceError":
            clause, name = "RECEIPT-06", "transient-error-given-to-the-application"
        elif sent.answer.error == "ChecksumError" and sent.frame.extra.get("checksum_ok") is True:
            clause, name = "CHECKSUM-02", "intact-message-given-up"
        else:
            return
        again = [other for other in state.by_digest.get(send.digest or "", []) if other.frame.index > sent.answer.index]
        if send.outcome in ("FAIL", "UNKNOWN") and send.error == "broker_error" and not again:
            yield state.anomaly(
                clause, name, f"{sent.answer.error} reached the application instead of being retried",
                sent.frame.index, sent.answer.index, send.completed, severity="conformance",
            )  # fmt: skip
        elif again or send.outcome in ("OK", "DUP"):
            state.judged[clause] += 1

    def _duplicate_is_success(self, state: ClientState, sent: Sent, send: Send) -> Iterator[Anomaly]:
        answer = sent.answer
        if not sent.duplicate or answer is None or sent.frame.index not in state.heads:
            return
        closed = state.closed.get(sent.frame.connection or "")
        if send.completed < answer.index or (closed is not None and closed.index < send.completed):
            return
        if send.outcome in ("OK", "DUP"):
            state.judged["RCPT-05"] += 1
        elif send.error == "timeout" and send.completed_ns - answer.time_ns < SETTLE_NS:
            # On a busy machine the time was over inside the client before the receipt was, and told after it.
            state.unsure("RCPT-05", "the send timed out just when the receipt arrived", send.completed)
        else:
            yield state.anomaly(
                "RCPT-05", "duplicate-receipt-not-a-success",
                f"the head of the queue was answered as a duplicate, yet the send ended {send.outcome}",
                sent.frame.index, answer.index, send.completed,
            )  # fmt: skip

    def _future(self, state: ClientState, head: Sent, sent: Sent) -> Iterator[Anomaly]:
        answer = sent.answer
        if answer is None:
            return
        closed = state.closed.get(sent.frame.connection or "")
        heads = [state.book.only(member.digest) for member in members(head.frame)]
        if any(send is not None and send.outcome in ("FAIL", "UNKNOWN") for send in heads):
            return  # The head may already have timed out inside the client when the receipt came.
        told = [
            send for member in members(sent.frame)
            if (send := state.book.only(member.digest)) is not None
            and send.outcome == "OK"
            and send.completed > answer.index
            and (closed is None or send.completed < closed.index)
        ]  # fmt: skip
        if told:
            yield state.anomaly(
                "RCPT-02", "receipt-from-the-future-accepted",
                f"a receipt for id {answer.sequence_id} was accepted while id {head.frame.sequence_id} was waiting",
                head.frame.index, answer.index, told[0].completed,
            )  # fmt: skip
        elif closed is not None:
            state.judged["RCPT-02"] += 1
        elif state.around.drained:
            yield state.anomaly(
                "RCPT-02", "kept-the-connection-after-a-gap",
                f"a receipt for id {answer.sequence_id} skipped id {head.frame.sequence_id}; the client stayed",
                head.frame.index, answer.index, severity="conformance",
            )  # fmt: skip


Place = tuple[int, int, int]


class RealTimeState(FoldState):
    """Per partition the highest acknowledged id; per open send what was the highest when it began."""

    __slots__ = ("books", "floors", "highest")

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.highest: dict[int | None, tuple[Place, int]] = {}
        self.books = SendBooks()
        self.floors: dict[int, dict[int | None, tuple[Place, int]]] = {}


class RealTime(Invariant[RealTimeState]):
    """A send begun after another was acknowledged gets a higher id, whoever the producers are (O5)."""

    name = "real-time-order"
    family = "receipts"
    clauses = ("O5",)

    def key(self, event: Event) -> Key | None:
        if event.layer != "api" or event.kind != "send" or event.topic is None or volatile((event.topic,)):
            return None
        return (event.topic,)

    def start(self, key: Key) -> RealTimeState:
        return RealTimeState(key)

    def step(self, state: RealTimeState, event: Event) -> Iterator[Anomaly]:
        if event.op is None:
            return
        state.books.take(event)
        if event.phase == "invoke":
            state.floors[event.op] = dict(state.highest)
            return
        floors = state.floors.pop(event.op, None)
        at = position(event)
        if event.phase != "ok" or at is None or floors is None or event.extra.get("duplicate"):
            return
        place = (*at, event.batch_index if event.batch_index is not None else -1)
        if state.books.contested(event):
            state.undecided.append(Undecided(clause="O5", key=state.key, reason=CONTESTED, witness=(event.index,)))
            return
        floor = floors.get(event.partition)
        if floor is not None:
            state.judged["O5"] += 1
            if place <= floor[0]:
                yield Anomaly(
                    name="id-below-an-earlier-one", clause="O5", key=state.key,
                    message=f"stored at {place[:2]}, though {floor[0][:2]} was acknowledged before the send began",
                    witness=(floor[1], event.index),
                )  # fmt: skip
        highest = state.highest.get(event.partition)
        if highest is None or place > highest[0]:
            state.highest[event.partition] = (place, event.index)

    def finish(self, state: RealTimeState) -> Iterable[Anomaly]:
        return ()


INVARIANTS: tuple[Invariant[Any], ...] = (Answering(), Durable(), ClientReceipts(), RealTime())
