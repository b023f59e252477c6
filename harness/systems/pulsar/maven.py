"""Finds Maven, runs it as a child that dies with us, and says in a few words why it failed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.processes import ChildProcess
from harness.setup_error import SetupError
from harness.systems.pulsar.jdk import Java

STALL_S = 900.0
"""Longest silence: in batch mode Maven says nothing during a download, and one jar has 60 MB."""
KEPT_LINES = 200
TOLD_LINES = 6

MEND = "Install it (apt-get install maven), or set MAVEN_HOME to one that is there."
NETWORK = "Check the network, and the proxies and mirrors in ~/.m2/settings.xml; then try again."

MIRROR = "If ~/.m2/settings.xml names a mirror, it may lack what Maven Central has."

_MISSING = re.compile(r"(?:Could not find artifact|Failure to find) (\S+?:\S+?:\S+?:\S+?)[ ,]")
_MISSING_CACHED = re.compile(r"(\S+?:\S+?:\S+?:\S+?) was not found in \S+ during a previous attempt")
_UNREACHABLE = re.compile(r"Could not transfer (?:artifact|metadata) .*", re.IGNORECASE)
_LEVEL = re.compile(r"^\[(?:ERROR|FATAL)\] ?")
_CHATTER = ("[INFO]", "[WARNING]", "Downloading ", "Downloaded ", "Progress ")
_ADVICE = ("->", "To see the full", "Re-run Maven", "For more information", "[Help")
_FULL_DISK = "No space left on device"


class MavenFailed(SetupError):
    """It ended with an error. ``missing``: coordinates that its registries lack."""

    def __init__(self, problem: str, mend: str = "", missing: tuple[str, ...] = ()) -> None:
        super().__init__(problem, mend)
        self.missing = missing


def find_maven() -> Path:
    """The ``mvn`` of MAVEN_HOME (or M2_HOME), else the one on PATH. Raises ``SetupError``."""
    for variable in ("MAVEN_HOME", "M2_HOME"):
        home = os.environ.get(variable, "")
        if home:
            path = Path(home) / "bin" / "mvn"
            if not os.access(path, os.X_OK) or path.is_dir():
                raise SetupError(
                    f"{variable} is {home}, but there is no {path} that can be executed",
                    f"Set {variable} to the directory of a Maven, or unset it to take the mvn on PATH.",
                )
            return path
    on_path = shutil.which("mvn")
    if on_path is None:
        raise SetupError("there is no Maven: MAVEN_HOME is not set and no mvn is on PATH", MEND)
    return Path(on_path)


async def run_maven(
    maven: Path, java: Java, arguments: Sequence[str], directory: Path, on_line: Callable[[str], None]
) -> None:
    """Run it in ``directory``, where its pom is; ``on_line`` is given each line that it prints.

    Raises ``MavenFailed``; nothing is left running, whatever ends this.
    """
    child = await ChildProcess.spawn_piped(
        [maven, "--batch-mode", "--update-snapshots", "-Dstyle.color=never", *arguments],
        name="Maven",
        log=directory / "maven.stderr",
        # It must not run on another Java than the one that was looked at.
        env={"JAVA_HOME": str(java.home)},
        cwd=directory,
    )
    kept: deque[str] = deque(maxlen=KEPT_LINES)
    try:
        while raw := await asyncio.wait_for(child.stdout.readline(), STALL_S):
            line = raw.decode("utf-8", "replace").rstrip()
            kept.append(line)
            on_line(line)
        status = await child.wait()
    except TimeoutError as error:
        raise MavenFailed(
            f"Maven has said nothing for {STALL_S:.0f} s; its last line: {_last(kept)}", NETWORK
        ) from error
    finally:
        await child.stop()
    if status != 0:
        raise failure([*kept, *child.logs_tail().splitlines()], status)


def failure(lines: Sequence[str], status: int) -> MavenFailed:
    """What a failed Maven's output says, without what is for people who debug Maven."""
    text = "\n".join(lines)
    missing = tuple(dict.fromkeys([*_MISSING.findall(text), *_MISSING_CACHED.findall(text)]))
    if missing:
        return MavenFailed(f"Maven's registry does not have {', '.join(missing[:5])}", MIRROR, missing)
    if _FULL_DISK in text:
        return MavenFailed("Maven cannot write: no space left on device", "Free some space (its files are in ~/.m2).")
    if unreachable := _UNREACHABLE.search(text):
        return MavenFailed(f"Maven cannot reach its registry: {unreachable[0][:600]}", NETWORK)
    words = [_LEVEL.sub("", line) for line in lines if not line.startswith(_CHATTER)]
    told = list(dict.fromkeys(line for line in words if line.strip() and not line.startswith(_ADVICE)))
    return MavenFailed(
        f"Maven failed (exit code {status}):\n" + "\n".join(f"    {line[:600]}" for line in told[:TOLD_LINES]),
        "Mend what it says, and try again.",
    )


def _last(lines: Sequence[str]) -> str:
    return lines[-1] if lines else "none"
