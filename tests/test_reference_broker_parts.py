"""The parts of the reference broker, one by one, against models simple enough to be believed."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.reference.broker.ack_set import from_words, full, to_words
from harness.reference.broker.breach import ProtocolBreach, Refusal
from harness.reference.broker.cursor import Cursor
from harness.reference.broker.dedup import DedupMarks, Judgement
from harness.reference.broker.key_ranges import SLOTS, SplitRanges, StickyRanges
from harness.reference.broker.ledger import LedgerChain
from harness.reference.broker.murmur3 import murmur3_32, sticky_slot
from harness.reference.broker.permits import Permits
from harness.reference.broker.ranges import IntRanges
from harness.reference.broker.redelivery_counts import RedeliveryCounts
from harness.reference.broker.stored_entry import StoredEntry
from harness.reference.broker.timers import Timers
from harness.reference.broker.topic_name import parse
from harness.wire.pulsar_pb2 import MessageMetadata


def stored(ledger=1, entry=0, producer="p", sequence_id=0, highest=None, **metadata):
    labels = MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=0, **metadata)
    return StoredEntry(ledger, entry, producer, sequence_id, highest, 1, labels, b"", b"")


# --- cursor ----------------------------------------------------------------------------------------------------------

SIZES = (1, 3, 1, 5, 64, 1, 70, 2, 1, 1)  # messages of the entries of a small topic
OFFSETS = st.integers(0, len(SIZES) - 1)

acks = st.one_of(
    st.tuples(st.just("ack"), OFFSETS),
    st.tuples(st.just("through"), OFFSETS),
    OFFSETS.flatmap(lambda offset: st.tuples(st.just("batch"), st.just(offset), st.integers(0, full(SIZES[offset])))),
    st.tuples(st.just("save")),
    st.tuples(st.just("crash")),
)


@given(st.lists(acks, max_size=40))
def test_cursor_is_the_set_of_acknowledged_messages(steps):
    cursor, model = Cursor(), set()
    saved, saved_model = cursor.save(), set()
    for step in steps:
        match step:
            case "ack", offset:
                cursor.ack(offset)
                model |= {(offset, index) for index in range(SIZES[offset])}
            case "through", offset:
                cursor.ack_through(offset)
                model |= {(below, index) for below in range(offset + 1) for index in range(SIZES[below])}
            case "batch", offset, unacked:
                cursor.ack_batch(offset, unacked, SIZES[offset])
                model |= {(offset, index) for index in range(SIZES[offset]) if not unacked >> index & 1}
            case ("save",):
                saved, saved_model = cursor.save(), set(model)
            case ("crash",):
                cursor.restore(saved)
                model = set(saved_model)
        whole = [all((offset, index) in model for index in range(size)) for offset, size in enumerate(SIZES)]
        prefix = next((offset for offset, done in enumerate(whole) if not done), len(SIZES))
        assert cursor.mark_delete == prefix - 1
        assert [cursor.is_acked(offset) for offset in range(len(SIZES))] == whole
        assert cursor.unacked_before(len(SIZES)) == whole.count(False)
        assert all(first > cursor.mark_delete + 1 for first, _ in cursor.ranges.all())
        for offset, size in enumerate(SIZES):
            bits = sum(1 << index for index in range(size) if (offset, index) not in model)
            assert cursor.remaining(offset, size) == bits
            after = next((later for later in range(offset, len(SIZES)) if not whole[later]), len(SIZES))
            assert cursor.next_unacked(offset) == after


@given(st.data(), st.permutations(range(8)))
def test_order_of_acks_does_not_matter(data, order):
    subsets = {offset: data.draw(st.integers(0, 31)) for offset in range(8)}
    one, other = Cursor(), Cursor()
    for offset in range(8):
        one.ack_batch(offset, subsets[offset], 5)
    for offset in [*order, *order]:
        other.ack_batch(offset, subsets[offset], 5)
    assert (one.mark_delete, one.ranges.all(), one.batches) == (other.mark_delete, other.ranges.all(), other.batches)


def test_cumulative_ack_never_moves_back():
    cursor = Cursor(9)
    cursor.ack_through(4)
    assert cursor.mark_delete == 9


def test_reset_forgets_everything():
    cursor = Cursor()
    cursor.ack(3)
    cursor.ack_batch(5, 1, 2)
    cursor.reset(1)
    assert (cursor.mark_delete, cursor.ranges.all(), cursor.batches) == (1, [], {})


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5), st.booleans())))
def test_ranges_are_a_set(steps):
    ranges, model = IntRanges(), set()
    for first, more, removing in steps:
        if removing:
            ranges.remove_through(first)
            model = {value for value in model if value > first}
        else:
            ranges.add(first, first + more)
            model |= set(range(first, first + more + 1))
        parts = ranges.all()
        assert {value for low, high in parts for value in range(low, high + 1)} == model
        assert len(ranges) == len(model)
        assert all(high + 1 < low for (_, high), (low, _) in pairwise(parts))


@given(st.integers(0, full(200)))
def test_ack_sets_survive_the_wire(bits):
    words = to_words(bits)
    assert from_words(words) == bits
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)
    assert not words or words[-1] != 0


# --- deduplication ---------------------------------------------------------------------------------------------------

writes = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("ab"), st.integers(0, 12), st.integers(0, 3)),
        st.tuples(st.just("persist")),
        st.tuples(st.just("fail")),
        st.tuples(st.just("crash")),
    ),
    max_size=40,
)


@given(writes, st.integers(1, 4))
def test_dedup_marks_against_the_list_of_entries(steps, snapshot_every):
    """Model: the stored entries and the writes under way are all there is to know."""
    marks = DedupMarks()
    under_way, log, snapshot = [], [], (0, {})
    for step in steps:
        match step:
            case "send", producer, lowest, more:
                entry = stored(producer=producer, sequence_id=lowest, highest=lowest + more)
                persisted = max([e.last_sequence_id for e in log if e.producer == producer], default=-1)
                pushed = max([e.last_sequence_id for e in under_way if e.producer == producer], default=-1)
                if lowest <= persisted:
                    expected = Judgement.DUPLICATE
                elif lowest <= pushed:
                    expected = Judgement.UNDETERMINED
                else:
                    expected = Judgement.FRESH
                assert marks.judge(producer, lowest) is expected
                if expected is Judgement.FRESH:
                    marks.push(producer, entry.last_sequence_id)
                    under_way.append(entry)
            case ("persist",) if under_way:
                log.append(under_way.pop(0))
                marks.persist(log[-1].producer, log[-1].last_sequence_id)
                if len(log) % snapshot_every == 0:
                    snapshot = (len(log), marks.snapshot())
            case ("fail",):
                under_way.clear()
                marks.release()
            case ("crash",):
                under_way.clear()
                marks = DedupMarks()
                marks.restore(snapshot[1], log[snapshot[0] :])
        for producer in "ab":
            expected_last = max([e.last_sequence_id for e in log if e.producer == producer], default=-1)
            assert marks.last_sequence_id(producer) == expected_last
    covered = [(e.producer, n) for e in log for n in range(e.sequence_id, e.last_sequence_id + 1)]
    assert len(covered) == len(set(covered))


def test_only_the_last_piece_is_judged():
    marks = DedupMarks()
    pieces = [stored(chunk_id=n, num_chunks_from_msg=3, uuid="u").metadata for n in range(3)]
    assert [marks.judged(piece) for piece in pieces] == [False, False, True]
    assert marks.judged(stored().metadata)


def test_replay_skips_pieces_before_the_last():
    marks = DedupMarks()
    marks.restore({}, [stored(sequence_id=7, chunk_id=0, num_chunks_from_msg=2, uuid="u")])
    assert marks.judge("p", 7) is Judgement.FRESH
    marks.restore({}, [stored(sequence_id=7, chunk_id=1, num_chunks_from_msg=2, uuid="u")])
    assert marks.judge("p", 7) is Judgement.DUPLICATE


# --- permits ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["grant", "entry"]), st.integers(1, 20))))
def test_permits_add_up_and_overshoot_by_less_than_an_entry(steps):
    permits, granted, delivered = Permits(), 0, 0
    for kind, messages in steps:
        if kind == "grant":
            permits.grant(messages)
            granted += messages
        elif permits.allow():
            permits.charge(messages)
            delivered += messages
            assert delivered <= granted + messages - 1
        else:
            assert delivered >= granted
        assert permits.available == granted - delivered


@pytest.mark.parametrize("messages", [0, -1])
def test_a_grant_of_nothing_is_a_breach(messages):
    with pytest.raises(ProtocolBreach):
        Permits().grant(messages)


# --- ledgers ---------------------------------------------------------------------------------------------------------


def chain(max_entries=3):
    ids = iter(range(5, 1000, 2))
    return LedgerChain(lambda: next(ids), max_entries)


@given(st.lists(st.sampled_from(["write", "write", "write", "lose"]), max_size=30), st.integers(1, 4))
def test_positions_and_offsets(steps, max_entries):
    ledgers, model = chain(max_entries), []
    for step in steps:
        at = ledgers.reserve()
        if step == "write":
            assert ledgers.store(stored(*at)) == len(model)
            model.append(at)
        else:
            ledgers.abandon()
    assert model == sorted(model)
    assert [ledgers.offset(*at) for at in model] == list(range(len(model)))
    by_ledger = {}
    for ledger, entry in model:
        by_ledger.setdefault(ledger, []).append(entry)
    assert all(entries == list(range(len(entries))) for entries in by_ledger.values())
    assert all(len(entries) <= max_entries for entries in by_ledger.values())
    for ledger in range(3, 5 + 2 * len(steps) + 2):
        for entry in range(-1, max_entries + 1):
            assert ledgers.through(ledger, entry) == sum(at <= (ledger, entry) for at in model)
            assert (ledgers.offset(ledger, entry) is not None) == ((ledger, entry) in model)
    if model:
        spans = ledgers.spans(0, len(model) - 1)
        assert [(ledger, entry) for ledger, low, high in spans for entry in range(low, high + 1)] == model


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "value"),
    # Published vectors of MurmurHash3_x86_32 with seed 0.
    [
        (b"", 0),
        (b"hello", 0x248BFA47),
        (b"hello, world", 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_murmur3(data, value):
    assert murmur3_32(data) == value
    assert sticky_slot(data) == (value & 0x7FFFFFFF) % 65536


def consumer(name, *ranges):
    parts = [SimpleNamespace(start=start, end=end) for start, end in ranges]
    return SimpleNamespace(name=name, request=SimpleNamespace(keySharedMeta=SimpleNamespace(hashRanges=parts)))


@given(st.lists(st.integers(0, 6), max_size=25))
def test_split_ranges_cover_every_slot_and_move_little(toggles):
    ranges, present = SplitRanges(), []
    people = [consumer(f"c{n}") for n in range(7)]
    probes = range(0, SLOTS, 997)
    for number in toggles:
        person, before = people[number], {slot: ranges.owner(slot) for slot in probes}
        if person in present:
            present.remove(person)
            ranges.remove(person)
        else:
            present.append(person)
            ranges.add(person)
        for slot in [0, SLOTS - 1, *probes]:
            owner = ranges.owner(slot)
            assert (owner in present) if present else owner is None
            if slot in before and before[slot] is not None and owner is not before[slot]:
                assert before[slot] is person or owner is person
    if present:
        assert {id(ranges.owner(slot)) for slot in range(SLOTS)} == {id(person) for person in present}


def test_sticky_ranges():
    ranges, one = StickyRanges(), consumer("a", (0, 10), (20, 30))
    ranges.add(one)
    assert [slot for slot in (0, 10, 11, 15, 19, 20, 30, 31) if ranges.owner(slot) is one] == [0, 10, 20, 30]
    for wanted in ([(10, 12)], [(-1, 5)], [(5, 3)], [(60000, SLOTS)], []):
        with pytest.raises(Refusal, match="ConsumerAssignError"):
            ranges.add(consumer("b", *wanted))
    ranges.remove(one)
    assert ranges.owner(5) is None


def test_sticky_key_prefers_the_ordering_key():
    assert stored(ordering_key=b"o", partition_key="k").sticky_key == b"o"
    assert stored(partition_key="k").sticky_key == b"k"
    assert stored(producer="me", sequence_id=4).sticky_key == b"me-4"


# --- the rest --------------------------------------------------------------------------------------------------------


def test_redelivery_counts():
    counts = RedeliveryCounts()
    counts.named(3)
    counts.named(3)
    assert (counts.get(3), counts.get(4)) == (2, 0)
    counts.forget(3)
    assert counts.get(3) == 0


def test_timers_fire_in_order_of_time_then_of_setting():
    timers, fired = Timers(), []
    for due, name in ((5, "b"), (3, "a"), (5, "c"), (4, "x")):
        timer = timers.set(due, lambda name=name: fired.append(name))
        if name == "x":
            timer.cancel()
    assert timers.next_due() == 3
    while (timer := timers.take_due(5)) is not None:
        timer.action()
    assert fired == ["a", "b", "c"]
    assert timers.next_due() is None


@pytest.mark.parametrize(
    ("given_name", "complete", "partition"),
    [
        ("x", "persistent://public/default/x", -1),
        ("a/b/x", "persistent://a/b/x", -1),
        ("persistent://a/b/x-partition-12", "persistent://a/b/x-partition-12", 12),
    ],
)
def test_topic_names(given_name, complete, partition):
    name = parse(given_name)
    assert (name.complete, name.partition) == (complete, partition)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", "InvalidTopicName"),
        ("a/b", "InvalidTopicName"),
        ("ftp://a/b/c", "InvalidTopicName"),
        ("persistent://a/b", "InvalidTopicName"),
        ("non-persistent://a/b/c", "NotAllowedError"),
    ],
)
def test_bad_topic_names(name, error):
    with pytest.raises(Refusal, match=error):
        parse(name)
