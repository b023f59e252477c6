"""Frozen requirement sets: which clauses bind the brokers of a release line, one TOML file a line, as data.

``requirements/pulsar-2.10.toml`` speaks of Pulsar 2.10.x, and of later versions up to the next file's. It names every
clause of the catalogue exactly once, so that a promise is never left out by accident::

    line = "2.10"
    frozen_for = ["2.10.5"]              # the versions it was frozen for
    broker = ["ACK-25", "C2"]            # bind every broker of this line
    client = ["ACK-CUM-02"]              # rules of the client alone, whatever broker it talks to

    [defaults]                           # settings that decide what is promised, as this line ships them
    brokerDeduplicationEnabled = "false"

    [[exempt]]                           # do not bind at all: the promise did not exist yet
    clauses = ["CHUNK-08"]
    why = "..."
    source = "PIP-37, apache/pulsar#16202"

    [[exempt]]                           # bind only brokers that run with this setting
    clauses = ["ACK-BATCH-01", "C7"]
    setting = "acknowledgmentAtBatchIndexLevelEnabled"
    value = "true"
    why = "..."
    source = "PIP-54"

    [[exempt]]                           # bind from this patch version on
    clauses = ["SOME-01"]
    from = "2.10.3"
    why = "..."
    source = "..."

    [[defects]]                          # bind, and are known to be broken: what belongs into a list of known failures
    clauses = ["DEDUP-08"]
    fixed = "2.10.6"                     # the first version of this line that keeps them; empty while there is none
    why = "..."
    source = "apache/pulsar#20948"

    [[notes]]                            # bind; what differs from other lines within the promise
    clauses = ["Q1"]
    why = "..."
    source = "..."

A defect never unbinds a clause: what a version was meant to do and does not is a failure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec

from harness.clauses.catalogue import Catalogue

PRODUCT = "pulsar"

_NUMBER = re.compile(r"v?(\d+(?:\.\d+)+)")


class RequirementsError(Exception):
    """A file of requirements is malformed or contradicts itself; the message names it."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of some clauses, why, and where that is written down."""

    clauses: tuple[str, ...]
    why: str
    source: str


class Exemption(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clauses that do not bind: never, only from a version on, or only with a setting of the broker."""

    since: str = msgspec.field(default="", name="from")
    setting: str = ""
    value: str = ""


class Defect(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clauses that bind and are known to be broken before version ``fixed``; in every version when it is empty."""

    fixed: str = ""


class Note(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a line keeps clauses in a way of its own."""


class RequirementSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What binds the brokers of one release line. See the module for the fields."""

    line: str
    frozen_for: tuple[str, ...]
    broker: tuple[str, ...]
    client: tuple[str, ...]
    defaults: dict[str, str]
    exempt: tuple[Exemption, ...] = ()
    defects: tuple[Defect, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        """Every clause the set decides about."""
        return (*self.broker, *self.client, *(clause for entry in self.exempt for clause in entry.clauses))

    def binding(self, clause: str, version: str, configuration: Mapping[str, str]) -> tuple[bool, str]:
        """Whether a clause binds a broker of this version with this configuration, and else why not.

        ``configuration`` is by Pulsar's names; a setting it lacks has the value it has by default. A clause the set
        does not name binds: nobody has said that it does not.
        """
        exemption = self.exemption(clause)
        if exemption is None:
            return True, ""
        if exemption.since and version_key(version) >= version_key(exemption.since):
            return True, ""
        if exemption.setting:
            default = self.defaults[exemption.setting]
            if _same(configuration.get(exemption.setting, default), exemption.value):
                return True, ""
        return False, f"Pulsar {self.line}: {self.terms(exemption)}"

    def exemption(self, clause: str) -> Exemption | None:
        """Why a clause may not bind brokers of this line; None for one that always does."""
        return next((entry for entry in self.exempt if clause in entry.clauses), None)

    def terms(self, exemption: Exemption) -> str:
        """On what an exemption hangs, why, and where that is written down."""
        condition = ""
        if exemption.since:
            condition = f"only from {exemption.since} on: "
        elif exemption.setting:
            default = self.defaults[exemption.setting]
            condition = f"only with {exemption.setting}={exemption.value} (default {default}): "
        return f"{condition}{exemption.why} ({exemption.source})"

    def defects_of(self, clause: str, version: str) -> list[Defect]:
        """What is known to be broken of a clause in this version."""
        return [
            entry
            for entry in self.defects
            if clause in entry.clauses and not (entry.fixed and version_key(version) >= version_key(entry.fixed))
        ]

    def notes_of(self, clause: str) -> list[Note]:
        """How this line keeps a clause, where it does so in a way of its own."""
        return [entry for entry in self.notes if clause in entry.clauses]


def _same(value: str, wanted: str) -> bool:
    """Whether two settings say the same: ``True`` is ``true``, ``1`` is ``1.0``."""
    try:
        return float(value) == float(wanted)
    except ValueError:
        return value.strip().lower() == wanted


def version_key(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare by. Raises ``ValueError`` where there are none."""
    found = _NUMBER.match(version)
    if found is None:
        raise ValueError(f"{version!r} is no version")
    return tuple(int(number) for number in found[1].split("."))


def load(directory: Traversable | None = None) -> list[RequirementSet]:
    """Every set of ``pulsar-*.toml`` in a directory (default: those shipped), oldest line first.

    Raises RequirementsError for a file that cannot be read as a set, or names a clause twice.
    """
    folder = directory if directory is not None else resources.files(__package__) / "requirements"
    sets = [
        _parsed(entry)
        for entry in folder.iterdir()
        if entry.name.startswith(f"{PRODUCT}-") and entry.name.endswith(".toml")
    ]
    return sorted(sets, key=lambda found: version_key(found.line))


def _parsed(entry: Traversable) -> RequirementSet:
    try:
        found = msgspec.toml.decode(entry.read_bytes(), type=RequirementSet)
        problems = _problems(found, entry.name)
    except (msgspec.DecodeError, ValueError) as error:
        raise RequirementsError(f"{entry.name}: {error}") from error
    if problems:
        raise RequirementsError(f"{entry.name}: {'; '.join(problems)}")
    return found


def _problems(found: RequirementSet, name: str) -> list[str]:
    """What a set says against itself. Raises ``ValueError`` for what should be a version and is none."""
    line = version_key(found.line)
    entries = [*found.exempt, *found.defects, *found.notes]
    problems = [] if name == f"{PRODUCT}-{found.line}.toml" else [f"it is of the line {found.line}"]
    within = [*found.frozen_for, *(entry.since for entry in found.exempt), *(entry.fixed for entry in found.defects)]
    problems += [
        f"{version} is no version of {found.line}"
        for version in within
        if version and version_key(version)[: len(line)] != line
    ]
    problems += [f"{clause} is named {found.named.count(clause)} times" for clause in _repeated(found.named)]
    problems += [f"{', '.join(entry.clauses)}: no why" for entry in entries if not entry.why]
    problems += [f"{', '.join(entry.clauses)}: no source" for entry in entries if not entry.source]
    for exemption in found.exempt:
        clauses = ", ".join(exemption.clauses)
        if exemption.since and exemption.setting:
            problems.append(f"{clauses}: from a version on, and with a setting; choose one")
        if bool(exemption.setting) != bool(exemption.value):
            problems.append(f"{clauses}: a setting needs a value, and a value a setting")
        if exemption.setting and exemption.setting not in found.defaults:
            problems.append(f"{clauses}: [defaults] does not say how {exemption.setting} is by default")
    problems += [
        f"{clause} has a defect or a note and is not named"
        for entry in (*found.defects, *found.notes)
        for clause in entry.clauses
        if clause not in found.named
    ]
    return problems


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def gaps(found: RequirementSet, catalogue: Catalogue) -> list[str]:
    """What keeps a set from being one of this catalogue: clauses it misses, and those there are not."""
    named = set(found.named)
    missing = [f"{clause.id} is missing" for clause in catalogue if clause.id not in named]
    unknown = [f"{clause} is no clause" for clause in found.named if clause not in catalogue]
    astray = [
        f"{clause} is listed as the client's and binds the {catalogue[clause].binds}"
        for clause in found.client
        if clause in catalogue and catalogue[clause].binds != "client"
    ]
    astray += [
        f"{clause} is listed as the broker's and binds the client alone"
        for clause in found.broker
        if clause in catalogue and catalogue[clause].binds == "client"
    ]
    return missing + unknown + astray


@cache
def _shipped() -> tuple[RequirementSet, ...]:
    return tuple(load())


def requirements_for(product: str, version: str = "") -> RequirementSet | None:
    """The newest set that is not newer than a product: ``pulsar@2.10.5``, or ``pulsar`` with a version beside it.

    None for everything that is no Pulsar, says no version, or is older than the oldest set: there all clauses bind.
    """
    number = _version_of(product, version)
    if number is None:
        return None
    fitting = [found for found in _shipped() if version_key(found.line) <= version_key(number)]
    return fitting[-1] if fitting else None


def beyond_every_set(version: str) -> bool:
    """Whether a version is of a later line than the newest set: what it changed is in no set."""
    newest = version_key(_shipped()[-1].line)
    return version_key(version)[: len(newest)] > newest


def exempted(clause: str, product: str, version: str, configuration: Mapping[str, str]) -> str:
    """Why a clause does not bind a broker; empty where it does. See ``requirements_for`` for product and version."""
    found, number = requirements_for(product, version), _version_of(product, version)
    if found is None or number is None:
        return ""
    return found.binding(clause, number, configuration)[1]


def _version_of(product: str, version: str) -> str | None:
    name, _, named = product.partition("@")
    number = named or version
    return number if name == PRODUCT and _NUMBER.match(number) else None
