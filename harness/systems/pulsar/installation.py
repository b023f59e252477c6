"""A Pulsar that is installed in the user's cache: its jars, whether they are whole, its class-data archives."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.cache_directory import cache_directory
from harness.setup_error import SetupError
from harness.systems.pulsar.jdk import Java
from harness.systems.pulsar.lock import Jar, Lock, LockError, read
from harness.systems.pulsar.version import PulsarVersion
from harness.systems.system import UnknownSystem

JARS, MANIFEST, ARCHIVES = "lib", "jars.lock", "archives"
READ_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Installation:
    """One version on disk. Found by ``find``, made by ``harness.systems.pulsar.install``."""

    version: PulsarVersion
    directory: Path
    lock: Lock
    """What was installed: the jars with their sizes and checksums."""

    @property
    def jars(self) -> list[Path]:
        """In the order of the class path."""
        return [self.directory / JARS / jar.file for jar in self.lock.jars]

    @property
    def classpath(self) -> str:
        """For ``java -cp``: every jar by name, as a class-data archive fits one exact list only."""
        return os.pathsep.join(map(str, self.jars))

    @property
    def size(self) -> int:
        """Bytes on disk, archives included; of what is there, when somebody removes it meanwhile."""
        total = 0
        for place, _, names in os.walk(self.directory):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(os.path.join(place, name)).st_size
        return total

    def archive_path(self, java: Java) -> Path:
        """Where the class-data archive for this Java is, or would be."""
        times = "\n".join(f"{path.stat().st_mtime_ns}" for path in self.jars)
        jars = hashlib.sha256(f"{self.directory}\n{times}".encode()).hexdigest()[:16]
        return self.directory / ARCHIVES / f"{java.fingerprint}-{jars}.jsa"

    def archive(self, java: Java) -> Path | None:
        """The class-data archive for this Java; None when there is none yet."""
        path = self.archive_path(java)
        return path if path.is_file() else None

    def verify(self) -> None:
        """Reads every jar. Raises ``SetupError`` naming those that are not what was installed, and what to do."""
        problems = list(filter(None, check_jars(self.directory / JARS, self.lock.jars)))
        if problems:
            raise damaged(self.version, "; ".join(problems))


def check_jars(directory: Path, jars: tuple[Jar, ...]) -> list[str]:
    """What is wrong with each jar, in words; empty for one that has its size and SHA-256."""
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
        return list(pool.map(lambda jar: _problem(directory / jar.file, jar), jars))


def _problem(path: Path, jar: Jar) -> str:
    try:
        size = path.stat().st_size
        if size != jar.size:
            return f"{path} has {size} bytes instead of {jar.size}"
        # hashlib lets other threads run while it works.
        with path.open("rb") as source:
            found = hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    return "" if found == jar.sha256 else f"{path} has another content (SHA-256 {found[:12]}…, not {jar.sha256[:12]}…)"


def damaged(version: PulsarVersion, problem: str) -> SetupError:
    """The error for an installation that cannot be used."""
    return SetupError(
        f"the installed pulsar@{version} is damaged: {problem}",
        f"Install it anew: starquake systems install pulsar@{version} --again",
    )


def versions_directory() -> Path:
    """Where installed versions are, one directory each. It need not exist."""
    return cache_directory() / "pulsar"


def find(version: PulsarVersion) -> Installation | None:
    """The installed version, not verified; None when it is not installed. Raises ``SetupError`` when it is damaged."""
    directory = versions_directory() / str(version)
    if not directory.is_dir():
        return None
    try:
        lock = read(directory / MANIFEST)
    except (LockError, OSError) as error:
        raise damaged(version, str(error)) from error
    if lock.version != version:
        raise damaged(version, f"{directory / MANIFEST} is about {lock.version}")
    return Installation(version, directory, lock)


def whole(version: PulsarVersion) -> Installation | None:
    """The installed version, verified; None when it is not installed, or was removed while it was looked at.

    Raises ``SetupError`` when it is damaged.
    """
    try:
        found = find(version)
        if found is not None:
            found.verify()
    except SetupError:
        # It goes from its place at once, and its files afterwards.
        if not (versions_directory() / str(version)).is_dir():
            return None
        raise
    return found


def installed_versions() -> list[PulsarVersion]:
    """Those that have a directory, damaged or not, oldest first."""
    found = []
    for path in versions_directory().glob("*"):
        try:
            version = PulsarVersion.parse(path.name)
        except UnknownSystem:
            continue  # A lock, or what an install that was killed left.
        found.append(version)
    return sorted(found)


def installed() -> list[Installation]:
    """All that can be found, oldest first. Raises ``SetupError`` when one is damaged."""
    return [found for version in installed_versions() if (found := find(version)) is not None]


def delete(directory: Path) -> None:
    """Remove an installation's files."""
    shutil.rmtree(directory)
