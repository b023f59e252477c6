"""The broker's accounts of consumers, as its admin service tells them, against the frames at tap A."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.history.event import Event
from harness.invariants.acknowledged import Position, acked_ids, bits, position_of
from harness.invariants.admin_sample import REST_NS, BrokerLife, asked_ns
from harness.invariants.calm import calm_or_storm
from harness.invariants.core import Anomaly, FoldState, Invariant, Key
from harness.invariants.sessions import Session, Sessions

SHARED = frozenset({"shared", "key_shared"})


@dataclass(frozen=True, slots=True)
class Delivery:
    """One MESSAGE. ``full``: messages in the entry; ``rest``: those of them that it shows as not acked."""

    time_ns: int
    index: int
    position: Position | None
    full: int
    rest: int


@dataclass(frozen=True, slots=True)
class Ack:
    """One id of an ACK. ``whole``: an individual ack of the whole entry."""

    time_ns: int
    index: int
    session: Session
    whole: bool


@dataclass
class Book:
    """What tap A saw of one session. ``ready``: index of the answer to its SUBSCRIBE."""

    session: Session
    ready: int | None = None
    ready_ns: int = 0
    closing: int | None = None
    closed_ns: int | None = None
    unsure: bool = False
    cumulative: bool = False
    flows: list[tuple[int, int, int]] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)

    def permits(self, sample: Event) -> range | set[int] | None:
        """The balances that the broker may truthfully tell; None when nothing was granted.

        It has carried out what was granted a while ago, and may have what came since; it has charged what was recorded
        before the question left, and may have charged what was recorded up to a while after its answer.
        """
        asked, told = asked_ns(sample), sample.time_ns
        sure = sum(permits for time_ns, _, permits in self.flows if time_ns < asked - REST_NS)
        grants = {sure}
        total = sure
        for time_ns, index, permits in self.flows:
            if time_ns >= asked - REST_NS and index < sample.index:
                total += permits
                grants.add(total)
        charged = [one for one in self.deliveries if one.time_ns < asked]
        late = [one for one in self.deliveries if asked <= one.time_ns <= told + REST_NS]
        if any(one.full != one.rest for one in (*charged, *late)):
            # Brokers before 2.9 charge a batch in full, also when some of its members were acked before.
            low = min(grants) - sum(one.full for one in (*charged, *late))
            return range(low, max(grants) - sum(one.rest for one in charged) + 1)
        spent = sum(one.rest for one in charged)
        charges = {spent}
        for one in late:
            spent += one.rest
            charges.add(spent)
        return {grant - charge for grant in grants for charge in charges}


@dataclass
class Entries:
    """What became of the entries of one subscription that many consumers share."""

    deliveries: dict[Position, int] = field(default_factory=dict)
    acks: dict[Position, list[Ack]] = field(default_factory=dict)
    given_back: set[Position] = field(default_factory=set)


class AccountsState(FoldState):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.sessions = Sessions("tap.broker")
        self.life = BrokerLife()
        self.books: dict[Session, Book] = {}
        self.entries: dict[str, Entries] = {}
        self.samples: list[Event] = []


class AdminAccounts(Invariant[AccountsState]):
    """STAT-01 permits, STAT-02 and ACK-26 unacked messages, STAT-04 who is connected. Keyed by topic."""

    name = "admin-accounts"
    family = "delivery"
    clauses = ("STAT-01", "STAT-02", "STAT-04", "ACK-26")

    def key(self, event: Event) -> Key | None:
        wanted = event.layer == "tap.broker" or (event.layer == "admin" and event.kind == "TOPIC_STATS")
        return (event.topic,) if wanted and event.topic else None

    def broadcast(self, event: Event) -> bool:
        return calm_or_storm(event)

    def start(self, key: Key) -> AccountsState:
        return AccountsState(key)

    def step(self, state: AccountsState, event: Event) -> Iterable[Anomaly]:
        state.life.observe(event)
        if event.layer == "admin":
            state.samples.append(event)
            yield from self._negative(state, event)
            return
        if event.kind == "SUCCESS":
            self._answered(state, event)
        elif event.kind == "CLOSE_CONSUMER":
            self._closing(state, event)
        state.sessions.observe(event)
        session = state.sessions.of(event)
        if session is None:
            return
        book = state.books.setdefault(session, Book(session))
        if event.kind == "FLOW":
            book.unsure |= book.ready is None
            book.flows.append((event.time_ns, event.index, event.permits or 0))
        elif event.kind == "MESSAGE":
            self._delivered(state, book, event)
        elif event.kind == "ACK":
            self._acked(state, book, event)
        elif event.kind == "REDELIVER_UNACKNOWLEDGED_MESSAGES":
            entries = state.entries.setdefault(session.subscription, Entries())
            named = {acked.position for acked in acked_ids(event)}
            entries.given_back |= named or {one.position for one in book.deliveries if one.position is not None}

    @staticmethod
    def _closing(state: AccountsState, event: Event) -> None:
        session = state.sessions.of(event)
        if session is not None and session.live and event.extra.get("direction") == "to_broker":
            state.books.setdefault(session, Book(session)).closing = event.request_id

    @staticmethod
    def _answered(state: AccountsState, event: Event) -> None:
        for book in state.books.values():
            if book.session.connection != event.connection or event.request_id is None:
                continue
            if event.request_id == book.session.request_id and book.ready is None:
                book.ready, book.ready_ns = event.index, event.time_ns
            elif event.request_id == book.closing and book.closed_ns is None:
                book.closed_ns = event.time_ns

    @staticmethod
    def _delivered(state: AccountsState, book: Book, event: Event) -> None:
        count = event.num_messages or 1
        left = bits(event.ack_set)
        rest = count if left is None else max(1, (left & ((1 << count) - 1)).bit_count())
        position = position_of(event)
        book.deliveries.append(Delivery(event.time_ns, event.index, position, count, rest))
        if position is not None:
            entries = state.entries.setdefault(book.session.subscription, Entries())
            entries.deliveries[position] = entries.deliveries.get(position, 0) + 1

    @staticmethod
    def _acked(state: AccountsState, book: Book, event: Event) -> None:
        book.cumulative |= event.ack_type == "cumulative"
        entries = state.entries.setdefault(book.session.subscription, Entries())
        for acked in acked_ids(event):
            whole = event.ack_type != "cumulative" and not acked.remaining and acked.batch_index is None
            entries.acks.setdefault(acked.position, []).append(Ack(event.time_ns, event.index, book.session, whole))

    @staticmethod
    def _negative(state: AccountsState, event: Event) -> Iterator[Anomaly]:
        for subscription, consumer in _consumers(event):
            state.judged["ACK-26"] += 1
            if consumer["unacked"] < 0:
                yield Anomaly(
                    name="unacked-below-zero",
                    clause="ACK-26",
                    key=(*state.key, subscription),
                    witness=(event.index,),
                    severity="conformance",
                    message=f"the broker counts {consumer['unacked']} unacked messages of {consumer['name']}",
                )

    # ------------------------------------------------------------------------------------------------ at the end

    def finish(self, state: AccountsState) -> Iterable[Anomaly]:
        for sample in state.samples:
            if not state.life.at_ease(sample):
                continue
            told = list(_consumers(sample))
            yield from self._present(state, sample, told)
            for subscription, consumer in told:
                namesakes = [one for one in told if one[0] == subscription and one[1]["name"] == consumer["name"]]
                book = self._book_of(state, sample, subscription, str(consumer["name"]))
                if book is None or len(namesakes) > 1:
                    continue
                yield from self._permits(state, sample, book, consumer)
                if book.session.kind in SHARED:
                    yield from self._unacked(state, sample, book, consumer)

    @staticmethod
    def _book_of(state: AccountsState, sample: Event, subscription: str, name: str) -> Book | None:
        """The session that the broker can mean: the only one of that name about then, begun before the question."""
        near = [
            book
            for session, book in state.books.items()
            if (session.subscription, session.consumer) == (subscription, name)
            and session.opened_ns <= sample.time_ns
            and (session.live or session.ended_ns >= asked_ns(sample) - REST_NS)
        ]
        if len(near) != 1:
            return None
        book = near[0]
        session = book.session
        if book.ready is None or book.ready_ns >= asked_ns(sample) or book.unsure or not session.fresh:
            return None
        return book if session.live or session.ended_ns > sample.time_ns else None

    @staticmethod
    def _permits(state: AccountsState, sample: Event, book: Book, consumer: dict[str, Any]) -> Iterator[Anomaly]:
        if consumer["blocked"]:
            return
        allowed = book.permits(sample)
        state.judged["STAT-01"] += 1
        if allowed is None or consumer["permits"] in allowed:
            return
        flows = [index for _, index, _ in book.flows if index < sample.index]
        sent = [one.index for one in book.deliveries if one.index < sample.index]
        expected = max(allowed)
        yield Anomaly(
            name="permits-miscounted",
            clause="STAT-01",
            key=(*state.key, book.session.subscription),
            witness=tuple(sorted({book.session.opened, *flows[-1:], *sent[-1:], sample.index})),
            message=f"the broker says that {consumer['name']} has {consumer['permits']} permits; granted and sent "
            f"leave {expected if len(allowed) == 1 else f'{min(allowed)} to {expected}'}",
        )

    @staticmethod
    def _unacked(state: AccountsState, sample: Event, book: Book, consumer: dict[str, Any]) -> Iterator[Anomaly]:
        if book.cumulative:
            return
        entries = state.entries.get(book.session.subscription, Entries())
        low = high = 0
        for one in book.deliveries:
            if one.time_ns > sample.time_ns + REST_NS:
                continue
            least, most = _owed(entries, book, one, sample)
            low, high = low + least, high + most
        if low == high:
            state.judged["STAT-02"] += 1
        if not low <= consumer["unacked"] <= high:
            state.judged["STAT-02"] += low != high
            sent = [one.index for one in book.deliveries if one.index < sample.index]
            yield Anomaly(
                name="unacked-miscounted",
                clause="STAT-02",
                key=(*state.key, book.session.subscription),
                witness=tuple(sorted({book.session.opened, *sent[-1:], sample.index})),
                message=f"the broker counts {consumer['unacked']} unacked messages of {consumer['name']}; sent and "
                f"not acked are {low if low == high else f'{low} to {high}'}",
            )

    @staticmethod
    def _present(state: AccountsState, sample: Event, told: list[tuple[str, dict[str, Any]]]) -> Iterator[Anomaly]:
        """Who must be listed, and who must not be."""
        listed = {(subscription, str(consumer["name"])) for subscription, consumer in told}
        asked = asked_ns(sample)
        for session, book in state.books.items():
            name = (session.subscription, session.consumer)
            namesakes = [
                other for other in state.books if other is not session and (other.subscription, other.consumer) == name
            ]
            if not session.consumer or namesakes:
                continue
            if book.closed_ns is not None and book.closed_ns < asked:
                state.judged["STAT-04"] += 1
                if name in listed:
                    yield _listing(state, sample, book, "closed-consumer-listed", "was closed, and is still listed")
            elif book.ready is not None and book.ready_ns < asked - REST_NS and _stays(session, sample):
                state.judged["STAT-04"] += 1
                if name not in listed:
                    yield _listing(state, sample, book, "consumer-not-listed", "is subscribed, and is not listed")

    # ------------------------------------------------------------------------------------------------


def _listing(state: AccountsState, sample: Event, book: Book, name: str, what: str) -> Anomaly:
    return Anomaly(
        name=name,
        clause="STAT-04",
        key=(*state.key, book.session.subscription),
        witness=(book.session.opened, *([book.ready] if book.ready is not None else []), sample.index),
        message=f"consumer {book.session.consumer} {what}",
    )


def _stays(session: Session, sample: Event) -> bool:
    """Whether the broker cannot have ended the session by the time of the sample without the tap knowing."""
    if session.live:
        return True
    return session.ended_ns > sample.time_ns + (REST_NS if session.lost else 0)


def _owed(entries: Entries, book: Book, one: Delivery, sample: Event) -> tuple[int, int]:
    """The fewest and the most messages of a delivery that the broker may count as unacked."""
    if one.position is None or one.time_ns >= asked_ns(sample):
        return 0, one.full
    if entries.deliveries.get(one.position, 0) > 1 or one.position in entries.given_back:
        return 0, one.full
    acks = [ack for ack in entries.acks.get(one.position, ()) if ack.index < sample.index]
    if not acks:
        return one.rest, one.full
    settled = any(
        ack.whole and ack.session is book.session and ack.time_ns < asked_ns(sample) - REST_NS for ack in acks
    )
    return (0, 0) if settled else (0, one.full)


def _consumers(sample: Event) -> Iterator[tuple[str, dict[str, Any]]]:
    """(subscription, consumer) of a sample, as far as it has the shape it must have."""
    subscriptions = sample.extra.get("subscriptions")
    for name, subscription in subscriptions.items() if isinstance(subscriptions, dict) else ():
        consumers = subscription.get("consumers") if isinstance(subscription, dict) else None
        for consumer in consumers if isinstance(consumers, list) else ():
            if (
                isinstance(consumer, dict)
                and isinstance(consumer.get("permits"), int)
                and isinstance(consumer.get("unacked"), int)
            ):
                yield str(name), {"blocked": False, "name": "", **consumer}
