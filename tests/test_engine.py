"""The judge: the stream of a key is the same online, over a stored run, and however keys are interleaved."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.history.event import Event
from harness.history.parquet import HistoryWriter, RunInfo, read_history
from harness.history.recorder import Recorder
from harness.invariants import dedup, producer, receipts
from harness.invariants.core import Anomaly, FoldState, Invariant, Key, Undecided
from harness.invariants.engine import EXAMPLES_KEPT, InvariantFailed, Judge, Judgement, judge_history
from tests.history_builder import PRODUCER, TOPIC, History

REAL = (*dedup.INVARIANTS, *receipts.INVARIANTS, *producer.INVARIANTS)


class Tape(FoldState):
    __slots__ = ("seen",)

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.seen: list[int] = []


class Taping(Invariant[Tape]):
    """Reports at the end exactly which events it was shown."""

    name = "taping"
    family = "test"
    clauses = ("TAPE", "STEP")

    def key(self, event: Event) -> Key | None:
        return (event.topic,) if event.topic is not None else None

    def broadcast(self, event: Event) -> bool:
        return event.kind == "all"

    def start(self, key: Key) -> Tape:
        return Tape(key)

    def step(self, state: Tape, event: Event) -> Iterable[Anomaly]:
        state.seen.append(event.index)
        state.judged["STEP"] += 1
        if event.kind == "bad":
            yield Anomaly(name="bad", clause="STEP", key=state.key, message="", witness=(event.index,))
        if event.kind == "odd":
            state.undecided.append(Undecided(clause="STEP", key=state.key, reason="odd", witness=(event.index,)))

    def finish(self, state: Tape) -> Iterator[Anomaly]:
        yield Anomaly(name="tape", clause="TAPE", key=state.key, message="", witness=tuple(state.seen))


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    rows = draw(
        st.lists(
            st.tuples(st.sampled_from([None, "a", "b", "c"]), st.sampled_from(["x", "all", "bad", "odd"])), max_size=40
        )
    )
    return [Event(run="r", index=index, topic=topic, kind=kind) for index, (topic, kind) in enumerate(rows)]


def by_definition(events: list[Event]) -> dict[Key, tuple[int, ...]]:
    invariant = Taping()
    keys = {key for event in events if (key := invariant.key(event)) is not None}
    return {
        key: tuple(event.index for event in events if invariant.key(event) == key or invariant.broadcast(event))
        for key in keys
    }


@given(histories())
def test_each_key_sees_its_events_and_all_broadcasts_also_earlier_ones(events):
    judgement = judge_history(events, [Taping()])
    assert {found.key: found.witness for found in judgement.results["TAPE"].anomalies} == by_definition(events)


@given(histories(), st.integers(1, 4))
def test_judging_keys_apart_and_merging_gives_the_same(events, workers):
    invariant = Taping()
    whole = judge_history(events, [invariant])
    keys = sorted(by_definition(events))
    merged = judge_history([], [invariant])
    for worker in range(workers):
        mine = {key for place, key in enumerate(keys) if place % workers == worker}
        part = [
            event for event in events
            if invariant.key(event) in mine or (invariant.broadcast(event) and invariant.key(event) is None)
        ]  # fmt: skip
        foreign = [event for event in events if invariant.broadcast(event) and event not in part]
        stream = sorted((*part, *foreign), key=lambda event: event.index)
        judgement = judge_history(stream, [invariant])
        only = Judgement(
            results={
                clause: type(result)(
                    judged=0,
                    anomalies=[found for found in result.anomalies if found.key in mine],
                )
                for clause, result in judgement.results.items()
            }
        )
        merged = merged.merge(only)
    for clause, result in whole.results.items():
        assert merged.results[clause].anomalies == result.anomalies


def scenario(name: str, producer_name: str, topic: str) -> list[Event]:
    """A short life of one producer, with a cut, a repetition and something wrong in it."""
    h = History()
    h.registered()
    h.published(0, f"{name} a", (0, 0))
    h.sent(1, f"{name} b")
    h.receipt(1, (0, 1), side="broker")
    h.closed()
    h.registered(conn=2, request_id=2)
    h.sent(1, f"{name} b", conn=2)
    h.receipt(1, (0, 2), conn=2)
    h.entry(0, 0, f"{name} a", sequence_id=0)
    h.entry(0, 1, f"{name} b", sequence_id=1)
    h.entry(0, 2, f"{name} b", sequence_id=1)
    h.log_end()
    for event in h.events:
        event.topic = topic if event.topic == TOPIC else event.topic
        event.producer = producer_name if event.producer == PRODUCER else event.producer
        event.connection = f"{event.connection}-{name}" if event.connection else None
        event.op = event.op + 100 * int(name) if event.op is not None else None
    return h.events


@settings(max_examples=25, deadline=None)
@given(order=st.permutations([number for number in range(3) for _ in range(30)]), dedup_on=st.booleans())
def test_online_and_stored_and_reshuffled_keys_agree(tmp_path_factory, order, dedup_on):
    topics = [f"{TOPIC}-{number}" for number in range(3)]
    queues = {number: scenario(str(number), f"p{number}", topics[number]) for number in range(3)}
    directory = tmp_path_factory.mktemp("run") / "run"
    writer = HistoryWriter(directory, RunInfo(run="test"), flush_seconds=60, part_rows=7)
    judge = Judge(REAL)
    recorder = Recorder("test", lambda: 0, [judge.observe], writer)
    recorder.record(layer="fault", kind="dedup", extra={"enabled": dedup_on})
    picked = [queues[number].pop(0) for number in order if queues[number]]
    picked += [event for queue in queues.values() for event in queue]
    for event in picked:
        columns = {name: getattr(event, name) for name in event.__struct_fields__}
        for own in ("run", "index", "time_ns"):
            del columns[own]
        recorder.record(**columns)
    writer.close()
    online = judge.finish()
    assert judge_history(read_history(directory), REAL) == online
    counts = {
        clause: (result.judged, result.anomalies_total, result.undecided_total)
        for clause, result in online.results.items()
    }
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for number in range(3):
        alone = [Event(index=0, layer="fault", kind="dedup", extra={"enabled": dedup_on})]
        for event in scenario(str(number), f"p{number}", topics[number]):
            event.index += 1
            event.time_ns = 0
            alone.append(event)
        for clause, result in judge_history(alone, REAL).results.items():
            for place, count in enumerate((result.judged, result.anomalies_total, result.undecided_total)):
                expected[clause][place] += count
    assert counts == {clause: tuple(sums) for clause, sums in expected.items()}
    assert (counts["D1.1"][1] > 0) is dedup_on


def test_examples_are_capped_but_counted():
    events = [Event(index=index, topic="a", kind="bad") for index in range(30)]
    events += [Event(index=30 + index, topic="a", kind="odd") for index in range(30)]
    result = judge_history(events, [Taping()]).results["STEP"]
    assert (len(result.anomalies), result.anomalies_total) == (EXAMPLES_KEPT, 30)
    assert (len(result.undecided), result.undecided_total) == (EXAMPLES_KEPT, 30)


def test_clauses_never_provoked_are_listed_all_the_same():
    assert judge_history([], [Taping()]).results.keys() == {"TAPE", "STEP"}


def test_merge_adds_and_does_not_change_its_operands():
    one = judge_history([Event(index=0, topic="a", kind="bad")], [Taping()])
    two = judge_history([Event(index=0, topic="b", kind="bad")], [Taping()])
    merged = one.merge(two)
    assert merged == two.merge(one)
    assert merged.results["STEP"].judged == 2
    assert len(one.results["STEP"].anomalies) == 1
    assert [found.key for found in merged.anomalies if found.name == "bad"] == [("a",), ("b",)]


class Broken(Taping):
    name = "broken"

    def step(self, state: Tape, event: Event) -> Iterable[Anomaly]:
        raise KeyError("oops")


class Undeclared(Taping):
    name = "undeclared"

    def finish(self, state: Tape) -> Iterator[Anomaly]:
        yield Anomaly(name="x", clause="OTHER", key=state.key, message="", witness=())


@pytest.mark.parametrize("invariant", [Broken(), Undeclared()])
def test_an_invariant_that_breaks_is_the_harness_failing_and_only_at_the_end(invariant):
    judge = Judge([invariant])
    judge.observe(Event(index=3, topic="a"))
    judge.observe(Event(index=4, topic="a"))
    with pytest.raises(InvariantFailed, match=invariant.name):
        judge.finish()


def test_found_counts_what_is_proved_so_far():
    judge = Judge([Taping()])
    judge.observe(Event(index=0, topic="a", kind="bad"))
    assert judge.found == 1
