"""All invariants judge a run alike: online while it is recorded, and afterwards over its stored directory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.history.event import Event
from harness.history.parquet import HistoryWriter, RunInfo, read_history
from harness.history.recorder import Recorder
from harness.invariants.engine import Judge, Judgement, judge_history
from harness.invariants.registry import all_invariants
from harness.reference.client.config import ClientConfig
from harness.worlds.plan import Plan
from harness.worlds.simulated import SimulatedWorld
from harness.worlds.world import Outcome
from properties.explore import Settings, directed_plans, explore, run_plan
from properties.families import FAMILIES
from tests.test_invariants_never_raise import REAL, bend, drawn_event, real_history

TOLD = (
    "acks-batch-shared", "acks-key-shared", "acks-lost-cumulative", "acks-seek", "acks-unsubscribe",
    "chunks-interleaved", "chunks-nacked", "chunks-two-consumers", "dead_letter-mixed", "dedup-automatic-ids",
    "receipts-timeout", "receipts-topic-terminated", "acks-subscription-outlives-broker", *REAL,
)  # fmt: skip


def both_ways(events: list[Event], directory: Path, part_rows: int) -> tuple[Judgement, Judgement]:
    """The judgement of a recorder's observer, and that of the directory which the same recorder wrote."""
    writer = HistoryWriter(directory, RunInfo(run="r"), flush_seconds=60, part_rows=part_rows)
    judge = Judge(all_invariants())
    times = iter(event.time_ns for event in events)
    recorder = Recorder("r", lambda: next(times), [judge.observe], writer)
    for event in events:
        columns = {name: getattr(event, name) for name in event.__struct_fields__}
        for own in ("run", "index", "time_ns"):
            del columns[own]
        recorder.record(**columns)
    writer.close()
    return judge.finish(), judge_history(read_history(directory), all_invariants())


def test_runs_of_every_family_and_every_invariant(tmp_path: Path) -> None:
    histories: list[tuple[Event, ...]] = []
    world = SimulatedWorld(invariants=())
    with_ack_receipts = SimulatedWorld(invariants=(), client_config=ClientConfig(ack_receipt=True))

    def keep(plan: Plan, outcome: Outcome) -> None:
        assert outcome.error is None
        histories.append(tuple(outcome.history))

    for family in FAMILIES:
        explore(family, world, Settings(examples=3, steps=20, seed=1), keep)
        for name, plan in directed_plans(family):
            if name in TOLD:
                keep(plan, run_plan(world, plan))
                if family == "acks":
                    keep(plan, run_plan(with_ack_receipts, plan))
    judged: Counter[str] = Counter()
    for number, history in enumerate(histories):
        online, stored = both_ways(list(history), tmp_path / str(number), 100)
        assert online == stored
        judged.update({clause: result.judged for clause, result in online.results.items()})
    idle = {one.name for one in all_invariants() if not sum(judged[clause] for clause in one.clauses)}
    assert idle == set(), "an invariant that decides nothing here is not compared"


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(drawn_event(), min_size=1, max_size=30), st.integers(1, 9))
def test_random_events(tmp_path_factory: pytest.TempPathFactory, events: list[Event], part_rows: int) -> None:
    for place, event in enumerate(events):
        event.time_ns = place * 700_000_000
    online, stored = both_ways(events, tmp_path_factory.mktemp("run") / "run", part_rows)
    assert online == stored


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_bent_runs(tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject) -> None:
    events = [msgspec.structs.replace(event) for event in real_history(name)]
    for place in data.draw(st.lists(st.integers(0, len(events) - 1), max_size=12)):
        events[place] = bend(data.draw, events[place])
    for gone in sorted(data.draw(st.sets(st.integers(0, len(events) - 1), max_size=6)), reverse=True):
        del events[gone]
    online, stored = both_ways(events, tmp_path_factory.mktemp("run") / "run", 64)
    assert online == stored
