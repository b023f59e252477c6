"""Puts a version into the user's cache, once: fetched with Maven, checked, renamed into its place when it is whole."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from harness.setup_error import SetupError
from harness.systems.pulsar.fetch import fetch, resolve
from harness.systems.pulsar.installation import (
    ARCHIVES,
    JARS,
    MANIFEST,
    Installation,
    check_jars,
    find,
    versions_directory,
)
from harness.systems.pulsar.jdk import Java, find_java
from harness.systems.pulsar.lock import Lock, pinned
from harness.systems.pulsar.maven import find_maven
from harness.systems.pulsar.version import PulsarVersion

Progress = Callable[[str], None]

ROOM_BYTES = 500_000_000
"""Jars twice (Maven's own repository keeps a copy), and a class-data archive."""
POLL_S = 0.1


def _silent(text: str) -> None:
    return None


def current(version: PulsarVersion) -> Installation | None:
    """The installed version, not verified; None when there is none, or one of other jars than are pinned by now."""
    found, wanted = find(version), pinned(version)
    return None if found is None or (wanted is not None and found.lock != wanted) else found


async def ensure_installed(
    version: PulsarVersion, progress: Progress = _silent, *, java: Java | None = None
) -> Installation:
    """The version, verified, with a class-data archive for ``java`` (None: the one ``find_java`` finds).

    Installs it when it is not there, and makes the archive when this Java has none. Raises ``SetupError``.
    """
    java = java or find_java(version)
    java.require(version)
    found = current(version)
    if found is None:
        return await install(version, progress, java=java)
    await asyncio.to_thread(found.verify)
    await _ensure_archive(found, java, progress)
    return found


async def install(
    version: PulsarVersion, progress: Progress = _silent, *, again: bool = False, java: Java | None = None
) -> Installation:
    """Install it; with ``again`` also when it is there, whatever its state. Raises ``SetupError``.

    A second process that asks for the same version waits, and takes what the first one made. Whatever ends this, no
    half installation is left.
    """
    java = java or find_java(version)
    java.require(version)
    with _told_in_words(version):
        async with _alone(version, progress):
            if not again and (found := current(version)) is not None:
                await asyncio.to_thread(found.verify)
            else:
                found = await _install(version, java, progress)
    await _ensure_archive(found, java, progress)
    return found


async def remove(version: PulsarVersion, progress: Progress = _silent) -> bool:
    """Delete what is installed; whether there was anything."""
    place = versions_directory() / str(version)
    if not place.exists():
        return False
    with _told_in_words(version):
        async with _alone(version, progress):
            _set_aside(place)
    return True


async def _install(version: PulsarVersion, java: Java, progress: Progress) -> Installation:
    maven = find_maven()
    place = versions_directory() / str(version)
    _require_room(version)
    for left in versions_directory().glob(f".{version}-*"):
        # Of a process that was killed: we are alone with this version.
        shutil.rmtree(left)
    scratch = Path(tempfile.mkdtemp(prefix=f".{version}-", dir=versions_directory()))
    try:
        lock = pinned(version)
        if lock is None:
            progress(f"pulsar@{version} is not pinned: Maven resolves what it needs")
            lock = await resolve(version, maven, java, scratch / JARS, progress)
        else:
            await fetch(lock, maven, java, scratch / JARS, progress)
        progress(f"verifying {len(lock.jars)} jars, {lock.size / 1e6:.0f} MB")
        await asyncio.to_thread(_verify_fetched, scratch / JARS, lock)
        (scratch / MANIFEST).write_text(lock.text(), encoding="utf-8")
        if place.exists():
            _set_aside(place)
        # It is beside its place, so this is one rename: nobody ever sees half an installation.
        scratch.rename(place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Installation(version, place, lock)


def _set_aside(place: Path) -> None:
    """Gone from its place at once, deleted afterwards: a killed process leaves no half installation either."""
    aside = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    place.rename(aside / "old")
    shutil.rmtree(aside)


def _verify_fetched(directory: Path, lock: Lock) -> None:
    problems = check_jars(directory, lock.jars)
    for jar, problem in zip(lock.jars, problems, strict=True):
        if problem:
            kept = Path(*jar.group.split("."), jar.artifact, jar.version)
            raise SetupError(
                f"what Maven brought as {jar.coordinate} is not what is pinned: {problem}",
                f"Delete {kept} in Maven's repository (~/.m2/repository unless you moved it) and try again; if it stays"
                " so, a mirror serves another file.",
            )


async def _ensure_archive(found: Installation, java: Java, progress: Progress) -> None:
    """Make the class-data archive of this Java when there is none; it halves the time of every start.

    That it cannot be made is told and tried again the next time.
    """
    if found.archive(java) is not None or not java.makes_archives:
        return
    # Imported late: it needs what is above.
    from harness.systems.pulsar.standalone import training_start

    with _told_in_words(found.version):
        async with _alone(found.version, progress):
            if found.archive(java) is not None:
                return
            progress(f"making the class-data archive for Java {java.version}: one start of pulsar@{found.version}")
            _forget_archives(found, java)
            try:
                await training_start(found, java, found.archive_path(java))
            except SetupError as error:
                # Only slower without: a broker that cannot start at all will say so when it is started.
                progress(f"no archive was made, starts take twice as long: {error.problem.splitlines()[0]}")


def _forget_archives(found: Installation, java: Java) -> None:
    """Those of this Java for jars that were changed since: nothing will ever use them."""
    for path in (found.directory / ARCHIVES).glob(f"{java.fingerprint}-*"):
        path.unlink()


def _require_room(version: PulsarVersion) -> None:
    free = shutil.disk_usage(versions_directory()).free
    if free < ROOM_BYTES:
        raise _no_room(version, f"{free / 1e6:.0f} MB are free")


def _no_room(version: PulsarVersion, what: str) -> SetupError:
    return SetupError(
        f"no room for pulsar@{version} in {versions_directory()}: {what}",
        f"Free {ROOM_BYTES / 1e6:.0f} MB there, or set XDG_CACHE_HOME to a directory elsewhere.",
    )


@contextlib.contextmanager
def _told_in_words(version: PulsarVersion) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(version, str(error)) from error
        raise SetupError(
            f"pulsar@{version} cannot be kept in {versions_directory()}: {error}",
            "Make that directory writable, or set XDG_CACHE_HOME to one that is.",
        ) from error


@contextlib.asynccontextmanager
async def _alone(version: PulsarVersion, progress: Progress) -> AsyncIterator[None]:
    """No other process, and nobody else in this one, installs or removes the version meanwhile."""
    versions_directory().mkdir(parents=True, exist_ok=True)
    with (versions_directory() / f".{version}.lock").open("w") as lock:
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    progress(f"waiting for another process that installs or removes pulsar@{version}")
                    told = True
                # Asked again and again: a thread that waited in the kernel could not be interrupted.
                await asyncio.sleep(POLL_S)
        yield
