"""What a gate run found, as one document: written to ``gate.json``, read again by ``starquake report``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import msgspec

from harness.history.event import Event
from harness.seeds.rate import Rate
from harness.usage_error import UsageError
from harness.verdict import EXIT_INTERRUPTED, EXIT_USAGE, EXIT_VIOLATION, Cell, Verdict, exit_code
from harness.worlds.plan import Plan

SCHEMA = 1
RESULT_FILE = "gate.json"


class ClauseText(msgspec.Struct, kw_only=True):
    """What the reports quote of a clause, frozen with the result so that an old report keeps the rule it judged by."""

    id: str
    family: str
    title: str
    rule: str
    binds: str
    source: str


class Pair(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One system with one client. ``setup_error``: the environment lacked something and nothing was judged."""

    system: str
    client: str
    system_version: str = ""
    client_version: str = ""
    directed: int = 0
    examples: int = 0
    events: int = 0
    seconds: float = 0.0
    errors: list[str] = []
    setup_error: str | None = None


class Excerpt(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The part of a history around a witness. ``left_out`` counts the events before, between and after."""

    events: list[Event] = []
    witness: list[int] = []
    left_out: int = 0


class Failure(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One anomaly of one clause in one pair, with its evidence.

    ``accepted`` is empty for a new failure; such a one was shrunk, measured and stored as a seed. ``found_by`` names
    the directed plan, stored seed or random example. ``rate`` is None when there was no time to measure it.
    """

    clause: str
    anomaly: str
    system: str
    client: str
    message: str
    severity: str
    found_by: str
    accepted: Literal["", "known", "flaky"] = ""
    accepted_reason: str = ""
    excerpt: Excerpt
    plan: Plan
    runs: int = 1
    steps_found: int = 0
    shrink_note: str = ""
    rate: Rate | None = None
    seed: str | None = None
    seed_path: str | None = None
    replay: str = ""
    history: str = ""


class GateResult(msgspec.Struct, kw_only=True):
    """A whole run. ``seed`` is the base of Hypothesis' randomness; ``started`` ISO 8601 UTC."""

    schema: int = SCHEMA
    title: str = "gate"
    started: str
    seconds: float = 0.0
    profile: str = ""
    seed: int | None = None
    select: str = "*"
    versions: dict[str, str] = {}
    clauses: dict[str, ClauseText] = {}
    pairs: list[Pair] = []
    cells: list[Cell] = []
    failures: list[Failure] = []
    interrupted: bool = False

    @property
    def counts(self) -> dict[Verdict, int]:
        """Cells by verdict, those that occur."""
        return dict(Counter(cell.verdict for cell in self.cells))

    @property
    def stale(self) -> int:
        """Cells in which a known failure did not fail."""
        return sum(1 for cell in self.cells if cell.stale)

    @property
    def harness_errors(self) -> list[str]:
        """Every error of the harness, pair by pair."""
        return [f"{pair.system} x {pair.client}: {error}" for pair in self.pairs for error in pair.errors]

    @property
    def new_failures(self) -> list[Failure]:
        """Failures nobody has accepted."""
        return [failure for failure in self.failures if not failure.accepted]

    def exit_code(self) -> int:
        """130 after Ctrl-C; else as ``harness.verdict.exit_code``, with 2 when a pair could not be set up."""
        if self.interrupted:
            return EXIT_INTERRUPTED
        judged = exit_code(self.cells, harness_errors=len(self.harness_errors))
        if judged != EXIT_VIOLATION and any(pair.setup_error for pair in self.pairs):
            return EXIT_USAGE
        return judged


def save(result: GateResult, directory: Path) -> Path:
    """Write ``gate.json``. Raises ``OSError``."""
    path = directory / RESULT_FILE
    path.write_bytes(msgspec.json.encode(result) + b"\n")
    return path


def load(directory: Path) -> GateResult:
    """Read ``gate.json`` of a report directory. Raises ``UsageError``."""
    path = directory / RESULT_FILE
    try:
        raw: Any = msgspec.json.decode(path.read_bytes())
        if isinstance(raw, dict) and raw.get("schema") != SCHEMA:
            raise UsageError(f"{path} has schema {raw.get('schema')!r}; this version reads schema {SCHEMA} only")
        return msgspec.convert(raw, GateResult)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not the result of a gate run: {error}") from error
