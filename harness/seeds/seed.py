"""The seed file, format 1: operations, schedule, parties, versions and the anomaly they are expected to show.

A seed is never an RNG state: it replays without Hypothesis, on another machine and after the strategies have changed.
A file of another format is refused, never guessed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from harness.regular_file import read_regular
from harness.seeds.plan_check import BadPlan, check_plan
from harness.seeds.rate import Rate
from harness.usage_error import UsageError
from harness.worlds.plan import Operation, Plan, ScheduledFault

FORMAT = 1


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a replay must show to count as reproduced: this anomaly of this clause."""

    clause: str
    anomaly: str


class Seed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One stored reproduction. ``system`` and ``client`` are specs as the command line takes them.

    ``rate`` is what was measured when the seed was written; ``note`` is for people.
    """

    format: int
    id: str
    protocol: str
    system: str
    client: str
    versions: dict[str, str]
    operations: list[Operation]
    schedule: list[ScheduledFault]
    topic_options: dict[str, Any]
    expect: Expectation
    rate: Rate
    note: str = ""

    def plan(self) -> Plan:
        """The plan to carry out."""
        return Plan(operations=self.operations, schedule=self.schedule, topic_options=self.topic_options)


def fingerprint(expect: Expectation, plan: Plan) -> str:
    """The id of a seed: 12 hex digits over clause, anomaly, topic options and steps.

    Parties, versions and rate stay out, so that the same bug found on two systems has one id.
    """
    steps = [[type(step).__name__, step] for step in plan.steps()]
    identity = [expect.clause, expect.anomaly, plan.topic_options, steps]
    return hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()[:12]


def make_seed(
    expect: Expectation,
    plan: Plan,
    *,
    protocol: str,
    system: str,
    client: str,
    versions: dict[str, str],
    rate: Rate,
    note: str = "",
) -> Seed:
    """A seed of the present format, its id computed."""
    return Seed(
        format=FORMAT,
        id=fingerprint(expect, plan),
        protocol=protocol,
        system=system,
        client=client,
        versions=versions,
        operations=plan.operations,
        schedule=plan.schedule,
        topic_options=plan.topic_options,
        expect=expect,
        rate=rate,
        note=note,
    )


def encode(seed: Seed) -> bytes:
    """The file's bytes: indented JSON, stable, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(seed, order="sorted"), indent=2) + b"\n"


def decode(data: bytes, name: str) -> Seed:
    """Read a seed file's bytes. Raises ``UsageError`` naming ``name`` and what is wrong with it."""
    if not data.strip():
        raise UsageError(f"{name} is not a seed: it is empty; `starquake gate` stores a seed for each new failure")
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON, or only a part of it ({error}); copy the seed file again") from error
    if not isinstance(raw, dict) or "format" not in raw:
        raise UsageError(f'{name} is not a seed: a seed is a JSON object with a "format"')
    if raw["format"] != FORMAT:
        raise UsageError(f"{name} has seed format {raw['format']!r}; this version reads format {FORMAT} only")
    try:
        seed = msgspec.convert(raw, Seed)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UsageError(f"{name} is not a seed of format {FORMAT}: {error}") from error
    beyond = [entry.before for entry in seed.schedule if not 0 <= entry.before <= len(seed.operations)]
    if beyond:
        count = len(seed.operations)
        raise UsageError(f"{name}: a fault is placed before operation {beyond[0]}, but there are {count}")
    actual = fingerprint(seed.expect, seed.plan())
    if seed.id != actual:
        raise UsageError(
            f"{name}: the id {seed.id} is not that of its contents ({actual}); an edited seed is another one"
        )
    try:
        check_plan(seed.plan())
    except BadPlan as error:
        raise UsageError(f"{name} cannot be carried out: {error}") from error
    return seed


def read(path: Path) -> Seed:
    """Read a seed file. Raises ``UsageError``."""
    try:
        data = read_regular(path)
    except OSError as error:
        hint = "; `starquake seeds` lists those that are stored" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"cannot read the seed {path}: {error.strerror or error}{hint}") from error
    return decode(data, str(path))


def write(seed: Seed, directory: Path) -> Path:
    """Store a seed as ``ID.json`` in ``directory`` (made when missing); returns the path. Raises ``OSError``."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{seed.id}.json"
    path.write_bytes(encode(seed))
    return path


def stored(directory: Path) -> list[tuple[Path, Seed]]:
    """Every seed of a directory, by file name. Raises ``UsageError`` on the first that is broken."""
    return [(path, read(path)) for path in sorted(directory.glob("*.json"))]
