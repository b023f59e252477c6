"""A run as a directory: ``run.json`` and ``history/part-*.parquet`` (contract: ``docs/history.md``)."""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from harness.history.errors import HistoryError
from harness.history.event import COLUMNS, SCHEMA_VERSION, Event

PART_ROWS = 50_000
"""A part is complete at this many rows; until then each flush writes it anew under a temporary name."""

FLUSH_SECONDS = 1.0

_VERSION_KEY = b"starquake.schema"
_INTEGERS = {
    "index", "time_ns", "op", "partition", "sequence_id", "highest_sequence_id", "num_messages", "ledger_id",
    "entry_id", "batch_index", "redelivery_count", "chunk_id", "num_chunks", "payload_size", "permits", "request_id",
}  # fmt: skip
_REQUIRED = ("index", "time_ns", "layer", "kind", "phase")


def _type_of(column: str) -> Any:
    if column in _INTEGERS:
        return pa.int64()
    if column == "ack_set":
        return pa.list_(pa.int64())
    return pa.string()


ARROW_SCHEMA = pa.schema(
    [pa.field(column, _type_of(column)) for column in COLUMNS], metadata={_VERSION_KEY: str(SCHEMA_VERSION).encode()}
)


class RunInfo(msgspec.Struct, kw_only=True):
    """``run.json``. ``plan`` is the plan as plain data; ``versions`` names what was really run.

    ``cut_short`` says what went wrong with the run itself, in the middle: nothing in it proves a breach of anybody's.
    """

    schema: int = SCHEMA_VERSION
    run: str = ""
    protocol: str = "pulsar"
    system: str = ""
    client: str = ""
    versions: dict[str, str] = {}
    capabilities: dict[str, list[str]] = {}
    plan: dict[str, Any] = {}
    seed: int | str | None = None
    configuration: dict[str, Any] = {}
    cut_short: str | None = None


class HistoryWriter:
    """Stores the events of one run while it runs.

    Every ``flush_seconds`` the rows so far are on disk as whole, readable Parquet files, so a killed run loses what
    came after the last flush and nothing else. ``append`` never raises: a recorder is called in the middle of traffic,
    where an exception would look like a fault of the system under test. The error is kept in ``failure`` and raised
    by ``flush`` and ``close``.
    """

    def __init__(
        self, directory: Path, run_info: RunInfo, *, flush_seconds: float = FLUSH_SECONDS, part_rows: int = PART_ROWS
    ) -> None:
        """Create the run directory. Raises HistoryError when that cannot be done or it already holds a run."""
        self.directory = directory
        self.failure: HistoryError | None = None
        self._run_info = run_info
        self._part_rows = part_rows
        self._pending: list[Event] = []
        self._batches: list[Any] = []
        self._part = 0
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._closed = threading.Event()
        if (directory / "run.json").exists():
            raise HistoryError(f"{directory} already holds a run; choose an empty directory")
        try:
            (directory / "history").mkdir(parents=True, exist_ok=True)
            self._write_run_info()
        except OSError as error:
            raise _cannot_write(directory, error) from error
        self._thread = threading.Thread(
            target=self._flush_regularly, args=(flush_seconds,), name="history-flush", daemon=True
        )
        self._thread.start()

    def append(self, event: Event) -> None:
        """Take one event; it is on disk after the next flush. After a failure nothing more is kept."""
        if self.failure is not None:
            return
        with self._lock:
            self._pending.append(event)

    def flush(self) -> None:
        """Put all events so far on disk. Raises HistoryError, also one met earlier in the background."""
        with self._flushing:
            if self.failure is not None:
                raise self.failure
            with self._lock:
                events, self._pending = self._pending, []
            try:
                for start in range(0, len(events), self._part_rows):
                    self._batches.append(_to_batch(events[start : start + self._part_rows]))
                    self._write_part()
            except OSError as error:
                self.failure = _cannot_write(self.directory, error)
                raise self.failure from error
            except (pa.ArrowException, msgspec.MsgspecError, TypeError, ValueError) as error:
                self.failure = HistoryError(f"an event does not fit the history schema: {error}")
                raise self.failure from error

    def cut_short(self, reason: str) -> None:
        """Say in ``run.json`` that the run itself failed. Raises HistoryError."""
        self._run_info = msgspec.structs.replace(self._run_info, cut_short=reason)
        try:
            self._write_run_info()
        except OSError as error:
            raise _cannot_write(self.directory, error) from error

    def close(self) -> None:
        """Flush and stop. Raises HistoryError as ``flush`` does. A second call does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join()
        self.flush()

    def _flush_regularly(self, seconds: float) -> None:
        while not self._closed.wait(seconds):
            try:
                self.flush()
            except HistoryError:
                return

    def _write_run_info(self) -> None:
        _replace(self.directory / "run.json", msgspec.json.format(msgspec.json.encode(self._run_info), indent=2))

    def _write_part(self) -> None:
        table = pa.Table.from_batches(self._batches, schema=ARROW_SCHEMA).combine_chunks()
        target = self.directory / "history" / f"part-{self._part:05d}.parquet"
        temporary = target.with_suffix(".tmp")
        pq.write_table(table, temporary)
        os.replace(temporary, target)
        if table.num_rows >= self._part_rows:
            self._batches = []
            self._part += 1


def read_run_info(directory: Path) -> RunInfo:
    """``run.json`` of a run directory. Raises HistoryError when it is missing, damaged or of another schema version."""
    path = directory / "run.json"
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        if not directory.exists():
            raise HistoryError(f"{directory} is not a run directory: there is no such directory") from error
        held = next(iter(sorted(directory.glob("*/run.json")) or sorted(directory.glob("runs/*/run.json"))), None)
        hint = f"; give one of the runs in it, as {held.parent}" if held else ""
        raise HistoryError(f"{directory} is not a run directory: it has no run.json{hint}") from error
    except OSError as error:
        raise HistoryError(f"cannot read {path}: {error.strerror}") from error
    try:
        declared = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HistoryError(f"{path} is damaged: {error}") from error
    version = declared.get("schema") if isinstance(declared, dict) else None
    if version != SCHEMA_VERSION:
        raise HistoryError(f"{path} has history schema {version!r}; this version reads schema {SCHEMA_VERSION}")
    try:
        return msgspec.convert(declared, RunInfo)
    except msgspec.ValidationError as error:
        raise HistoryError(f"{path} is damaged: {error}") from error


def read_history(directory: Path) -> Iterator[Event]:
    """The events of a run directory in index order. Raises HistoryError, before the first event where it can."""
    read_run_info(directory)
    parts = sorted((directory / "history").glob("*.parquet"))
    if not parts:
        raise HistoryError(f"{directory} holds no events: there is no history/*.parquet")
    spans = [_check_part(path) for path in parts]
    return _in_order([span for span in spans if span is not None])


class _Part(msgspec.Struct, order=True):
    first: int
    last: int
    path: str


def _check_part(path: Path) -> _Part | None:
    """The index range of one part (None when it has no rows). Raises HistoryError when it is not ours to read."""
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            _check_schema(path, schema)
            if not pa.types.is_integer(schema.field("index").type):
                raise HistoryError(f"{path}: the column index holds {schema.field('index').type}, not integers")
            indices = file.read(columns=["index"]).column("index")
    except (pa.ArrowException, OSError) as error:
        raise HistoryError(f"{path} is truncated or damaged: {error}") from error
    if len(indices) == 0:
        return None
    if indices.null_count:
        raise HistoryError(f"{path} has rows without an index")
    values = indices.to_pylist()
    return _Part(first=min(values), last=max(values), path=str(path))


def _check_schema(path: Path, schema: Any) -> None:
    version = (schema.metadata or {}).get(_VERSION_KEY)
    if version is not None and version != str(SCHEMA_VERSION).encode():
        found = version.decode(errors="replace")
        raise HistoryError(f"{path} has history schema {found}; this version reads schema {SCHEMA_VERSION}")
    unknown = sorted(set(schema.names) - set(COLUMNS))
    missing = [column for column in _REQUIRED if column not in schema.names]
    if unknown or missing:
        raise HistoryError(
            f"{path} does not follow history schema {SCHEMA_VERSION}: "
            f"unknown columns {unknown or 'none'}, missing columns {missing or 'none'}"
        )


def _in_order(parts: list[_Part]) -> Iterator[Event]:
    """Merge parts by index. Parts whose ranges overlap are read side by side, the others one after another."""
    groups: list[list[_Part]] = []
    reach = -1
    for part in sorted(parts):
        if groups and part.first <= reach:
            groups[-1].append(part)
        else:
            groups.append([part])
        reach = max(reach, part.last)
    previous: int | None = None
    for group in groups:
        for event in heapq.merge(*(_read_part(part.path) for part in group), key=lambda event: event.index):
            if event.index == previous:
                raise HistoryError(f"{group[0].path}: index {event.index} occurs twice")
            previous = event.index
            yield event


def _read_part(path: str) -> Iterator[Event]:
    try:
        table = pq.read_table(path, partitioning=None).sort_by("index")
        columns = [name for name in COLUMNS if name in table.column_names]
        table = table.select(columns).cast(pa.schema([ARROW_SCHEMA.field(name) for name in columns]))
        for batch in table.to_batches(max_chunksize=4096):
            for row in batch.to_pylist():
                yield _to_event(path, row)
    except (pa.ArrowException, OSError) as error:
        raise HistoryError(f"{path} is truncated or damaged: {error}") from error


def _to_batch(events: list[Event]) -> Any:
    arrays = []
    for field in ARROW_SCHEMA:
        values: list[Any] = [getattr(event, field.name) for event in events]
        if field.name == "extra":
            values = [msgspec.json.encode(value).decode() if value else None for value in values]
        arrays.append(pa.array(values, type=field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _to_event(path: str, row: dict[str, Any]) -> Event:
    present = {name: value for name, value in row.items() if value is not None}
    try:
        if "extra" in present:
            present["extra"] = msgspec.json.decode(present["extra"], type=dict[str, Any])
        return msgspec.convert(present, Event)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HistoryError(f"{path}: event {row.get('index')} does not follow the event contract: {error}") from error


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_suffix(".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, target)


def _cannot_write(directory: Path, error: OSError) -> HistoryError:
    reason = error.strerror or str(error)
    return HistoryError(
        f"cannot write the history in {directory}: {reason}; free space there or choose another directory"
    )
