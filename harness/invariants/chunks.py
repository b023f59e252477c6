"""Chunked messages: labels, storage, reassembly, expiry, acknowledgement of all pieces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.history.event import Event
from harness.invariants.acknowledged import Acknowledged, Position, acked_ids, position_in, position_of
from harness.invariants.calm import Calm, calm_or_storm
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.members import Member, Members
from harness.invariants.sends import SendBooks
from harness.invariants.sessions import Session, Sessions
from harness.invariants.unanswered import CONTESTED, Unanswered

EXPIRY_MS = 60_000
CONTEXTS = 10
SETTLE_NS = 1_000_000_000
HANDOVER_NS = 50_000_000
"""How long a receive must go on after a message is complete, before it is missed."""


@dataclass
class Piece:
    """One stored or delivered piece."""

    position: Position
    number: int
    count: int
    index: int
    time_ns: int
    size: int


@dataclass
class Assembly:
    """A completed run of pieces 0..n-1 in order, and the superseded duplicates and restarts before it."""

    uuid: str
    pieces: list[Piece]
    spare: list[Piece]
    completed: int

    @property
    def first(self) -> Position:
        return self.pieces[0].position

    @property
    def last(self) -> Position:
        return self.pieces[-1].position

    @property
    def span_ns(self) -> int:
        return self.pieces[-1].time_ns - self.pieces[0].time_ns


@dataclass
class Context:
    """A message that is being assembled."""

    uuid: str
    pieces: list[Piece] = field(default_factory=list)
    spare: list[Piece] = field(default_factory=list)


class Scan:
    """The reference automaton: starts at piece 0, takes last+1, ignores repeats, restarts at 0, drops on a gap."""

    def __init__(self) -> None:
        self.open: dict[str, Context] = {}
        self.done: list[Assembly] = []
        self.discarded: list[Piece] = []
        self.ever: dict[str, int] = {}

    def take(self, uuid: str, piece: Piece) -> Assembly | None:
        """Feed the next piece; answer the assembly it completes."""
        context = self.open.get(uuid)
        if piece.number == 0:
            spare = [*context.spare, *context.pieces] if context is not None else []
            context = Context(uuid, [piece], spare)
            self.open.pop(uuid, None)
            self.open[uuid] = context
        elif context is None or piece.number >= piece.count:
            self.discarded.append(piece)
            return None
        elif piece.number <= context.pieces[-1].number:
            context.spare.append(piece)
            return None
        elif piece.number != context.pieces[-1].number + 1 or piece.count != context.pieces[0].count:
            self.discarded.extend([*context.pieces, piece])
            del self.open[uuid]
            return None
        else:
            context.pieces.append(piece)
        if len(context.pieces) < piece.count:
            return None
        del self.open[uuid]
        assembly = Assembly(uuid, context.pieces, context.spare, piece.index)
        self.done.append(assembly)
        return assembly


def piece_of(event: Event) -> Piece | None:
    """The piece a MESSAGE or ENTRY carries, or None when it is a whole message."""
    position = position_of(event)
    if event.chunk_uuid is None or event.chunk_id is None or event.num_chunks is None or position is None:
        return None
    return Piece(position, event.chunk_id, event.num_chunks, event.index, event.time_ns, event.payload_size or 0)


@dataclass
class Labels:
    """The pieces of one uuid that left through one connection, in order."""

    sequence: int | None
    count: int
    total: int | None
    sizes: dict[int, int] = field(default_factory=dict)
    last: int = -1
    index: int = -1
    broken: bool = False


class ProducerState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.labels: dict[tuple[str, str], Labels] = {}
        self.content: dict[tuple[str, int], tuple[str, int]] = {}
        self.last_piece: dict[str, int] = {}
        self.renewed: dict[str | None, int] = {}
        """Where a producer was made, by name: it counts its messages anew, and so do the uuids made of that."""
        self.waiting: dict[str | None, Unanswered] = {}
        self.books = SendBooks()
        self.stored: dict[Position, Event] = {}
        self.at: dict[Position, Event] = {}
        self.receipts: dict[Position, int] = {}
        self.sends: dict[int, Event] = {}
        self.completed: list[Event] = []
        self.entries: dict[Position, Event] = {}
        self.complete = False


class ChunkPublishing(Invariant[ProducerState]):
    """CHUNK-02, CHUNK-03 at tap B; CHUNK-04 at tap A and in the LOG; CHUNK-05, K6 on completions. By topic."""

    name = "chunk-publishing"
    family = "chunks"
    clauses = ("CHUNK-02", "CHUNK-03", "CHUNK-04", "CHUNK-05", "K6")

    def key(self, event: Event) -> Key | None:
        wanted = (
            event.layer == "log"
            or event.kind in ("SEND", "SEND_RECEIPT", "SEND_ERROR", "MESSAGE")
            or (event.layer == "api" and event.kind in ("send", "producer"))
        )
        return (event.topic,) if wanted and event.topic else None

    def start(self, key: Key) -> ProducerState:
        return ProducerState(key)

    def step(self, state: ProducerState, event: Event) -> Iterable[Anomaly]:
        if event.layer == "tap.client":
            if event.kind == "SEND" and event.chunk_uuid is not None:
                yield from self._labels(state, event)
            elif event.kind == "SEND" and event.chunk_id is None and event.extra.get("is_chunk"):
                yield from self._unlabelled(state, event)
            elif event.kind == "SEND_RECEIPT":
                position = position_of(event)
                if position is not None:
                    state.receipts.setdefault(position, event.index)
        elif event.layer == "tap.broker":
            self._stored(state, event)
        elif event.kind == "ENTRY":
            position = position_of(event)
            if position is not None:
                state.entries[position] = event
        elif event.kind == "LOG_END":
            state.complete = event.extra.get("complete") is True
        elif event.kind == "producer":
            if event.phase == "invoke":
                state.renewed[event.producer] = event.index
        elif event.layer == "api" and event.op is not None:
            state.books.take(event)
            if event.phase == "invoke":
                state.sends[event.op] = event
            elif event.phase == "ok" and event.op in state.sends:
                state.completed.append(event)

    @staticmethod
    def _unlabelled(state: ProducerState, event: Event) -> Iterable[Anomaly]:
        state.judged["CHUNK-03"] += 1
        yield Anomaly(
            name="chunk-without-labels",
            clause="CHUNK-03",
            key=state.key,
            severity="conformance",
            witness=(event.index,),
            message="a SEND says it is a chunk but carries no chunk labels",
        )

    @staticmethod
    def _forget_former(state: ProducerState, event: Event, uuid: str) -> None:
        """What a uuid stood for in the hands of an earlier producer of that name."""
        last, state.last_piece[uuid] = state.last_piece.get(uuid), event.index
        if last is not None and last < state.renewed.get(event.producer, -1):
            state.content = {name: value for name, value in state.content.items() if name[0] != uuid}
            state.labels = {name: value for name, value in state.labels.items() if name[1] != uuid}

    def _labels(self, state: ProducerState, event: Event) -> Iterable[Anomaly]:
        uuid, number, count = event.chunk_uuid or "", event.chunk_id, event.num_chunks
        total = (event.extra.get("metadata") or {}).get("total_chunk_msg_size")
        size = event.payload_size
        problem = None
        state.judged["CHUNK-03"] += 1
        self._forget_former(state, event, uuid)
        before = state.labels.get((event.connection or "", uuid))
        if number is None or count is None or not 0 <= number < count:
            problem = f"piece {number} of {count}"
        elif count == 1:
            problem = "a message of one piece carries chunk labels"
        elif event.extra.get("is_chunk") is False:
            problem = "a piece is not marked as a chunk in its SEND"
        elif before is not None and before.broken:
            return
        elif before is not None and number > 0:
            if (event.sequence_id, count, total) != (before.sequence, before.count, before.total):
                problem = "two pieces of one uuid differ in sequence id, number of pieces or total size"
            elif number > before.last + 1:
                problem = f"piece {number} followed piece {before.last}"
        if problem is None and event.payload_digest is not None and number is not None:
            known = state.content.setdefault((uuid, number), (event.payload_digest, event.index))
            if known[0] != event.payload_digest:
                # Clients build the uuid from producer name and sequence id; a new producer with old ids repeats it.
                state.undecided.append(
                    Undecided(
                        clause="CHUNK-03",
                        key=state.key,
                        witness=(known[1], event.index),
                        reason=f"uuid {uuid} stood for two messages; the application may have repeated an id",
                    )
                )
                return
        if problem is not None:
            if before is not None:
                before.broken = True
            yield Anomaly(
                name="wrong-chunk-labels",
                clause="CHUNK-03",
                key=state.key,
                message=problem,
                severity="conformance",
                witness=(event.index,) if before is None or before.index < 0 else (before.index, event.index),
            )
            return
        if before is None or number == 0:
            before = Labels(event.sequence_id, count or 0, total)
            state.labels[(event.connection or "", uuid)] = before
            if number:
                # A re-send after a reconnect may begin inside the message.
                before.last = number - 1
        before.last, before.index = max(before.last, number or 0), event.index
        if size is not None and number is not None:
            before.sizes[number] = size
        if before.last + 1 == before.count == len(before.sizes):
            yield from self._sizes(state, before, event)

    @staticmethod
    def _sizes(state: ProducerState, labels: Labels, event: Event) -> Iterable[Anomaly]:
        state.judged["CHUNK-02"] += 1
        sizes = [labels.sizes[number] for number in range(labels.count)]
        full = set(sizes[:-1])
        wrong_total = labels.total is not None and sum(sizes) != labels.total
        if len(full) != 1 or not 0 < sizes[-1] <= max(full) or wrong_total:
            yield Anomaly(
                name="wrong-piece-sizes",
                clause="CHUNK-02",
                key=state.key,
                severity="conformance",
                witness=(event.index,),
                message=f"pieces of {sizes} bytes, total said to be {labels.total}",
            )

    @staticmethod
    def _stored(state: ProducerState, event: Event) -> None:
        if event.kind == "SEND":
            state.waiting.setdefault(event.producer, Unanswered()).sent(event)
        elif event.kind in ("SEND_RECEIPT", "SEND_ERROR"):
            sent = state.waiting.setdefault(event.producer, Unanswered()).answered(event)
            position = position_of(event)
            if sent is None or position is None or sent.frame.chunk_uuid is None:
                return
            if sent.contested:
                state.undecided.append(
                    Undecided(clause="CHUNK-04", key=state.key, reason=CONTESTED, witness=(event.index,))
                )
            else:
                state.stored.setdefault(position, sent.frame)
        elif event.kind == "MESSAGE" and event.chunk_uuid is not None:
            position = position_of(event)
            if position is not None:
                state.at.setdefault(position, event)

    def finish(self, state: ProducerState) -> Iterable[Anomaly]:
        if state.complete:
            for position, sent in state.stored.items():
                state.judged["CHUNK-04"] += 1
                entry = state.entries.get(position)
                if entry is None or (entry.chunk_uuid, entry.chunk_id) != (sent.chunk_uuid, sent.chunk_id):
                    yield Anomaly(
                        name="piece-not-stored",
                        clause="CHUNK-04",
                        key=state.key,
                        witness=(sent.index,) if entry is None else (sent.index, entry.index),
                        message=f"piece {sent.chunk_id} of {sent.chunk_uuid} was confirmed at {position}, "
                        "where the topic has something else",
                    )
        elif state.stored:
            state.undecided.append(Undecided(clause="CHUNK-04", key=state.key, reason="no complete read of the topic"))
        for done in state.completed:
            if state.books.contested(done):
                state.undecided.append(
                    Undecided(clause="CHUNK-05", key=state.key, reason=CONTESTED, witness=(done.index,))
                )
            else:
                yield from self._completion(state, done)

    @staticmethod
    def _completion(state: ProducerState, done: Event) -> Iterable[Anomaly]:
        position = position_of(done)
        if position is None:
            return
        piece = state.stored.get(position) or state.entries.get(position) or state.at.get(position)
        if piece is None or piece.chunk_uuid is None or piece.num_chunks is None:
            return
        state.judged["CHUNK-05"] += 1
        first = position_in(done.extra.get("first_chunk"))
        if piece.chunk_id != piece.num_chunks - 1:
            yield Anomaly(
                name="id-is-not-the-last-piece",
                clause="CHUNK-05",
                key=state.key,
                witness=(piece.index, done.index),
                message=f"the send was answered with {position}, which is piece {piece.chunk_id} of {piece.num_chunks}",
            )
            return
        if first is not None:
            head = state.stored.get(first) or state.entries.get(first) or state.at.get(first)
            if head is not None and (head.chunk_uuid, head.chunk_id) != (piece.chunk_uuid, 0):
                yield Anomaly(
                    name="first-is-not-the-first-piece",
                    clause="CHUNK-05",
                    key=state.key,
                    witness=(head.index, done.index),
                    message=f"{first} is not piece 0 of the message at {position}",
                )
        pieces = {
            sent.chunk_id: place
            for place, sent in state.stored.items()
            if sent.chunk_uuid == piece.chunk_uuid and place <= position
        }
        if len(pieces) == piece.num_chunks and state.receipts:
            state.judged["K6"] += 1
            late = [place for place in pieces.values() if state.receipts.get(place, done.index) >= done.index]
            if late and sum(sent.chunk_uuid == piece.chunk_uuid for sent in state.stored.values()) == piece.num_chunks:
                yield Anomaly(
                    name="completed-before-all-receipts",
                    clause="K6",
                    key=state.key,
                    witness=(state.stored[late[0]].index, done.index),
                    message=f"the send was reported stored before the receipt for {late[0]} had arrived",
                )


@dataclass(eq=False)
class Reader:
    """What one consumer was sent (its own scan) and what its application got of it."""

    scan: Scan = field(default_factory=Scan)
    crowd: int = 0
    spoiled: bool = False
    acked: Acknowledged = field(default_factory=Acknowledged)
    ack_times: dict[Position, int] = field(default_factory=dict)
    owners: dict[int, tuple[Session, bool, int]] = field(default_factory=dict)
    received: dict[Position, list[int]] = field(default_factory=dict)
    waited_ns: int = 0
    evicted: dict[str, tuple[Context, int, int]] = field(default_factory=dict)
    expired: set[str] = field(default_factory=set)
    app_acked: dict[Position, tuple[int, int]] = field(default_factory=dict)
    app_nacked: dict[Position, tuple[int, int]] = field(default_factory=dict)
    completed_by: dict[Position, int] = field(default_factory=dict)
    seen: dict[str, list[Piece]] = field(default_factory=dict)
    crowded_until: int = -1


class ReassemblyState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.members = Members()
        self.sessions = Sessions("tap.client")
        self.calm = Calm()
        self.readers: dict[str, Reader] = {}
        self.log = Scan()
        self.sent: dict[str, int] = {}
        self.sent_twice: set[str] = set()
        self.topic_pieces: dict[Position, Event] = {}
        self.last_ns = 0
        self.quiet_ns: int | None = None
        self.present: set[Session] = set()
        self.alive: set[str] = set()
        self.ops: dict[int, tuple[str, str, Position, int]] = {}


class ChunkReassembly(Invariant[ReassemblyState]):
    """Delivery, expiry and acknowledgement of chunked messages against a clean scan of the pieces. Keyed by topic.

    Allowed losses are never blamed: span over the expiry time, eviction with or without auto-ack, damage, a seek.
    """

    name = "chunk-reassembly"
    family = "chunks"
    clauses = (
        "K1",
        "K2",
        "K3",
        "K4",
        "K5",
        "K7",
        "CHUNK-06",
        "CHUNK-07",
        "CHUNK-09",
        "CHUNK-10",
        "CHUNK-EXP-01",
        "CHUNK-EXP-02",
        "CHUNK-EXP-03",
        "CHUNK-EXP-04",
        "CHUNK-EXP-05",
    )

    def key(self, event: Event) -> Key | None:
        wanted = (
            event.layer == "api"
            or event.kind == "ENTRY"
            or (event.layer == "tap.client" and event.kind not in ("SEND", "SEND_RECEIPT", "FLOW"))
        )
        return (event.topic,) if wanted and event.topic else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> ReassemblyState:
        return ReassemblyState(key)

    def step(self, state: ReassemblyState, event: Event) -> Iterable[Anomaly]:
        state.last_ns = max(state.last_ns, event.time_ns)
        state.members.observe(event)
        state.sessions.observe(event)
        if state.calm.observe(event):
            state.quiet_ns = event.time_ns
            state.present = {session for session in state.sessions.all if session.live}
            state.alive = {name for name, member in state.members.by_name.items() if member.alive}
        elif event.layer == "log":
            piece = piece_of(event)
            if piece is not None:
                state.log.take(event.chunk_uuid or "", piece)
        elif event.layer == "api":
            yield from self._api(state, event)
        elif event.layer == "tap.client" and event.consumer is not None:
            reader = state.readers.setdefault(event.consumer, Reader())
            session = state.sessions.of(event)
            if event.kind == "MESSAGE" and session is not None:
                self._piece(state, reader, session, event)
            elif event.kind == "ACK":
                yield from self._acked(state, reader, event)
            elif event.kind == "REDELIVER_UNACKNOWLEDGED_MESSAGES":
                yield from self._redeliver(state, reader, event)
            elif event.kind in ("SEEK", "SUBSCRIBE"):
                reader.spoiled |= event.kind == "SEEK"

    def _limits(self, state: ReassemblyState, consumer: str) -> tuple[Member | None, int, int]:
        member = state.members.by_name.get(consumer)
        if member is None:
            return None, EXPIRY_MS * 1_000_000, CONTEXTS
        most = member.options.get("max_pending_chunked")
        return member, member.milliseconds("expire_chunks_ms", EXPIRY_MS), CONTEXTS if most is None else int(most)

    def _piece(self, state: ReassemblyState, reader: Reader, session: Session, event: Event) -> None:
        piece = piece_of(event)
        if piece is None:
            return
        state.topic_pieces.setdefault(piece.position, event)
        if event.extra.get("checksum_ok") is False:
            reader.spoiled = True
            return
        uuid = event.chunk_uuid or ""
        _, _, most = self._limits(state, event.consumer or "")
        reader.seen.setdefault(uuid, []).append(piece)
        assembly = reader.scan.take(uuid, piece)
        if assembly is not None:
            reader.completed_by[assembly.last] = reader.completed_by.get(assembly.last, 0) + 1
            crowded = reader.crowded_until >= assembly.pieces[0].index
            reader.owners[assembly.completed] = (session, crowded, len(reader.scan.discarded))
            return
        if most > 0 and len(reader.scan.open) > most:
            reader.crowded_until = event.index
            oldest = next(iter(reader.scan.open))
            reader.evicted.setdefault(oldest, (reader.scan.open.pop(oldest), event.index, event.time_ns))
        elif most > 0 and len(reader.scan.open) == most:
            # Late expiry of a context may leave the client with one more than the clean scan: do not judge the edge.
            reader.crowd = max(reader.crowd, most)

    def _api(self, state: ReassemblyState, event: Event) -> Iterable[Anomaly]:
        if event.kind == "send" and event.phase == "invoke" and event.payload_digest is not None:
            if event.payload_digest in state.sent:
                state.sent_twice.add(event.payload_digest)
            state.sent.setdefault(event.payload_digest, event.index)
            return
        if event.consumer is None or event.op is None:
            return
        reader = state.readers.setdefault(event.consumer, Reader())
        position = position_of(event)
        if event.kind in ("ack", "ack_cumulative", "nack"):
            if event.phase == "invoke" and position is not None:
                state.ops[event.op] = (event.kind, event.consumer, position, event.index)
            elif event.phase == "ok" and event.op in state.ops:
                verb, _, place, called = state.ops.pop(event.op)
                if verb == "nack":
                    reader.app_nacked.setdefault(place, (called, event.time_ns))
                elif verb == "ack":
                    reader.app_acked.setdefault(place, (called, event.time_ns))
        elif event.kind == "seek":
            reader.spoiled = True
        elif event.kind == "receive" and event.phase == "ok":
            reader.waited_ns = event.time_ns
            if event.payload_digest and position is not None:
                yield from self._received(state, reader, position, event)

    def _received(self, state: ReassemblyState, reader: Reader, position: Position, event: Event) -> Iterable[Anomaly]:
        first = position_in(event.extra.get("first_chunk"))
        piece = state.topic_pieces.get(position)
        if piece is None and first is None:
            return
        key = (*state.key, event.consumer or "")
        times = reader.received.setdefault(position, [])
        times.append(event.index)
        if not reader.seen:
            return
        whole = [assembly for assembly in reader.scan.done if assembly.last == position]
        state.judged["K1"] += 1
        if not whole:
            yield Anomaly(
                name="delivered-without-all-pieces",
                clause="K1",
                key=key,
                witness=(event.index,) if piece is None else (piece.index, event.index),
                message=f"{position} was handed out, but the pieces 0..n-1 had not arrived in order",
            )
            return
        if first is not None and all(assembly.first != first for assembly in whole):
            yield Anomaly(
                name="wrong-first-piece",
                clause="K1",
                key=key,
                witness=(whole[-1].completed, event.index),
                message=f"the id names {first} as first piece, it was {whole[-1].first}",
            )
        state.judged["K3"] += 1
        if len(times) == len(whole) + 1:
            yield Anomaly(
                name="delivered-twice",
                clause="K3",
                key=key,
                witness=(whole[-1].completed, times[-2], times[-1]),
                message=f"{position} was handed out {len(times)} times, its pieces came {len(whole)} times",
            )
        yield from self._content(state, whole[-1], piece, event, key)

    @staticmethod
    def _content(
        state: ReassemblyState, assembly: Assembly, piece: Event | None, event: Event, key: Key
    ) -> Iterable[Anomaly]:
        digest = event.payload_digest or ""
        if digest in state.sent_twice:
            state.undecided.append(Undecided(clause="K2", key=key, reason="the same bytes were sent twice"))
        elif state.sent:
            state.judged["K2"] += 1
            if digest not in state.sent:
                yield Anomaly(
                    name="part-or-mixture",
                    clause="K2",
                    key=key,
                    witness=(assembly.completed, event.index),
                    message="the application was given bytes that nobody had sent as one message",
                )
        metadata = (piece.extra.get("metadata") or {}) if piece is not None else {}
        plain = metadata.get("compression") in (None, "", "NONE", 0)
        if plain and event.payload_size is not None and all(one.size for one in assembly.pieces):
            state.judged["CHUNK-06"] += 1
            together = sum(one.size for one in assembly.pieces)
            if together != event.payload_size:
                yield Anomaly(
                    name="wrong-length",
                    clause="CHUNK-06",
                    key=key,
                    witness=(assembly.completed, event.index),
                    message=f"the pieces have {together} bytes, the application was given {event.payload_size}",
                )

    def _acked(self, state: ReassemblyState, reader: Reader, event: Event) -> Iterable[Anomaly]:
        reader.acked.take(event)
        if event.error is not None or event.ack_type == "cumulative":
            return
        member, expiry, _ = self._limits(state, event.consumer or "")
        auto = member is not None and bool(member.options.get("auto_ack_oldest_chunked"))
        key = (*state.key, event.consumer or "")
        finished = {assembly.uuid for assembly in reader.scan.done}
        for acked in acked_ids(event):
            reader.ack_times.setdefault(acked.position, event.time_ns)
            for uuid, (context, index, _) in reader.evicted.items():
                inside = [piece for piece in context.pieces if piece.position == acked.position]
                if uuid in finished or context.spare:
                    continue
                if inside and not auto and event.time_ns - inside[0].time_ns < expiry and uuid not in reader.expired:
                    reader.expired.add(uuid)
                    state.judged["CHUNK-EXP-04"] += 1
                    yield Anomaly(
                        name="evicted-message-acked",
                        clause="CHUNK-EXP-04",
                        key=key,
                        witness=(inside[0].index, index, event.index),
                        message=f"message {uuid} was pushed out by newer ones and acked, although auto-ack is off",
                    )
            for uuid, context in reader.scan.open.items():
                inside = [piece for piece in context.pieces if piece.position == acked.position]
                if not inside or uuid in reader.expired or uuid in finished or context.spare:
                    continue
                state.judged["K5"] += 1
                if expiry > 0 and event.time_ns - context.pieces[0].time_ns < expiry:
                    reader.expired.add(uuid)
                    yield Anomaly(
                        name="incomplete-message-acked-early",
                        clause="K5",
                        key=key,
                        witness=(context.pieces[0].index, event.index),
                        message=f"a piece of the incomplete message {uuid} was acked before the expiry time was over",
                    )

    @staticmethod
    def _redeliver(state: ReassemblyState, reader: Reader, event: Event) -> Iterable[Anomaly]:
        named = {acked.position for acked in acked_ids(event)}
        if not named:
            return
        for place, (called, _) in reader.app_nacked.items():
            if place not in named:
                continue
            for assembly in reader.scan.done:
                if assembly.last != place or place not in reader.received:
                    continue
                state.judged["CHUNK-10"] += 1
                absent = [piece.position for piece in assembly.pieces if piece.position not in named]
                if absent:
                    yield Anomaly(
                        name="only-part-asked-again",
                        clause="CHUNK-10",
                        key=(*state.key, event.consumer or ""),
                        witness=(called, event.index),
                        message=f"a nacked message of {len(assembly.pieces)} pieces: {absent} were not asked for again",
                    )
                break

    def finish(self, state: ReassemblyState) -> Iterable[Anomaly]:
        for consumer, reader in state.readers.items():
            if not reader.seen:
                continue
            yield from self._orphans(state, consumer, reader)
            if state.quiet_ns is None or not state.calm.drained or consumer not in state.alive:
                if reader.scan.done:
                    state.undecided.append(
                        Undecided(clause="K4", key=(*state.key, consumer), reason="no calm end with this consumer")
                    )
                continue
            yield from self._owed(state, consumer, reader)
            yield from self._pieces_acked(state, consumer, reader)
            yield from self._evictions(state, consumer, reader)

    def _owed(self, state: ReassemblyState, consumer: str, reader: Reader) -> Iterable[Anomaly]:
        key = (*state.key, consumer)
        _, expiry, most = self._limits(state, consumer)
        for assembly in reader.scan.done:
            if (
                assembly.completed > state.calm.drained_at
                or assembly.pieces[-1].time_ns + HANDOVER_NS > reader.waited_ns
            ):
                # Came when nobody received any more (another consumer's close or a slow link set it free, say).
                continue
            session, crowded, discards = reader.owners[assembly.completed]
            kept = session in state.present and assembly.pieces[0].index > session.opened
            if crowded or reader.spoiled or not kept or consumer in state.members.names_reused:
                continue
            if expiry > 0 and assembly.span_ns >= expiry:
                state.undecided.append(
                    Undecided(
                        clause="CHUNK-EXP-03",
                        key=key,
                        witness=(assembly.completed,),
                        reason="its pieces took longer than the expiry time: the loss would be allowed",
                    )
                )
                continue
            clause = "K4"
            if assembly.spare:
                clause = "CHUNK-07"
            elif expiry > 0 and assembly.span_ns > expiry // 2:
                clause = "CHUNK-EXP-03"
            elif most > 0 and discards >= most:
                clause = "CHUNK-EXP-05"
            elif discards:
                clause = "CHUNK-09"
            state.judged[clause] += 1
            if assembly.last not in reader.received:
                yield Anomaly(
                    name="complete-message-not-delivered",
                    clause=clause,
                    key=key,
                    severity="liveness",
                    witness=(assembly.pieces[0].index, assembly.completed),
                    message=f"all {len(assembly.pieces)} pieces of {assembly.uuid} arrived in order and in time, "
                    "the application never got the message",
                )

    def _orphans(self, state: ReassemblyState, consumer: str, reader: Reader) -> Iterable[Anomaly]:
        key = (*state.key, consumer)
        member, expiry, _ = self._limits(state, consumer)
        if member is None or expiry <= 0 or reader.spoiled:
            return
        for uuid, context in reader.scan.open.items():
            if uuid in reader.expired or any(one.uuid == uuid for one in reader.scan.done):
                continue
            done = [one for one in reader.scan.done if one.completed < context.pieces[0].index]
            clause = "CHUNK-EXP-02" if done else "CHUNK-EXP-01"
            newest = context.pieces[-1]
            deadline = newest.time_ns + 2 * expiry + expiry // 10 + 2 * SETTLE_NS
            session = next(
                (
                    one
                    for one in state.sessions.all
                    if one.consumer == consumer
                    and one.opened < context.pieces[0].index
                    and (one.ended is None or one.ended > newest.index)
                ),
                None,
            )
            until = session.ended_ns if session is not None and session.ended is not None else state.last_ns
            if member.leaving is not None and session is not None and session.ended is None:
                until = 0
            if context.spare or session is None or until < deadline or state.calm.last_fault > context.pieces[0].index:
                state.undecided.append(
                    Undecided(
                        clause=clause,
                        key=key,
                        witness=(context.pieces[0].index,),
                        reason="the consumer was not watched undisturbed until the orphan had to be dropped",
                    )
                )
                continue
            state.judged[clause] += 1
            kept = [piece for piece in context.pieces if reader.ack_times.get(piece.position, deadline + 1) > deadline]
            if kept:
                yield Anomaly(
                    name="orphan-never-expired",
                    clause=clause,
                    key=key,
                    severity="liveness",
                    witness=tuple(piece.index for piece in context.pieces),
                    message=f"message {uuid} stayed incomplete for more than twice the expiry time; its pieces were "
                    "not acked",
                )

    @staticmethod
    def _pieces_acked(state: ReassemblyState, consumer: str, reader: Reader) -> Iterable[Anomaly]:
        key = (*state.key, consumer)
        for assembly in reader.scan.done:
            called = reader.app_acked.get(assembly.last)
            session = reader.owners[assembly.completed][0]
            if called is None or session not in state.present or assembly.pieces[0].index < session.opened:
                continue
            if (state.quiet_ns or 0) - called[1] < 2 * SETTLE_NS or called[0] < assembly.completed:
                continue
            for clause, pieces in (("CHUNK-10", assembly.pieces), ("K7", assembly.spare)):
                if not pieces:
                    continue
                state.judged[clause] += 1
                left = [piece for piece in pieces if reader.acked.since(piece.position) is None]
                if left:
                    yield Anomaly(
                        name="pieces-not-acked",
                        clause=clause,
                        key=key,
                        severity="liveness",
                        witness=(left[0].index, called[0]),
                        message=f"the message at {assembly.last} was acked by the application, "
                        f"{[piece.position for piece in left]} never",
                    )

    def _evictions(self, state: ReassemblyState, consumer: str, reader: Reader) -> Iterable[Anomaly]:
        member, _, _ = self._limits(state, consumer)
        auto = member is not None and bool(member.options.get("auto_ack_oldest_chunked"))
        for uuid, (context, index, evicted_ns) in reader.evicted.items():
            if uuid in reader.expired or (state.quiet_ns or 0) - evicted_ns < 2 * SETTLE_NS:
                continue
            state.judged["CHUNK-EXP-04"] += 1
            left = [piece for piece in context.pieces if reader.acked.since(piece.position) is None]
            if auto and left:
                yield Anomaly(
                    name="evicted-message-not-acked",
                    clause="CHUNK-EXP-04",
                    key=(*state.key, consumer),
                    severity="liveness",
                    witness=(left[0].index, index),
                    message=f"message {uuid} was pushed out with auto-ack on, but its pieces were not acked",
                )


@dataclass
class Pinned:
    """Which session the pieces of a uuid went to, and which of them did."""

    session: Session
    index: int
    sent: set[int] = field(default_factory=set)


class PinnedState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sessions = Sessions("tap.broker")
        self.pinned: dict[tuple[str, str], Pinned] = {}
        self.suspects: list[tuple[Anomaly, tuple[Session, Session]]] = []
        self.shared: dict[str, int] = {}


class ChunkPinning(Invariant[PinnedState]):
    """CHUNK-08: on a Shared subscription all pieces of a message go to one consumer. Keyed by topic."""

    name = "chunk-pinning"
    family = "chunks"
    clauses = ("CHUNK-08",)

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic and event.layer == "tap.broker" else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> PinnedState:
        return PinnedState(key)

    def step(self, state: PinnedState, event: Event) -> Iterable[Anomaly]:
        changed = state.sessions.observe(event)
        if event.kind in ("CONNECTION_CLOSED", "REDELIVER_UNACKNOWLEDGED_MESSAGES", "SEEK") or (
            changed is not None and event.kind != "SUBSCRIBE"
        ):
            # Pieces may change hands now; only uuids that begin later are judged.
            state.pinned.clear()
        session = state.sessions.of(event)
        piece = piece_of(event)
        if event.kind != "MESSAGE" or session is None or not session.live or piece is None or session.kind != "shared":
            return ()
        name = (session.subscription, event.chunk_uuid or "")
        if piece.number == 0:
            state.pinned[name] = Pinned(session, event.index)
            return ()
        pinned = state.pinned.get(name)
        if pinned is None or piece.number in pinned.sent:
            # A piece that was stored twice, by a resend: its message may be complete already and nobody's any more.
            return ()
        pinned.sent.add(piece.number)
        if sum(1 for _ in state.sessions.live(session.subscription)) > 1:
            state.judged["CHUNK-08"] += 1
        if pinned.session is not session:
            found = Anomaly(
                name="pieces-at-two-consumers",
                clause="CHUNK-08",
                key=(*state.key, session.subscription),
                witness=(pinned.index, event.index),
                message=f"piece 0 of {event.chunk_uuid} went to one consumer, piece {piece.number} to another",
            )
            state.suspects.append((found, (pinned.session, session)))
        return ()

    def finish(self, state: PinnedState) -> Iterable[Anomaly]:
        for anomaly, sessions in state.suspects:
            if any(session.lost for session in sessions):
                state.undecided.append(
                    Undecided(
                        clause=anomaly.clause,
                        key=anomaly.key,
                        witness=anomaly.witness,
                        reason="one of the consumers was lost; its pieces may have been handed on before",
                    )
                )
            else:
                yield anomaly


INVARIANTS: tuple[Invariant[Any], ...] = (ChunkPublishing(), ChunkReassembly(), ChunkPinning())
