"""What `starquake systems` does: which systems there are, what is installed, install, remove, start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from harness.setup_error import SetupError
from harness.systems.pulsar.install import install, remove
from harness.systems.pulsar.installation import installed_versions, versions_directory, whole
from harness.systems.pulsar.lock import pinned, pinned_versions
from harness.systems.pulsar.version import PulsarVersion
from harness.systems.resolve import OURS_TO_START, PULSAR, is_ours_to_start, resolve
from harness.systems.system import Address
from harness.usage_error import UsageError

LOOK_S = 0.2

State = Literal["installed", "damaged", "can be installed", ""]


@dataclass(frozen=True, slots=True)
class Row:
    """A system that may be named with ``--system``. ``bytes``: on disk, or to be fetched; None where neither is so."""

    name: str
    state: State
    bytes: int | None
    description: str


def rows(others: dict[str, str]) -> list[Row]:
    """``others``, by name and description, and every version of Pulsar that is here or is pinned, newest first."""
    here, listed = installed_versions(), pinned_versions()
    versions = sorted({*here, *listed}, reverse=True)
    return [
        *(Row(name, "", None, description) for name, description in others.items()),
        *(row for version in versions if (row := _row(version)) is not None),
    ]


def _row(version: PulsarVersion) -> Row | None:
    """None for one that is not pinned, and was removed meanwhile."""
    name = f"{PULSAR}{version}"
    try:
        found = whole(version)
        if found is not None:
            kind = "pinned" if pinned(version) is not None else "as Maven resolved it"
            return Row(name, "installed", found.size, f"a standalone broker, {len(found.lock.jars)} jars, {kind}")
        lock = pinned(version)
    except SetupError as error:
        return Row(name, "damaged", None, str(error))
    if lock is None:
        return None
    return Row(name, "can be installed", lock.size, f"a standalone broker, {len(lock.jars)} jars, pinned")


def megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:.0f} MB"


def versions(names: Sequence[str]) -> list[PulsarVersion]:
    """The versions that ``pulsar@4.0.7`` and the like name. Raises ``UsageError``, ``UnknownSystem``."""
    found = []
    for name in names:
        if not name.startswith(PULSAR):
            raise UsageError(
                f"{name!r} cannot be installed or removed; pulsar@VERSION can, as in pulsar@4.0.7"
                " (`starquake systems list` names versions)"
            )
        found.append(PulsarVersion.parse(name.removeprefix(PULSAR)))
    return list(dict.fromkeys(found))


def install_all(wanted: Sequence[PulsarVersion], *, again: bool, console: Console) -> None:
    """One after the other. Raises ``SetupError`` with the first that cannot be had; those before it stay."""
    for version in wanted:
        with Narrator(f"{PULSAR}{version}", console) as told:
            found = asyncio.run(install(version, told, again=again))
        console.print(
            f"{PULSAR}{version} is installed, {megabytes(found.size)} in {escape(str(found.directory))}",
            soft_wrap=True,
            highlight=False,
        )


def remove_all(wanted: Sequence[PulsarVersion], *, console: Console) -> None:
    """Raises ``UsageError`` when one is not installed; nothing is removed then."""
    here = [version for version in wanted if (versions_directory() / str(version)).exists()]
    if absent := [f"{PULSAR}{version}" for version in wanted if version not in here]:
        raise UsageError(f"{', '.join(absent)} is not installed; `starquake systems list` says what is")
    for version in here:
        with Narrator(f"{PULSAR}{version}", console) as told:
            asyncio.run(remove(version, told))
        console.print(f"{PULSAR}{version} is removed", highlight=False)


def run_until_interrupted(spec: str, console: Console, show: Callable[[Address, str], None]) -> None:
    """Start a system, ``show`` its addresses and its version, and wait. Ended by ``KeyboardInterrupt``.

    Raises ``SetupError``, also when the system ends by itself, with its last log lines; ``UsageError`` for what is
    no system, or one that is not ours to start.
    """
    asyncio.run(_run(spec, console, show))


async def _run(spec: str, console: Console, show: Callable[[Address, str], None]) -> None:
    if not is_ours_to_start(spec):
        raise UsageError(f"{spec!r} is nothing to start; there are {', '.join(OURS_TO_START)}")
    told = Narrator(spec, console)
    system = resolve(spec, progress=told)
    try:
        with told:
            told("starting")
            address = await system.start()
        show(address, system.version)
        while system.alive():
            await asyncio.sleep(LOOK_S)
        raise SetupError(f"{spec} ended by itself; its last lines:\n{system.logs_tail()}")
    finally:
        await system.stop()


class Narrator:
    """Shows what is going on: one line that changes on a terminal, a line each in a log. A context manager."""

    def __init__(self, about: str, console: Console) -> None:
        self._about = about
        self._console = console
        self._status: Status | None = console.status(escape(about)) if console.is_terminal else None

    def __enter__(self) -> Narrator:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, text: str) -> None:
        line = f"[bold]{escape(self._about)}[/bold] {escape(text)}"
        if self._status is None:
            self._console.print(line, soft_wrap=True, highlight=False)
        else:
            self._status.update(line)
