"""Known failures, as a file a team keeps beside its broker: what may fail, how, and why that is accepted for now.

One entry a line, fields separated by ``|``::

    system | client | clause | anomaly | known      | reason
    system | client | clause | anomaly | known from ci | reason
    system | client | clause | anomaly | flaky 7/20    | reason

``#`` starts a comment line. ``*`` stands for any value of a whole field (not of the status or the reason). The reason
is not optional: an entry nobody can explain is a failure nobody looks at. A *known* entry has to fail, or the run goes
red as stale (*from* a profile: only in that profile and longer ones, whose plans provoke it); a *flaky* one, whose
measured rate it carries, may fail or not.

A system or client is named without a version (``pulsar``: all of them), with a whole one (``pulsar@2.10.5``), or with
the first two numbers of one (``pulsar@2.10``: 2.10.0 and what follows it). The shipped files are called likewise, after
what all of their entries are of: ``pulsar.txt``, ``pulsar@2.10.txt``, ``pulsar@2.10.5.txt``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.gate.profile import PROFILE_NAMES
from harness.regular_file import read_regular
from harness.usage_error import UsageError

Status = Literal["known", "flaky"]

_FIELDS = ("system", "client", "clause", "anomaly", "status", "reason")
_LINE = re.compile(r"(\d+\.\d+)\.\d")
_OF_A_LINE = re.compile(r"[^@]+@\d+\.\d+")
_FLAKY = re.compile(r"flaky\s+(\d+)/(\d+)")
_KNOWN = re.compile(rf"known(?:\s+from\s+({'|'.join(PROFILE_NAMES)}))?")
_FORM = "system | client | clause | anomaly | known (or: known from ci, flaky 7/20) | reason"


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One accepted failure. ``failed`` of ``tries`` is the measured rate of a flaky one, None of a known one.

    ``since`` is the shortest profile in which a known one has to fail.
    """

    system: str
    client: str
    clause: str
    anomaly: str
    status: Status
    reason: str
    place: str
    failed: int | None = None
    tries: int | None = None
    since: str = PROFILE_NAMES[0]

    def due(self, profile: str) -> bool:
        """Whether a run of this profile that judges the clause has to see it fail."""
        return self.status == "known" and PROFILE_NAMES.index(profile) >= PROFILE_NAMES.index(self.since)

    def covers(self, system: str, client: str, clause: str) -> bool:
        """Whether the entry speaks of this cell. Systems and clients go by any of their ``names_of``."""
        parties = _field_matches(self.system, system) and _field_matches(self.client, client)
        return parties and self.clause in ("*", clause)

    def allows(self, anomaly: str) -> bool:
        """Whether this anomaly of a covered cell is the accepted one."""
        return self.anomaly in ("*", anomaly)

    @property
    def rate(self) -> str:
        """``7/20`` of a flaky entry, empty otherwise."""
        return "" if self.tries is None else f"{self.failed}/{self.tries}"


def listed_for(
    system: str, product: str, client: str, listed: Mapping[str, Sequence[KnownFailure]]
) -> list[KnownFailure]:
    """The entries that speak of a pair; the system may be meant by its name or by its product, and is any from here on.

    ``listed`` holds the entries by what they are of: a product, a system or a client, by any of its ``names_of``.
    """
    names = list(dict.fromkeys([*names_of(product), system]))
    lists = [name for name in (*names, *names_of(client)) if name in listed]
    entries = {entry.place: entry for name in lists for entry in listed[name]}.values()
    return [
        replace(entry, system="*")
        for entry in entries
        if any(_field_matches(entry.system, one) for one in names) and _field_matches(entry.client, client)
    ]


def names_of(value: str) -> list[str]:
    """What a system or client goes by, narrowest first: ``pulsar@2.10.5``, ``pulsar@2.10``, ``pulsar``."""
    name, _, version = value.partition("@")
    line = _LINE.match(version)
    return list(dict.fromkeys([value, *([f"{name}@{line[1]}"] if line is not None else []), name]))


def _field_matches(pattern: str, value: str) -> bool:
    return pattern in ("*", *names_of(value))


def parse(text: str, name: str) -> list[KnownFailure]:
    """The entries of a file's text, in order. Raises ``UsageError`` naming ``name`` and the line."""
    entries: list[KnownFailure] = []
    seen: dict[tuple[str, str, str, str], str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        entry = _parse_line(line, f"{name}:{number}")
        identity = (entry.system, entry.client, entry.clause, entry.anomaly)
        if identity in seen:
            raise UsageError(f"{entry.place}: the same failure is listed at {seen[identity]} already")
        seen[identity] = entry.place
        entries.append(entry)
    return entries


def _parse_line(line: str, place: str) -> KnownFailure:
    # The reason is free text and may hold the separator itself.
    fields = [field.strip() for field in line.split("|", len(_FIELDS) - 1)]
    if len(fields) != len(_FIELDS):
        raise UsageError(f"{place}: {len(fields)} fields where {len(_FIELDS)} are needed: {_FORM}")
    for title, value in zip(_FIELDS, fields, strict=True):
        if not value:
            raise UsageError(f"{place}: the {title} is empty; an entry reads: {_FORM}")
    system, client, clause, anomaly, status, reason = fields
    for title, value in zip(_FIELDS[:4], fields[:4], strict=True):
        if "*" in value and value != "*":
            raise UsageError(f"{place}: {title} {value!r}: '*' stands for a whole field only")
    known = _KNOWN.fullmatch(status)
    if known is not None:
        since = known[1] or PROFILE_NAMES[0]
        return KnownFailure(system, client, clause, anomaly, "known", reason, place, since=since)
    measured = _FLAKY.fullmatch(status)
    if measured is None:
        raise UsageError(
            f"{place}: status {status!r} is neither 'known' nor 'flaky FAILED/TRIES' (known, known from ci, flaky 7/20)"
        )
    failed, tries = int(measured[1]), int(measured[2])
    if not 0 < failed <= tries:
        raise UsageError(f"{place}: a rate of {failed}/{tries} is not one of a flaky failure")
    return KnownFailure(system, client, clause, anomaly, "flaky", reason, place, failed, tries)


def read(path: Path) -> list[KnownFailure]:
    """The entries of a file. Raises ``UsageError`` when it cannot be read or understood."""
    try:
        # An editor's byte order mark belongs to no field.
        text = read_regular(path).decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read the known-failing list {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the known-failing list {path} is not UTF-8 text ({error}); save it as that") from error
    return parse(text, str(path))


def check_names(
    entries: Iterable[KnownFailure], clauses: Collection[str], clients: Collection[str], systems: Collection[str] = ()
) -> None:
    """Refuse an entry that can never match: a clause the catalogue lacks, a client or a system nobody has.

    ``systems`` are names beyond those that can be asked for. Such an entry is a typing error that would silently accept
    nothing. Raises ``UsageError`` with its file and line.
    """
    from harness.systems.resolve import names_a_system

    for entry in entries:
        if entry.clause != "*" and entry.clause not in clauses:
            raise UsageError(f"{entry.place}: there is no clause {entry.clause!r}; `starquake clauses` lists them")
        if entry.client != "*" and entry.client.split("@", 1)[0] not in clients:
            raise UsageError(f"{entry.place}: there is no client {entry.client!r}; `starquake clients list` lists them")
        # A line is not run itself; its first version may be.
        first = f"{entry.system}.0" if _OF_A_LINE.fullmatch(entry.system) else entry.system
        if entry.system != "*" and entry.system not in systems and not names_a_system(first):
            raise UsageError(f"{entry.place}: there is no system {entry.system!r}; `starquake systems list` lists them")
