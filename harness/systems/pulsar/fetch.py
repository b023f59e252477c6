"""Lets Maven bring jars: exactly the pinned ones, or all that a version needs."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from harness.setup_error import SetupError
from harness.systems.pulsar import pom
from harness.systems.pulsar.jdk import Java
from harness.systems.pulsar.lock import Jar, Lock, pinned_versions
from harness.systems.pulsar.maven import MavenFailed, run_maven
from harness.systems.pulsar.version import PulsarVersion

Progress = Callable[[str], None]

AT_ONCE = 4
"""Modules Maven works on at once. It reads the poms of one module one after the other: 55 s, with four modules 22 s."""

TOLD_EVERY = 10
"""Jars between two lines of progress."""

_DOWNLOADED = re.compile(r"Downloaded from \S+: \S+/([^/\s]+\.jar)\b")
_LISTED = re.compile(r"^\s+([^\s:]+):([^\s:]+):jar(?::([^\s:]+))?:([^\s:]+):(?:compile|runtime)(?:\s|$)", re.MULTILINE)
# What comes along and is of no use: natives of netty for other platforms than Linux, and the encryption of messages. Of
# Bouncy Castle the provider is kept (a broker with a TLS port loads it), which is why it is not simply left out of the
# pom: it comes with the rest, in versions that differ.
_USELESS = re.compile(
    r"io\.netty[\w.]*:[^:]+:[^:]+:(?:osx|windows)-.*"
    r"|org\.bouncycastle:(?!bcprov-jdk).*"
    r"|org\.apache\.pulsar:(?:bouncy-castle-bc|pulsar-client-messagecrypto-bc):.*"
)


async def fetch(lock: Lock, maven: Path, java: Java, target: Path, progress: Progress) -> None:
    """Exactly the jars of a lock, into ``target``; nothing is checked yet. Raises ``SetupError``."""
    with tempfile.TemporaryDirectory(prefix="starquake-maven-") as place:
        directory = Path(place)
        modules = [lock.jars[number::AT_ONCE] for number in range(AT_ONCE)]
        for number, jars in enumerate(modules):
            _write(directory / f"part{number}", pom.exact(f"part{number}", jars))
        _write(directory, pom.together([f"part{number}" for number in range(AT_ONCE)]))
        progress(f"fetching {len(lock.jars)} jars with Maven")
        count = _Count(progress, {jar.published_file for jar in lock.jars})
        arguments = [f"--threads={AT_ONCE}", *_copying(target)]
        await _run(lock.version, maven, java, arguments, directory, count.line)


async def resolve(version: PulsarVersion, maven: Path, java: Java, target: Path, progress: Progress) -> Lock:
    """Whatever the version needs, into ``target``, and what that was. Raises ``SetupError``."""
    with tempfile.TemporaryDirectory(prefix="starquake-maven-") as place:
        directory = Path(place)
        _write(directory, pom.resolving(version))
        progress("resolving with Maven")
        count = _Count(progress, None)
        arguments = [*_copying(target), f"{pom.DEPENDENCY_PLUGIN}:list", f"-DoutputFile={directory / 'list'}"]
        await _run(version, maven, java, arguments, directory, count.line)
        listed = (directory / "list").read_text(encoding="utf-8")
    return Lock(version, tuple(_described(listed, target)))


def _copying(target: Path) -> list[str]:
    return [
        f"{pom.DEPENDENCY_PLUGIN}:copy-dependencies",
        f"-DoutputDirectory={target}",
        "-DincludeScope=runtime",
        "-Dmdep.prependGroupId=true",
    ]


async def _run(
    version: PulsarVersion,
    maven: Path,
    java: Java,
    arguments: list[str],
    directory: Path,
    on_line: Callable[[str], None],
) -> None:
    try:
        await run_maven(maven, java, arguments, directory, on_line)
    except MavenFailed as error:
        what = "cannot be had" if error.missing else "cannot be fetched"
        listed = pinned_versions()
        others = "" if version in listed else f" Pinned, and known to start, are: {', '.join(map(str, listed))}."
        raise SetupError(f"pulsar@{version} {what}: {error.problem}", f"{error.mend}{others}") from error


def _described(listed: str, directory: Path) -> Iterable[Jar]:
    """The jars that ``dependency:list`` names, in its order, as they are in ``directory``; useless ones are deleted."""
    for group, artifact, classifier, version in _LISTED.findall(listed):
        jar = Jar(group, artifact, version, classifier, 0, "")
        path = directory / jar.file
        if _USELESS.fullmatch(jar.coordinate):
            path.unlink()
            continue
        with path.open("rb") as source:
            digest = hashlib.file_digest(source, "sha256").hexdigest()
        yield Jar(group, artifact, version, classifier, path.stat().st_size, digest)


class _Count:
    """Tells how many jars were downloaded so far; Maven says nothing of those that it had already.

    ``expected`` None: a jar of any name counts.
    """

    def __init__(self, progress: Progress, expected: set[str] | None) -> None:
        self._progress = progress
        self._expected = expected
        self._seen: set[str] = set()

    def line(self, text: str) -> None:
        for name in _DOWNLOADED.findall(text):
            if name in self._seen or (self._expected is not None and name not in self._expected):
                continue
            self._seen.add(name)
            if len(self._seen) % TOLD_EVERY == 0:
                of = "" if self._expected is None else f" of {len(self._expected)}"
                self._progress(f"downloaded {len(self._seen)}{of} jars")


def _write(directory: Path, text: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "pom.xml").write_text(text, encoding="utf-8")
