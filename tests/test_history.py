"""Stored histories: what was recorded is what is read, and what cannot be read is said."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.history import parquet
from harness.history.errors import HistoryError
from harness.history.event import Event
from harness.history.parquet import HistoryWriter, RunInfo, read_history, read_run_info
from harness.history.recorder import Recorder

WORDS = st.one_of(st.none(), st.text(max_size=8))
NUMBERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    return [
        Event(
            run="r",
            index=index * 3,
            time_ns=draw(st.integers(0, 2**62)),
            layer=draw(st.sampled_from(["api", "tap.client", "tap.broker", "fault", "admin", "log"])),
            kind=draw(st.text(max_size=6)),
            phase=draw(st.sampled_from(["invoke", "ok", "fail", "unknown", "event"])),
            op=draw(NUMBERS),
            topic=draw(WORDS),
            sequence_id=draw(NUMBERS),
            ack_set=draw(st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)),
            payload_digest=draw(WORDS),
            extra=draw(st.dictionaries(st.text(max_size=4), JSON, max_size=3)),
        )
        for index in range(draw(st.integers(0, 30)))
    ]


@settings(max_examples=40, deadline=None)
@given(recorded=events(), part_rows=st.integers(1, 12), flush_at=st.sets(st.integers(0, 29)))
def test_what_was_recorded_is_what_is_read(tmp_path_factory, recorded, part_rows, flush_at):
    directory = tmp_path_factory.mktemp("run") / "r"
    writer = HistoryWriter(directory, RunInfo(run="r"), flush_seconds=60, part_rows=part_rows)
    for place, event in enumerate(recorded):
        writer.append(event)
        if place in flush_at:
            writer.flush()
    writer.close()
    if recorded:
        assert list(read_history(directory)) == recorded
    else:
        with pytest.raises(HistoryError, match="no events"):
            read_history(directory)


def test_run_info_round_trip(tmp_path):
    info = RunInfo(run="x", system="lite", versions={"lite": "0.2.0"}, plan={"operations": []}, seed=4)
    HistoryWriter(tmp_path / "x", info).close()
    assert read_run_info(tmp_path / "x") == info
    assert msgspec.json.decode((tmp_path / "x" / "run.json").read_bytes())["schema"] == 1


def test_recorder_numbers_events_of_all_threads_in_the_order_observers_see_them():
    seen: list[int] = []
    stored: list[Event] = []
    recorder = Recorder("r", time.monotonic_ns, [lambda event: seen.append(event.index)], stored)
    threads = [threading.Thread(target=lambda: [recorder.record(kind="x") for _ in range(300)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == list(range(1200)) == [event.index for event in stored]
    times = [event.time_ns for event in stored]
    assert times == sorted(times)
    assert recorder.count == 1200


def test_an_observer_must_not_record():
    recorder = Recorder("r", lambda: 0, [lambda event: recorder.record(kind="again")])
    with pytest.raises(RuntimeError, match="must not record"):
        recorder.record(kind="x")


def test_a_killed_run_keeps_everything_up_to_the_last_flush(tmp_path):
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from harness.history.parquet import HistoryWriter, RunInfo\n"
        "from harness.history.recorder import Recorder\n"
        "writer = HistoryWriter(Path(sys.argv[1]), RunInfo(run='r'), flush_seconds=0.05)\n"
        "recorder = Recorder('r', time.monotonic_ns, (), writer)\n"
        "for n in range(100): recorder.record(kind='first')\n"
        "while not list(Path(sys.argv[1]).glob('history/*.parquet')): time.sleep(0.01)\n"
        "writer.flush()\n"
        "print('flushed', flush=True)\n"
        "while True: recorder.record(kind='later'); time.sleep(0.001)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path.cwd(),
        env={**os.environ, "PYTHONPATH": str(Path(parquet.__file__).parents[2])},
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "flushed"
    child.kill()
    child.wait()
    child.stdout.close()
    kept = list(read_history(tmp_path / "run"))
    assert [event.index for event in kept] == list(range(len(kept)))
    assert len(kept) >= 100


def one_run(directory: Path) -> Path:
    writer = HistoryWriter(directory, RunInfo(run="r"))
    for index in range(5):
        writer.append(Event(run="r", index=index, kind="x"))
    writer.close()
    return directory / "history" / "part-00000.parquet"


def test_not_a_run_directory(tmp_path):
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(HistoryError, match="not a run directory"):
            read_history(place)


def test_truncated_parquet(tmp_path):
    part = one_run(tmp_path)
    part.write_bytes(part.read_bytes()[:-40])
    with pytest.raises(HistoryError, match="truncated or damaged"):
        read_history(tmp_path)


def test_other_schema_version_in_run_json(tmp_path):
    one_run(tmp_path)
    (tmp_path / "run.json").write_text('{"schema": 2, "run": "r"}')
    with pytest.raises(HistoryError, match="schema 2"):
        read_history(tmp_path)


def test_parts_of_mixed_schema_versions(tmp_path):
    part = one_run(tmp_path)
    table = pq.read_table(part).replace_schema_metadata({b"starquake.schema": b"7"})
    pq.write_table(table, part.with_name("part-00001.parquet"))
    with pytest.raises(HistoryError, match="schema 7"):
        read_history(tmp_path)


def test_unknown_column_is_named(tmp_path):
    part = one_run(tmp_path)
    table = pq.read_table(part)
    pq.write_table(table.append_column("colour", pa.array(["red"] * 5)), part)
    with pytest.raises(HistoryError, match="colour"):
        read_history(tmp_path)


def test_repeated_index_is_refused(tmp_path):
    part = one_run(tmp_path)
    part.with_name("copy.parquet").write_bytes(part.read_bytes())
    with pytest.raises(HistoryError, match="index 0 occurs twice"):
        list(read_history(tmp_path))


def test_wrong_value_names_the_event(tmp_path):
    part = one_run(tmp_path)
    table = pq.read_table(part)
    place = table.column_names.index("layer")
    pq.write_table(table.set_column(place, "layer", pa.array(["api"] * 4 + ["moon"])), part)
    with pytest.raises(HistoryError, match="event 4"):
        list(read_history(tmp_path))


def test_a_foreign_writer_may_leave_columns_out_and_interleave_parts(tmp_path):
    one_run(tmp_path)
    for part in (tmp_path / "history").iterdir():
        part.unlink()
    for name, indices in (("a", [4, 0, 2]), ("b", [3, 1])):
        rows = {
            "index": pa.array(indices, pa.int32()),
            "time_ns": indices,
            "layer": ["api"] * len(indices),
            "kind": ["send"] * len(indices),
            "phase": ["invoke"] * len(indices),
        }
        pq.write_table(pa.table(rows), tmp_path / "history" / f"{name}.parquet")
    assert [event.index for event in read_history(tmp_path)] == [0, 1, 2, 3, 4]


def test_a_directory_that_holds_a_run_is_not_written_over(tmp_path):
    one_run(tmp_path)
    with pytest.raises(HistoryError, match="already holds a run"):
        HistoryWriter(tmp_path, RunInfo())


def test_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match="choose another directory"):
        HistoryWriter(tmp_path / "file" / "run", RunInfo())


def test_full_disk_is_said_at_flush_and_never_raised_into_the_recorder(tmp_path, monkeypatch):
    writer = HistoryWriter(tmp_path / "run", RunInfo(), flush_seconds=60)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet.pq, "write_table", full)
    writer.append(Event(index=0))
    with pytest.raises(HistoryError, match="No space left on device; free space"):
        writer.flush()
    writer.append(Event(index=1))
    assert writer.failure is not None
    with pytest.raises(HistoryError, match="No space left"):
        writer.close()
