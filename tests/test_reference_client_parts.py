"""The parts of the reference client on their own, some against models written from the rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.reference.client.ack_set import from_words, to_words
from harness.reference.client.ack_timeouts import AckTimeouts
from harness.reference.client.ack_tracker import AckTracker
from harness.reference.client.address import service_address
from harness.reference.client.backoff import Backoff
from harness.reference.client.batch_builder import BatchBuilder
from harness.reference.client.chunk_assembler import ChunkAssembler
from harness.reference.client.chunk_splitter import ChunkSplitter
from harness.reference.client.delivery import Delivery
from harness.reference.client.negative_acks import NegativeAcks
from harness.reference.client.outgoing import Outgoing, PendingSend
from harness.reference.client.pending_queue import PendingQueue
from harness.reference.client.permits import Permits
from harness.reference.client.receive_queue import ReceiveQueue
from harness.reference.client.sequence_ids import SequenceIds
from harness.reference.client.timers import Timers
from harness.reference.client.topic import complete_topic
from harness.wire.chunk import ChunkLabel
from harness.wire.message_id import Position
from harness.wire.pulsar_pb2 import MessageMetadata

MS = 1_000_000
SECOND = 1000 * MS


def outgoing(sequence_id: int, payload: bytes = b"x") -> Outgoing:
    return Outgoing(0, payload, lambda _: None, lambda _: None, sequence_id=sequence_id)


def delivery(entry: int, index: int | None = None, size: int = 1, entries: tuple[int, ...] = ()) -> Delivery:
    places = tuple(Position(1, number) for number in entries or (entry,))
    return Delivery(Position(1, entry), places, b"", 1, batch_index=index, batch_size=size)


# --- names, ids, delays


@pytest.mark.parametrize(
    ("given_name", "complete"),
    [
        ("t", "persistent://public/default/t"),
        ("a/b/t", "persistent://a/b/t"),
        ("non-persistent://a/b/t", "non-persistent://a/b/t"),
        ("persistent://a/b/c/d", "persistent://a/b/c/d"),
    ],
)
def test_topic_names_become_complete(given_name: str, complete: str):
    assert complete_topic(given_name) == complete


@pytest.mark.parametrize("name", ["", "a/b", "queue://a/b/t", "persistent://a/b", "persistent://a//t"])
def test_what_is_no_topic_name_is_refused(name: str):
    with pytest.raises(ValueError, match="topic"):
        complete_topic(name)


def test_service_urls():
    assert service_address("pulsar://h") == "h:6650"
    assert service_address("pulsar://[::1]:7") == "[::1]:7"
    for url in ("", "  ", "http://h:8080", "pulsar+ssl://h:6651", "pulsar://"):
        with pytest.raises(ValueError, match="service URL"):
            service_address(url)


def test_sequence_ids_start_above_the_broker_once_and_explicit_ones_move_nothing():
    ids = SequenceIds(None)
    ids.registered(41)
    assert [ids.assign(None), ids.assign(7), ids.assign(None)] == [42, 7, 43]
    ids.registered(99)
    assert ids.assign(None) == 44
    configured = SequenceIds(5)
    configured.registered(41)
    assert configured.assign(None) == 6


def test_backoff_doubles_to_its_cap_and_starts_again_after_a_success():
    backoff = Backoff(100 * MS, 60 * SECOND)
    delays = [backoff.next_delay(0) // MS for _ in range(12)]
    assert delays == [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 51200, 60000, 60000]
    backoff.succeeded()
    assert backoff.next_delay(0) == 100 * MS


@given(st.integers(1, 40).map(lambda tenths: tenths * 100 * MS))
def test_an_attempt_happens_before_the_mandatory_stop(stop: int):
    backoff = Backoff(100 * MS, 60 * SECOND, stop)
    now, attempts = 0, []
    for _ in range(10):
        now += backoff.next_delay(now)
        attempts.append(now)
    assert any(max(100 * MS, stop) - 100 * MS <= time <= max(100 * MS, stop) for time in attempts)


def test_timers_go_off_by_time_then_by_who_asked_first():
    timers, order = Timers(), []
    timers.at(2, lambda: order.append("c"))
    timers.at(1, lambda: (order.append("a"), timers.at(1, lambda: order.append("b"))))
    timers.at(1, lambda: order.append("cancelled")).cancel()
    timers.fire_due(1)
    assert order == ["a", "b"]
    assert timers.next_deadline() == 2


# --- producing


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=60), st.integers(1, 6), st.integers(0, 60))
def test_batches_keep_their_caps_and_never_mix_suspects_with_fresh(
    messages: list[tuple[int, int]], count: int, cap: int
):
    builder = BatchBuilder(count, cap, 0)
    batches: list[list[Outgoing]] = []
    pushed = -1

    def leave() -> None:
        nonlocal pushed
        batches.append(builder.take())
        pushed = max(pushed, batches[-1][-1].sequence_id)

    for sequence_id, size in messages:
        message = outgoing(sequence_id, b"x" * size)
        if not builder.takes(message, pushed):
            leave()
        builder.add(message, pushed)
        if builder.is_full:
            leave()
    if len(builder):
        leave()
    assert [m.sequence_id for batch in batches for m in batch] == [sequence_id for sequence_id, _ in messages]
    highest = -1
    for batch in batches:
        ids = [message.sequence_id for message in batch]
        assert ids == sorted(set(ids))
        assert len(batch) <= count
        assert not cap or len(batch) == 1 or sum(len(message.payload) for message in batch) <= cap
        assert all(i <= highest for i in ids) or all(i > highest for i in ids)
        highest = max(highest, ids[-1])


@given(st.integers(0, 2000), st.integers(100, 300))
def test_pieces_are_equal_but_the_last_and_fit_with_their_metadata(size: int, limit: int):
    metadata = MessageMetadata(producer_name="p", sequence_id=3, publish_time=1)
    payload = bytes(number % 251 for number in range(size))
    pieces = ChunkSplitter().pieces(metadata, payload, limit)
    assert b"".join(data for _, data in pieces) == payload
    assert all(piece.ByteSize() + len(data) <= limit for piece, data in pieces)
    if len(pieces) == 1:
        assert not pieces[0][0].HasField("uuid")
        return
    assert len({len(data) for _, data in pieces[:-1]}) == 1
    assert 0 < len(pieces[-1][1]) <= len(pieces[0][1])
    labels = [ChunkLabel.read(piece) for piece, _ in pieces]
    assert labels == [ChunkLabel("p-3", number, len(pieces), size) for number in range(len(pieces))]


def pending(sequence_id: int, highest: int | None = None) -> PendingSend:
    last = sequence_id if highest is None else highest
    return PendingSend(sequence_id, last, [outgoing(sequence_id)], b"", 0)


def test_receipts_are_matched_with_the_head_only():
    queue = PendingQueue()
    assert queue.receipt(0, 0) == "stale"
    queue.append(pending(10))
    queue.append(pending(11, 14))
    assert [queue.receipt(9, 0), queue.receipt(10, 0), queue.receipt(11, 14)] == ["stale", "complete", "future"]
    queue.pop_head()
    assert [queue.receipt(11, 0), queue.receipt(11, 14), queue.receipt(11, 13)] == ["complete", "complete", "future"]
    assert queue.named_by_error(14) is queue.head


def test_a_negative_highest_id_tells_nothing():
    """Pulsar 4.0.7 answers a plain message with highest_sequence_id = -1, as 2^64-1, once its objects are reused."""
    queue = PendingQueue()
    queue.append(PendingSend(0, 0, [outgoing(0)], b"", 0))
    assert queue.receipt(0, 2**64 - 1) == "complete"


def test_refused_piece_takes_the_other_pieces_of_its_message_along():
    queue = PendingQueue()
    message = outgoing(1)
    pieces = [PendingSend(1, 1, [message], b"", 0, is_chunk=True) for _ in range(3)]
    other = pending(2)
    for entry in (*pieces, other):
        queue.append(entry)
    queue.remove_message(pieces[1])
    assert list(queue) == [other]


# --- permits and queue


@given(st.integers(1, 20), st.lists(st.integers(1, 5), max_size=60))
def test_permits_are_conserved_and_every_grant_is_positive(queue: int, returned: list[int]):
    permits = Permits(queue)
    assert permits.subscribed() == queue
    granted = 0
    for count in returned:
        grant = permits.give_back(count)
        assert grant >= 0
        granted += grant
        assert permits.owed < max(1, queue // 2)
    assert granted + permits.owed == sum(returned)
    assert permits.subscribed() == queue
    assert permits.owed == 0


@given(st.lists(st.booleans(), max_size=40))
def test_messages_and_waiters_pair_in_order(steps: list[bool]):
    queue = ReceiveQueue()
    put = waited = 0
    pairs: dict[int, int] = {}

    def waiter(number: int) -> Any:
        return lambda message: pairs.__setitem__(number, message.position.entry)

    for is_message in steps:
        if is_message:
            queue.put(delivery(put))
            put += 1
        else:
            taken = queue.take()
            if taken is None:
                queue.wait(waiter(waited))
            else:
                waiter(waited)(taken)
            waited += 1
    assert pairs == {number: number for number in range(min(put, waited))}


# --- acknowledging


@given(st.integers(1, 200), st.data())
def test_ack_set_words_come_back(size: int, data: st.DataObject):
    unacked = data.draw(st.sets(st.integers(0, size - 1)))
    words = to_words(unacked, size)
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert from_words(words, size) == unacked
    assert from_words([], size) == set(range(size))


Step = tuple[str, int, int]
VERBS = st.sampled_from(["individual", "cumulative", "flush", "came_again"])
STEPS = st.lists(st.tuples(VERBS, st.integers(0, 5), st.integers(0, 2)), max_size=40)


@settings(max_examples=300)
@given(STEPS, st.booleans())
def test_ack_tracker_tells_the_broker_exactly_what_the_application_acknowledged(steps: list[Step], by_index: bool):
    """Entries 0-5; odd ones are batches of three. The model is the set of acknowledged (entry, member)."""
    tracker = AckTracker(by_index)
    acked: set[tuple[int, int]] = set()
    told: set[tuple[int, int]] = set()
    members = {entry: range(3) if entry % 2 else range(1) for entry in range(6)}
    cumulative: list[tuple[int, int]] = []

    def flush() -> None:
        for group in tracker.take(epoch=1):
            for ack in group.ids:
                entry = ack.position.entry
                kept = ack.unacked or frozenset()
                told.update((entry, m) for m in members.get(entry, ()) if m not in kept)
                if group.kind == "cumulative":
                    told.update((e, m) for e in range(entry) for m in members[e])
                    cumulative.append((entry, 3 - len(kept)))
        assert len(tracker) == 0

    for verb, entry, member in steps:
        index = member if entry % 2 else None
        ack = delivery(entry, index, 3 if entry % 2 else 1)
        if verb == "individual":
            tracker.individual(ack)
            acked.add((entry, index or 0))
        elif verb == "cumulative":
            tracker.cumulative(ack)
            acked |= {(e, m) for e in range(entry) for m in members[e]}
            acked |= {(entry, m) for m in range((index or 0) + 1)}
        elif verb == "came_again":
            tracker.came_again(epoch=1)
        else:
            flush()
        for e in range(6):
            for m in members[e]:
                if tracker.hides(Position(1, e), m if e % 2 else None):
                    assert (e, m) in acked, "an unacknowledged message is hidden"
    flush()
    assert told <= acked
    for entry, batch in members.items():
        whole = all((entry, m) in acked for m in batch)
        for m in batch:
            if (entry, m) in acked and (by_index or whole):
                assert (entry, m) in told
    assert cumulative == sorted(set(cumulative))


def test_ack_of_a_chunked_message_names_every_entry():
    tracker = AckTracker(False)
    tracker.individual(delivery(9, entries=(3, 5, 9)))
    (group,) = tracker.take(1)
    assert [ack.position.entry for ack in group.ids] == [3, 5, 9]


def test_lost_cumulative_ack_becomes_pending_only_on_another_connection():
    tracker = AckTracker(False)
    tracker.cumulative(delivery(4))
    tracker.take(epoch=1)
    assert not tracker.came_again(epoch=1)
    assert tracker.came_again(epoch=2)
    assert [group.kind for group in tracker.take(epoch=2)] == ["cumulative"]
    tracker.reset()
    assert not tracker.hides(Position(1, 0))


def test_members_acknowledged_over_two_deliveries_complete_the_entry():
    tracker = AckTracker(False)
    tracker.opened(Position(1, 1), 2, {0, 1})
    assert not tracker.individual(delivery(1, 0, 2))
    tracker.opened(Position(1, 1), 2, {0, 1})
    assert tracker.individual(delivery(1, 1, 2))


# --- again, later


def test_negative_acks_are_due_once_after_their_delay():
    nacks = NegativeAcks(100)
    nacks.add(delivery(1), 0)
    nacks.add(delivery(1), 50)
    nacks.add(delivery(2), 60)
    nacks.add(delivery(3), 60)
    nacks.remove(Position(1, 3))
    assert nacks.deadline() == 100
    assert nacks.take_due(99) == []
    assert [d.position.entry for d in nacks.take_due(100)] == [1]
    assert [d.position.entry for d in nacks.take_due(200)] == [2]
    assert nacks.deadline() is None


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 200))
def test_ack_timeouts_keep_their_window(timeout: int, tick: int, handed: int):
    timeouts = AckTimeouts(timeout, tick, 0)
    timeouts.add(delivery(1), handed)
    timeouts.add(delivery(1), handed + 1000)
    effective = min(tick, timeout)
    rounded = -(-timeout // effective) * effective
    due = timeouts.deadline()
    assert due is not None
    assert handed + rounded <= due <= handed + rounded + effective
    assert timeouts.take_due(due - 1) == []
    assert [d.position.entry for d in timeouts.take_due(due)] == [1]
    assert timeouts.take_due(10**9) == []


# --- pieces


class ScanAutomaton:
    """What a reader of the stored entries finds complete: start at piece 0, take last + 1, ignore what is not above."""

    def __init__(self, num_chunks: int) -> None:
        self.num_chunks = num_chunks
        self.pieces: list[int] | None = None

    def feed(self, chunk_id: int, place: int) -> list[int] | None:
        if chunk_id == 0:
            self.pieces = [place]
        elif self.pieces is None or chunk_id < len(self.pieces):
            return None
        elif chunk_id == len(self.pieces):
            self.pieces.append(place)
        else:
            self.pieces = None
            return None
        if len(self.pieces) < self.num_chunks:
            return None
        done, self.pieces = self.pieces, None
        return done


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=60))
def test_assembler_agrees_with_the_scan_and_names_every_entry_it_leaves(stream: list[tuple[str, int]]):
    sizes = {"a": 2, "b": 3, "c": 3}
    assembler = ChunkAssembler(max_contexts=0, expire=1000)
    automata = {uuid: ScanAutomaton(count) for uuid, count in sizes.items()}
    settled: set[int] = set()
    for place, (uuid, chunk_id) in enumerate(stream):
        count = sizes[uuid]
        data = bytes([place]) * 2
        label = ChunkLabel(uuid, chunk_id, count, 2 * count)
        found = assembler.accept(label, Position(1, place), data, now=place)
        expected = automata[uuid].feed(chunk_id, place) if chunk_id < count else None
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert found.payload == b"".join(bytes([number]) * 2 for number in expected)
            assert found.first == Position(1, expected[0])
            named = [position.entry for position in found.entries]
            assert set(expected) <= set(named)
            assert len(named) == len(set(named))
            assert not settled & set(named)
            settled |= set(named)
    expired = [position.entry for position in assembler.take_expired(10**6)]
    assert sorted(expired) == sorted(set(range(len(stream))) - settled)
    assert assembler.deadline() is None


def feed(assembler: ChunkAssembler, uuid: str, chunk_id: int, place: int, now: int = 0, count: int = 3) -> object:
    return assembler.accept(ChunkLabel(uuid, chunk_id, count, count), Position(1, place), b"x", now)


def test_resent_pieces_give_one_message_that_covers_them():
    assembler = ChunkAssembler(10, 1000)
    for place, chunk_id in enumerate([0, 1, 0, 1]):
        assert feed(assembler, "u", chunk_id, place) is None
    whole = assembler.accept(ChunkLabel("u", 2, 3, 3), Position(1, 4), b"x", 0)
    assert whole is not None
    assert sorted(position.entry for position in whole.entries) == [0, 1, 2, 3, 4]
    assert whole.first == Position(1, 2)


def test_redelivered_entries_are_not_named_twice():
    assembler = ChunkAssembler(10, 1000)
    for place in (0, 1):
        feed(assembler, "u", place, place)
    for place in (0, 1):
        feed(assembler, "u", place, place)
    whole = assembler.accept(ChunkLabel("u", 2, 3, 3), Position(1, 2), b"x", 0)
    assert whole is not None
    assert sorted(position.entry for position in whole.entries) == [0, 1, 2]


def test_expiry_counts_from_the_first_piece_and_is_not_due_at_the_limit():
    assembler = ChunkAssembler(10, 100)
    feed(assembler, "u", 0, 0, now=0)
    feed(assembler, "u", 1, 1, now=90)
    assert assembler.deadline() == 101
    assert assembler.take_expired(100) == []
    assert [position.entry for position in assembler.take_expired(101)] == [0, 1]


def test_only_really_incomplete_messages_count():
    assembler = ChunkAssembler(2, 0)
    for number in range(50):
        feed(assembler, f"gap{number}", 0, 2 * number)
        feed(assembler, f"gap{number}", 2, 2 * number + 1)
        assert assembler.evict() == []
    feed(assembler, "a", 0, 200)
    feed(assembler, "b", 0, 201)
    assert assembler.evict() == []
    feed(assembler, "c", 0, 202)
    (evicted,) = assembler.evict()
    assert [position.entry for position in evicted.entries] == [200]


@pytest.mark.parametrize("label", [ChunkLabel("u", 5, 3, 3), ChunkLabel("u", -1, 3, 3), ChunkLabel("u", 0, 0, 0)])
def test_impossible_labels_are_left_to_expire(label: ChunkLabel):
    assembler = ChunkAssembler(10, 100)
    assert assembler.accept(label, Position(1, 7), b"x", 0) is None
    assert assembler.take_expired(200) == [Position(1, 7)]


def test_pieces_that_disagree_or_overrun_end_the_message():
    assembler = ChunkAssembler(10, 100)
    feed(assembler, "u", 0, 0)
    assert assembler.accept(ChunkLabel("u", 1, 2, 3), Position(1, 1), b"x", 0) is None
    assert assembler.accept(ChunkLabel("v", 0, 2, 1), Position(1, 2), b"xx", 0) is None
    assert assembler.accept(ChunkLabel("w", 0, 1, 9), Position(1, 3), b"x", 0) is None
    assert sorted(position.entry for position in assembler.take_expired(200)) == [0, 1, 2, 3]
