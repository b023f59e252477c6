"""Which jars a version consists of: one line a jar, the same text in the repository and beside what is installed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from harness.fixture_files import fixture_directory
from harness.setup_error import SetupError
from harness.systems.pulsar.version import PulsarVersion

_WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_LINE = re.compile(rf"([0-9a-f]{{64}}) ([1-9]\d{{0,11}}) ({_WORD}):({_WORD}):({_WORD})(?::({_WORD}))?", re.ASCII)
_HEAD = re.compile(r"pulsar (\S+), (\d+) jars, (\d+) bytes")


class LockError(Exception):
    """A text that is no list of pinned jars; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar as a Maven registry has it: ``size`` in bytes, ``sha256`` in lower-case hexadecimal."""

    group: str
    artifact: str
    version: str
    classifier: str
    size: int
    sha256: str

    @property
    def coordinate(self) -> str:
        """``group:artifact:version[:classifier]``."""
        return ":".join(filter(None, (self.group, self.artifact, self.version, self.classifier)))

    @property
    def published_file(self) -> str:
        """Its name in a registry."""
        return "-".join(filter(None, (self.artifact, self.version, self.classifier))) + ".jar"

    @property
    def file(self) -> str:
        """Its name in a directory of jars; with the group, as two groups may use one artifact name."""
        return f"{self.group}.{self.published_file}"


@dataclass(frozen=True, slots=True)
class Lock:
    """All jars of a version, in the order of the class path."""

    version: PulsarVersion
    jars: tuple[Jar, ...]

    @property
    def size(self) -> int:
        """Bytes of all jars."""
        return sum(jar.size for jar in self.jars)

    def text(self) -> str:
        """What ``parse`` reads."""
        lines = [f"{jar.sha256} {jar.size} {jar.coordinate}" for jar in self.jars]
        head = f"pulsar {self.version}, {len(self.jars)} jars, {self.size} bytes"
        return "\n".join([head, "sha256 size group:artifact:version[:classifier]", *lines, ""])


def parse(text: str) -> Lock:
    """Reads what ``Lock.text`` wrote. Raises ``LockError``, also when lines are missing."""
    lines = text.splitlines()
    head = _HEAD.fullmatch(lines[0]) if lines else None
    if head is None:
        raise LockError("line 1 should be like 'pulsar 4.0.7, 269 jars, 150000000 bytes'")
    jars: list[Jar] = []
    for number, line in enumerate(lines[2:], start=3):
        match = _LINE.fullmatch(line)
        if match is None:
            raise LockError(f"line {number} is not 'sha256 size group:artifact:version[:classifier]': {line[:120]!r}")
        sha256, size, group, artifact, version, classifier = match.groups()
        jars.append(Jar(group, artifact, version, classifier or "", int(size), sha256))
    lock = Lock(PulsarVersion.parse(head[1]), tuple(jars))
    if (len(jars), lock.size) != (int(head[2]), int(head[3])):
        raise LockError(f"line 1 speaks of {head[2]} jars of {head[3]} bytes, but there are {len(jars)} of {lock.size}")
    if len({jar.file for jar in jars}) < len(jars):
        raise LockError("a jar is listed twice")
    return lock


def read(path: Path) -> Lock:
    """The lock in a file. Raises ``LockError`` naming the file, ``OSError``."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (LockError, ValueError) as error:
        raise LockError(f"{path}: {error}") from error


def lock_directory() -> Path:
    """Where the locks are that come with Starquake."""
    return fixture_directory() / "version-locks" / "pulsar"


def lock_file(version: PulsarVersion) -> Path:
    """Where the lock of a version is, or would be."""
    return lock_directory() / f"{version}.lock"


def pinned(version: PulsarVersion) -> Lock | None:
    """The lock that comes with Starquake; None when it pins no such version. Raises ``SetupError``."""
    path = lock_file(version)
    if not path.is_file():
        return None
    try:
        lock = read(path)
    except (LockError, OSError) as error:
        raise SetupError(f"a file of Starquake itself is damaged: {error}", "Install Starquake again.") from error
    if lock.version != version:
        raise SetupError(f"{path} is about pulsar@{lock.version}", "Install Starquake again.")
    return lock


def pinned_versions() -> list[PulsarVersion]:
    """All that have a lock, oldest first."""
    return sorted(PulsarVersion.parse(path.stem) for path in lock_directory().glob("*.lock"))
