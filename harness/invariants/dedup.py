"""Deduplication: what is stored once, what is answered as a duplicate, where a producer resumes.

Three folds, all keyed by (topic, producer name). They answer at the end, because whether deduplication was on for the
whole time is only known then; a history that switched it gives *undecided*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from harness.history.event import Event
from harness.invariants.core import Anomaly, Invariant, Key
from harness.invariants.final_read import ends_or_disturbs
from harness.invariants.producer_fold import SETTLE_NS, ProducerState, producer_key, volatile
from harness.invariants.sends import Send, SendBook
from harness.invariants.sequence import announced, covered, is_batch, is_chunk, is_inner_chunk, members, position
from harness.invariants.unanswered import CONTESTED, Sent, Unanswered

_FRAMES = ("SEND", "SEND_RECEIPT", "SEND_ERROR")

UNANNOUNCED = "a batch told the broker only the first of its ids (BATCH-06), so it could not know the others"


class StoredState(ProducerState):
    """Sends, frames that reached the broker, and stored entries of one producer."""

    __slots__ = ("arrived", "book", "entries", "known_to_api", "persistence_errors", "stored", "tapped")

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.book = SendBook()
        self.entries: list[Event] = []
        self.arrived: list[Event] = []
        self.tapped = False
        self.known_to_api = False
        self.persistence_errors: list[Event] = []
        self.stored: dict[str, list[Event]] = {}

    def copies(self, sequence_id: int) -> list[Event]:
        return [entry for entry in self.entries if not is_inner_chunk(entry) and sequence_id in covered(entry)]

    def holding(self, digest: str | None) -> list[Event]:
        return self.stored.get(digest, []) if digest is not None else []


class StoredOnce(Invariant[StoredState]):
    """Joins the outcome of every send with the final read of the topic (D1.1 to D1.7, D1.9, DEDUP-04)."""

    name = "stored-once"
    family = "dedup"
    clauses = ("D1.1", "D1.2", "D1.3", "D1.4", "D1.5", "D1.6", "D1.7", "D1.9", "DEDUP-04")

    def key(self, event: Event) -> Key | None:
        wanted = (
            (event.layer == "api" and event.kind in ("send", "producer"))
            or (event.layer == "log" and event.kind == "ENTRY")
            or (event.layer == "tap.broker" and event.kind == "SEND")
            or (event.layer == "tap.client" and event.kind in ("SEND", "SEND_ERROR"))
        )
        return producer_key(event) if wanted else None

    def broadcast(self, event: Event) -> bool:
        return ends_or_disturbs(event)

    def start(self, key: Key) -> StoredState:
        return StoredState(key)

    def step(self, state: StoredState, event: Event) -> Iterable[Anomaly]:
        if ends_or_disturbs(event):
            state.around.take(event)
        elif event.layer == "api":
            state.used(event)
            state.known_to_api = True
            if event.kind == "send":
                state.book.take(event)
            else:
                state.book.created(event)
        elif event.kind == "ENTRY":
            state.entries.append(event)
        elif event.kind == "SEND_ERROR":
            if event.error == "PersistenceError":
                state.persistence_errors.append(event)
        else:
            state.used(event)
            if event.layer == "tap.client":
                state.book.learn(event)
            else:
                state.tapped = True
                state.arrived.append(event)
        return ()

    def finish(self, state: StoredState) -> Iterator[Anomaly]:
        if volatile(state.key) or not (state.book.sends or state.arrived):
            return
        if not state.book.wired:
            for entry in state.entries:
                state.book.learn(entry)
        state.stored = _by_digest(state.entries)
        yield from self._no_phantoms(state)
        enabled = state.around.deduplication(state.first_use)
        if enabled is None:
            for clause in ("D1.1", "D1.3", "D1.4", "D1.5", "D1.6", "D1.9", "DEDUP-04"):
                state.unsure(clause, "whether deduplication was on is not known for the whole run")
            return
        if not state.around.log_complete:
            for clause in ("D1.1", "D1.3", "D1.4", "D1.5", "D1.9", "DEDUP-04"):
                state.unsure(clause, "there is no complete final read of the topic")
        if enabled:
            yield from self._unique(state)
            yield from self._order(state)
            yield from self._no_wedge(state)
            if state.around.log_complete:
                yield from self._outcomes_on(state)
                yield from self._prefix(state)
        elif state.around.log_complete:
            yield from self._outcomes_off(state)

    def _no_phantoms(self, state: StoredState) -> Iterator[Anomaly]:
        if not state.known_to_api:
            return
        for entry in state.entries:
            for member in members(entry):
                if member.digest is None:
                    continue
                sends = state.book.of(member.digest)
                if not sends:
                    yield state.anomaly(
                        "D1.2", "phantom", f"entry {position(entry)} holds a message nobody sent", entry.index
                    )
                    continue
                send = state.book.only(member.digest)
                if send is None:
                    continue
                expected = state.book.sequence_of(send)
                if expected is not None and member.sequence_id is not None and expected != member.sequence_id:
                    yield state.anomaly(
                        "D1.2", "stored-under-another-id",
                        f"sent as {expected}, stored as {member.sequence_id} at {position(entry)}",
                        send.invoked, entry.index,
                    )  # fmt: skip
                else:
                    state.judged["D1.2"] += 1

    def _unique(self, state: StoredState) -> Iterator[Anomaly]:
        arrivals: dict[int, list[Event]] = defaultdict(list)
        for frame in state.arrived:
            if not is_inner_chunk(frame) and frame.extra.get("checksum_ok") is not False:
                for sequence_id in covered(frame):
                    arrivals[sequence_id].append(frame)
        copies: dict[int, list[Event]] = defaultdict(list)
        announced_copies: dict[int, list[Event]] = defaultdict(list)
        for entry in state.entries:
            if is_inner_chunk(entry):
                continue
            wire = announced(entry)
            for sequence_id in covered(entry):
                copies[sequence_id].append(entry)
                if wire is not None and wire[0] <= sequence_id <= wire[1]:
                    announced_copies[sequence_id].append(entry)
        for sequence_id in sorted(copies.keys() | arrivals.keys()):
            stored, frames = copies[sequence_id], arrivals[sequence_id]
            if len(stored) > 1 and len(announced_copies[sequence_id]) < 2:
                state.unsure("D1.1", UNANNOUNCED, *(entry.index for entry in stored[:2]))
            elif len(stored) > 1:
                yield state.anomaly(
                    "D1.1", "stored-twice", f"id {sequence_id} is stored at {[position(entry) for entry in stored]}",
                    *(entry.index for entry in stored[:2]), *(frame.index for frame in frames[:2]),
                )  # fmt: skip
            elif state.around.log_complete and (len(frames) > 1 or (not state.tapped and stored)):
                state.judged["D1.1"] += 1
            connections = {frame.connection for frame in frames}
            if len(announced_copies[sequence_id]) > 1:
                yield state.anomaly(
                    "DEDUP-04", "stored-twice", f"id {sequence_id} is stored in two entries",
                    *(entry.index for entry in announced_copies[sequence_id][:2]),
                )  # fmt: skip
            elif state.around.log_complete and len(connections) > 1:
                state.judged["DEDUP-04"] += 1

    def _order(self, state: StoredState) -> Iterator[Anomaly]:
        whole = [entry for entry in state.entries if not is_chunk(entry) and announced(entry) and position(entry)]
        whole.sort(key=lambda entry: position(entry) or (0, 0))
        for before, after in pairwise(whole):
            lower, upper = announced(before), announced(after)
            if lower is not None and upper is not None and lower[1] >= upper[0]:
                yield state.anomaly(
                    "D1.6", "stored-out-of-order",
                    f"id {upper[0]} at {position(after)} follows id {lower[1]} at {position(before)}",
                    before.index, after.index,
                )  # fmt: skip
            else:
                state.judged["D1.6"] += 1

    def _no_wedge(self, state: StoredState) -> Iterator[Anomaly]:
        by_id = {state.book.sequence_of(send): send for send in state.book.sends.values()}
        for error in state.persistence_errors:
            send = by_id.get(error.sequence_id)
            if error.sequence_id is None or send is None:
                continue
            if send.outcome in ("OK", "DUP"):
                state.judged["D1.7"] += 1
            elif not state.around.calm_since(error.index) or not state.around.drained:
                state.unsure("D1.7", "a fault was in force after the error, or the run was not drained", error.index)
            elif (send.completed_ns if send.completed >= 0 else state.around.ended_ns) - error.time_ns < SETTLE_NS:
                state.unsure("D1.7", "the send ended too soon after the error", error.index)
            else:
                yield state.anomaly(
                    "D1.7", "wedged", f"id {error.sequence_id} never got past PersistenceError",
                    send.invoked, error.index, severity="liveness",
                )  # fmt: skip

    def _outcomes_on(self, state: StoredState) -> Iterator[Anomaly]:
        at = {position(entry): entry for entry in state.entries}
        highest_before = -1
        chunked = any(is_chunk(frame) for frame in (*state.entries, *state.arrived))
        for send in state.book.sends.values():
            sequence_id = state.book.sequence_of(send)
            regressed = send.explicit is not None and send.explicit < highest_before
            if sequence_id is not None:
                highest_before = max(highest_before, sequence_id)
            if state.book.contested(send):
                state.unsure("D1.3" if send.outcome == "OK" else "D1.4", CONTESTED, send.invoked)
                continue
            if send.outcome == "OK":
                yield from self._durable(state, send, at)
            elif send.outcome == "DUP":
                yield from self._honest(state, send, sequence_id, regressed)
            elif send.outcome in ("FAIL", "UNKNOWN"):
                if state.book.repeated(send):
                    state.unsure("D1.5", "the same payload was sent more than once", send.invoked)
                    continue
                stored = state.holding(send.digest)
                if not stored and chunked:
                    continue  # A chunked message cannot be recognised by the digests of its pieces.
                allowed = 0 if send.outcome == "FAIL" else 1
                if len(stored) > allowed:
                    yield state.anomaly(
                        "D1.5", "failed-but-stored" if allowed == 0 else "unknown-stored-twice",
                        f"a send that ended {send.outcome} is stored {len(stored)} times",
                        send.invoked, send.completed, *(entry.index for entry in stored[:2]),
                    )  # fmt: skip
                else:
                    state.judged["D1.5"] += 1

    def _durable(self, state: StoredState, send: Send, at: dict[tuple[int, int] | None, Event]) -> Iterator[Anomaly]:
        if state.book.repeated(send):
            state.unsure("D1.3", "the same payload was sent more than once", send.invoked)
            return
        if send.at is None:
            state.unsure("D1.3", "the acknowledgement carried no id", send.completed)
            return
        entry = at.get(send.at)
        if entry is None:
            yield state.anomaly(
                "D1.3", "acknowledged-but-missing", f"acknowledged at {send.at}, where this producer has no entry",
                send.invoked, send.completed,
            )  # fmt: skip
            return
        stored = _digest_at(entry, send.batch_index)
        copies = state.holding(send.digest)
        if stored is not None and stored != send.digest:
            yield state.anomaly(
                "D1.3", "another-message-there", f"the entry at {send.at} holds another message",
                send.completed, entry.index,
            )  # fmt: skip
        elif len(copies) > 1:
            yield state.anomaly(
                "D1.3", "stored-more-than-once", f"one message at {[position(copy) for copy in copies]}",
                send.completed, *(copy.index for copy in copies[:2]),
            )  # fmt: skip
        else:
            state.judged["D1.3"] += 1

    def _honest(self, state: StoredState, send: Send, sequence_id: int | None, regressed: bool) -> Iterator[Anomaly]:
        if sequence_id is None:
            state.unsure("D1.4", "the sequence id of the send is not known", send.completed)
            return
        if state.book.renumbered:
            state.unsure("D1.4", "a later producer was told to start counting anew", send.completed)
            return
        if self._beside_a_repeat(state, send):
            state.unsure("D1.4", "it shared a batch with an id sent before, which was dropped whole", send.completed)
            return
        holders = state.copies(sequence_id)
        reused = any(
            other is not send and state.book.sequence_of(other) == sequence_id for other in state.book.sends.values()
        )
        if not holders:
            # Ids at or below one already sent are dropped by right when the application itself went backwards.
            if not regressed:
                yield state.anomaly(
                    "D1.4", "duplicate-of-nothing", f"id {sequence_id} was called a duplicate, but nothing is stored",
                    send.invoked, send.completed,
                )  # fmt: skip
            return
        kept = {member.digest for member in members(holders[0]) if member.sequence_id == sequence_id}
        if kept - {None} and send.digest not in kept:
            if not reused or send.explicit is None:
                yield state.anomaly(
                    "D1.4", "duplicate-of-another-message",
                    f"id {sequence_id} was called a duplicate, but another message holds that id",
                    send.invoked, send.completed, holders[0].index,
                )  # fmt: skip
            return
        state.judged["D1.4"] += 1

    @staticmethod
    def _beside_a_repeat(state: StoredState, send: Send) -> bool:
        """Whether the batch that first carried a message began with an id sent before: DEDUP-05 drops it whole."""
        highest = -1
        for frame in state.arrived:
            wire = announced(frame)
            if wire is None:
                continue
            if any(member.digest == send.digest for member in members(frame)):
                return is_batch(frame) and wire[0] <= highest
            highest = max(highest, covered(frame)[-1])
        return False

    def _outcomes_off(self, state: StoredState) -> Iterator[Anomaly]:
        at = {position(entry): entry for entry in state.entries}
        arrived = _by_digest(state.arrived)
        chunked = any(is_chunk(frame) for frame in (*state.entries, *state.arrived))
        for send in state.book.sends.values():
            if state.book.repeated(send):
                state.unsure("D1.5", "the same payload was sent more than once", send.invoked)
                continue
            if state.book.contested(send):
                state.unsure("D1.5", CONTESTED, send.invoked)
                continue
            stored = state.holding(send.digest)
            frames = arrived.get(send.digest or "", [])
            entry = at.get(send.at) if send.at is not None else None
            if entry is not None and is_chunk(entry):
                state.judged["D1.5"] += 1
                continue
            if send.outcome != "OK" and not stored and chunked:
                continue
            problem = None
            if send.outcome == "OK" and not stored:
                problem = "acknowledged-but-missing"
            elif send.outcome == "FAIL" and stored:
                problem = "failed-but-stored"
            elif state.tapped and len(stored) > len(frames):
                problem = "more-copies-than-frames"
            if problem is not None:
                yield state.anomaly(
                    "D1.5", problem,
                    f"a send that ended {send.outcome} is stored {len(stored)} times from {len(frames)} frames",
                    send.invoked, *([send.completed] if send.completed >= 0 else []),
                    *(copy.index for copy in stored[:2]),
                )  # fmt: skip
            elif send.outcome in ("OK", "FAIL", "UNKNOWN"):
                state.judged["D1.5"] += 1

    def _prefix(self, state: StoredState) -> Iterator[Anomaly]:
        sends = list(state.book.sends.values())
        synchronous = all(
            before.completed >= 0 and before.completed < after.invoked for before, after in pairwise(sends)
        )
        crashed = any(sends[0].invoked < index for index in state.around.crashes) if sends else False
        if not synchronous or not crashed or any(state.book.repeated(send) for send in sends):
            return
        present = [bool(state.holding(send.digest)) for send in sends]
        at = {position(entry) for entry in state.entries if is_chunk(entry)}
        for place, send in enumerate(sends):
            later = next((other for other in range(place + 1, len(sends)) if present[other]), None)
            if send.outcome != "OK" or later is None or send.at in at:
                continue
            if not present[place]:
                yield state.anomaly(
                    "D1.9", "hole", "an acknowledged message is gone while a later one of its producer is stored",
                    send.completed, sends[later].invoked,
                )  # fmt: skip
            else:
                state.judged["D1.9"] += 1


def _by_digest(events: Iterable[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        for member in members(event):
            if member.digest is not None:
                found[member.digest].append(event)
    return found


def _digest_at(entry: Event, batch_index: int | None) -> str | None:
    found = members(entry)
    place = batch_index if batch_index is not None else 0
    return found[place].digest if place < len(found) else None


class AnswersState(ProducerState):
    """SENDs that reached the broker with their answers, in order."""

    __slots__ = ("entries", "sends")

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sends = Unanswered()
        self.entries: list[Event] = []


class DeduplicationAnswers(Invariant[AnswersState]):
    """What the broker answered to each SEND that reached it (DEDUP-01 to -03, -05, -06, -08, -09)."""

    name = "deduplication-answers"
    family = "dedup"
    clauses = ("DEDUP-01", "DEDUP-02", "DEDUP-03", "DEDUP-05", "DEDUP-06", "DEDUP-08", "DEDUP-09")

    def key(self, event: Event) -> Key | None:
        wanted = event.layer == "tap.broker" and event.kind in (*_FRAMES, "PRODUCER", "CLOSE_PRODUCER")
        return producer_key(event) if wanted or event.kind == "ENTRY" else None

    def broadcast(self, event: Event) -> bool:
        return ends_or_disturbs(event)

    def start(self, key: Key) -> AnswersState:
        return AnswersState(key)

    def step(self, state: AnswersState, event: Event) -> Iterable[Anomaly]:
        if ends_or_disturbs(event):
            state.around.take(event)
        elif event.kind == "ENTRY":
            state.entries.append(event)
        elif event.kind == "SEND":
            state.used(event)
            state.sends.sent(event)
        elif event.kind in ("PRODUCER", "CLOSE_PRODUCER"):
            state.sends.excuse(event.connection or "")
        else:
            state.sends.answered(event)
        return ()

    def finish(self, state: AnswersState) -> Iterator[Anomaly]:
        usable = [sent for sent in state.sends.all if sent.frame.extra.get("checksum_ok") is not False]
        if not usable or volatile(state.key):
            return
        enabled = state.around.deduplication(state.first_use)
        if enabled is None:
            for clause in self.clauses:
                state.unsure(clause, "whether deduplication was on is not known for the whole run")
        elif enabled:
            yield from self._on(state, usable)
        else:
            yield from self._off(state, usable)

    def _on(self, state: AnswersState, sends: list[Sent]) -> Iterator[Anomaly]:
        judged_sends = [sent for sent in sends if not is_inner_chunk(sent.frame)]
        acknowledged = sorted(
            (sent.answer.index, ids[0] if sent.contested else ids[1])
            for sent in judged_sends
            if sent.stored and sent.answer is not None and (ids := announced(sent.frame)) is not None
        )
        pushed = persisted = -1
        passed = 0
        for sent in sends:
            ids = announced(sent.frame)
            if ids is None:
                continue
            while passed < len(acknowledged) and acknowledged[passed][0] < sent.frame.index:
                persisted = max(persisted, acknowledged[passed][1])
                passed += 1
            if sent.contested:
                state.unsure("DEDUP-08" if is_chunk(sent.frame) else "DEDUP-01", CONTESTED, sent.frame.index)
                pushed = max(pushed, ids[1])
                continue
            if is_inner_chunk(sent.frame):
                if sent.duplicate and sent.answer is not None:
                    yield state.anomaly(
                        "DEDUP-08", "chunk-taken-for-a-duplicate",
                        f"piece {sent.frame.chunk_id} of {sent.frame.num_chunks} was answered as a duplicate",
                        sent.frame.index, sent.answer.index,
                    )  # fmt: skip
                elif sent.stored:
                    state.judged["DEDUP-08"] += 1
                continue
            if ids[0] <= persisted:
                yield from self._known_duplicate(state, sent, ids, persisted)
            elif ids[0] > pushed and sent.answer is not None and not sent.refused:
                if sent.duplicate:
                    yield state.anomaly(
                        "DEDUP-03", "fresh-id-dropped",
                        f"id {ids[0]} is above every id sent before, yet was answered as a duplicate",
                        sent.frame.index, sent.answer.index,
                    )  # fmt: skip
                else:
                    state.judged["DEDUP-03"] += 1
            pushed = max(pushed, ids[1])
        yield from self._resent(state, judged_sends)

    def _known_duplicate(
        self, state: AnswersState, sent: Sent, ids: tuple[int, int], persisted: int
    ) -> Iterator[Anomaly]:
        if sent.answer is None:
            return
        straddles = is_batch(sent.frame) and covered(sent.frame)[-1] > persisted
        clause = "DEDUP-05" if straddles else "DEDUP-01"
        certain = not straddles and not state.around.broker_disturbed
        if sent.refused and sent.answer.error == "PersistenceError" and certain:
            yield state.anomaly(
                clause, "duplicate-refused",
                f"{persisted} was acknowledged already, yet ids {ids[0]}..{ids[1]} were answered with an error",
                sent.frame.index, sent.answer.index,
            )  # fmt: skip
        elif sent.refused:
            state.unsure(clause, f"the duplicate was refused with {sent.answer.error}", sent.answer.index)
        elif sent.stored:
            yield state.anomaly(
                clause, "duplicate-stored",
                f"ids {ids[0]}..{ids[1]} were stored although {persisted} was already acknowledged",
                sent.frame.index, sent.answer.index,
            )  # fmt: skip
        else:
            state.judged[clause] += 1

    def _resent(self, state: AnswersState, sends: list[Sent]) -> Iterator[Anomaly]:
        by_id: dict[int, list[Sent]] = defaultdict(list)
        for sent in sends:
            ids = announced(sent.frame)
            if ids is not None:
                by_id[ids[0]].append(sent)
        backward = _went_backward(sends)
        for sequence_id, attempts in by_id.items():
            for place, again in enumerate(attempts[1:], start=1):
                if again.answer is None or again.refused:
                    continue
                before = attempts[:place]
                overlapping = [sent for sent in before if sent.answer is None or sent.answer.index > again.frame.index]
                after_error = [
                    sent for sent in before
                    if sent.refused and sent.answer is not None and sent.answer.error == "PersistenceError"
                ]  # fmt: skip
                for clause, provoked in (("DEDUP-02", overlapping), ("DEDUP-06", after_error)):
                    if provoked and sequence_id not in backward:
                        yield from self._one_copy(state, clause, sequence_id, provoked[0], again)

    def _one_copy(
        self, state: AnswersState, clause: str, sequence_id: int, first: Sent, again: Sent
    ) -> Iterator[Anomaly]:
        answer = again.answer
        if answer is None:
            return
        copies = [
            entry for entry in state.entries
            if not is_inner_chunk(entry) and (ids := announced(entry)) is not None and ids[0] <= sequence_id <= ids[1]
        ]  # fmt: skip
        if len(copies) > 1:
            yield state.anomaly(
                clause, "stored-twice", f"id {sequence_id}, sent again while undecided, is stored {len(copies)} times",
                first.frame.index, again.frame.index, copies[0].index, copies[1].index,
            )  # fmt: skip
        elif not copies and state.around.log_complete:
            yield state.anomaly(
                clause, "acknowledged-and-lost",
                f"id {sequence_id} was acknowledged when sent again, but is not stored",
                first.frame.index, again.frame.index, answer.index,
            )  # fmt: skip
        elif not state.around.log_complete:
            state.unsure(clause, "there is no complete final read of the topic", again.frame.index)
        else:
            state.judged[clause] += 1

    def _off(self, state: AnswersState, sends: list[Sent]) -> Iterator[Anomaly]:
        seen: set[int] = set()
        for sent in sends:
            ids = announced(sent.frame)
            if ids is None or sent.answer is None or sent.refused:
                continue
            if sent.duplicate:
                yield state.anomaly(
                    "DEDUP-09", "duplicate-without-deduplication",
                    f"id {ids[0]} was answered as a duplicate although deduplication is off",
                    sent.frame.index, sent.answer.index,
                )  # fmt: skip
            elif ids[0] in seen and not is_chunk(sent.frame):
                state.judged["DEDUP-09"] += 1
            seen.add(ids[0])


def _went_backward(sends: list[Sent]) -> set[int]:
    """Ids that first arrived after a higher one: the application's choice, and dropped by right."""
    found: set[int] = set()
    seen: set[int] = set()
    highest = -1
    for sent in sends:
        ids = announced(sent.frame)
        if ids is None:
            continue
        if ids[0] not in seen and ids[0] <= highest:
            found.add(ids[0])
        seen.add(ids[0])
        highest = max(highest, ids[1])
    return found


def _persisted_before(sends: list[Sent], index: int) -> int:
    """The highest id whose real receipt had left the broker before the event at ``index``; -1 for none."""
    highest = -1
    for sent in sends:
        if sent.stored and sent.answer is not None and sent.answer.index < index:
            ids = announced(sent.frame)
            highest = max(highest, ids[0 if sent.contested else 1] if ids is not None else -1)
    return highest


class Floor(NamedTuple):
    """The highest acknowledged id, and the highest of those that the broker was told; -1 for none."""

    acknowledged: int
    announced: int


class ResumeState(ProducerState):
    """Registrations and what had been sent and acknowledged before each, on both sides."""

    __slots__ = ("acknowledged", "announced", "book", "broker", "client", "registered", "sent", "sent_by_api")

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.book = SendBook()
        self.broker = Unanswered()
        self.sent = -1
        self.sent_by_api = -1
        self.registered: set[tuple[str, str, str]] = set()
        self.announced: set[int] = set()
        self.client: dict[tuple[str, int | None], tuple[Floor, bool]] = {}
        self.acknowledged: list[tuple[str, Event, Floor, int, int]] = []


class Resume(Invariant[ResumeState]):
    """``last_sequence_id`` of a registration lies between what was acknowledged and what was sent (D1.8, DEDUP-07)."""

    name = "resume-point"
    family = "dedup"
    clauses = ("D1.8", "DEDUP-07")

    def key(self, event: Event) -> Key | None:
        wanted = (event.layer == "api" and event.kind == "send") or (
            event.layer in ("tap.client", "tap.broker")
            and event.kind in (*_FRAMES, "PRODUCER", "PRODUCER_SUCCESS", "CLOSE_PRODUCER")
        )
        return producer_key(event) if wanted else None

    def broadcast(self, event: Event) -> bool:
        return event.layer == "fault"

    def start(self, key: Key) -> ResumeState:
        return ResumeState(key)

    def step(self, state: ResumeState, event: Event) -> Iterable[Anomaly]:
        if event.layer == "fault":
            state.around.take(event)
            return ()
        state.used(event)
        if event.layer == "api":
            state.book.take(event)
        elif event.kind == "SEND":
            last = max(covered(event), default=-1)
            if event.layer == "tap.broker":
                state.broker.sent(event)
                state.sent = max(state.sent, last)
            else:
                state.book.learn(event)
                state.announced.update(_announced_ids(event))
                state.sent_by_api = max(state.sent_by_api, last)
        elif event.kind in ("SEND_RECEIPT", "SEND_ERROR"):
            if event.layer == "tap.broker":
                state.broker.answered(event)
        elif event.kind == "PRODUCER":
            self._registering(state, event)
        elif event.kind == "PRODUCER_SUCCESS":
            self._registered(state, event)
        else:
            state.registered.discard(_registration(event))
        return ()

    def _registering(self, state: ResumeState, event: Event) -> None:
        if event.layer == "tap.broker":
            whole = [sent for sent in state.broker.all if not is_inner_chunk(sent.frame)]
            persisted = _persisted_before(whole, event.index)
            floor = Floor(persisted, persisted)
        else:
            known = {
                sequence_id for send in state.book.sends.values()
                if send.outcome in ("OK", "DUP") and (sequence_id := state.book.sequence_of(send)) is not None
            }  # fmt: skip
            floor = Floor(max(known, default=-1), max(known & state.announced, default=-1))
        # Asking twice on one connection is answered without the field (PROD-18), which says nothing about the past.
        repeated = _registration(event) in state.registered
        state.registered.add(_registration(event))
        state.client[(event.connection or "", event.request_id)] = (floor, repeated)

    def _registered(self, state: ResumeState, event: Event) -> None:
        asked = state.client.pop((event.connection or "", event.request_id), None)
        if asked is None or asked[1]:
            return
        last = event.extra.get("last_sequence_id")
        ceiling = state.sent if event.layer == "tap.broker" else max(state.sent_by_api, _highest_explicit(state.book))
        state.acknowledged.append((event.layer, event, asked[0], ceiling, -1 if last is None else int(last)))

    def finish(self, state: ResumeState) -> Iterator[Anomaly]:
        if not state.acknowledged or volatile(state.key):
            return
        enabled = state.around.deduplication(state.first_use)
        if enabled is None:
            for clause in self.clauses:
                state.unsure(clause, "whether deduplication was on is not known for the whole run")
        if not enabled:
            return
        for layer, event, floor, ceiling, last in state.acknowledged:
            clause = "DEDUP-07" if layer == "tap.broker" else "D1.8"
            if last < floor.announced:
                yield state.anomaly(
                    clause, "resumes-too-low",
                    f"last_sequence_id {last}, but {floor.announced} was acknowledged before", event.index,
                )  # fmt: skip
            elif last < floor.acknowledged:
                state.unsure(clause, UNANNOUNCED, event.index)
            elif last > ceiling:
                yield state.anomaly(
                    clause, "resumes-too-high", f"last_sequence_id {last}, but nothing above {ceiling} was ever sent",
                    event.index,
                )  # fmt: skip
            elif ceiling >= 0:
                state.judged[clause] += 1


def _announced_ids(frame: Event) -> range:
    wire = announced(frame)
    return range(0) if wire is None else range(wire[0], wire[1] + 1)


def _registration(event: Event) -> tuple[str, str, str]:
    return event.layer, event.connection or "", str(event.extra.get("producer_id"))


def _highest_explicit(book: SendBook) -> int:
    return max([-1, *(send.explicit for send in book.sends.values() if send.explicit is not None)])


INVARIANTS: tuple[Invariant[Any], ...] = (
    StoredOnce(),
    DeduplicationAnswers(),
    Resume(),
)
