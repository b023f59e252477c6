"""Why a broker did not start, as far as its log tells."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

LINES = 12
WIDTH = 300


class StartFailure(Enum):
    """What is known to keep a broker from starting: the words in its log, what they mean, and what to do."""

    PORT_TAKEN = (r"Address already in use|BindException", "somebody listens on one of its ports", "Try again.")
    DISK_FULL = (
        r"No space left on device|NoWritableLedgerDirException|DiskOutOfSpaceException|File too large",
        "there is no room for its data",
        "Make room, or let TMPDIR name a directory on another disk.",
    )
    WRONG_JAVA = (
        r"UnsupportedClassVersionError|Unrecognized option|Unrecognized VM option",
        "this Java does not run it",
        "Give it a JDK it knows: JAVA_HOME names one; `starquake doctor` says what is there.",
    )
    NO_MEMORY = (
        r"OutOfMemoryError|insufficient memory|Could not reserve enough space|Cannot allocate memory",
        "there is not enough memory",
        "A broker takes about 350 MB; end something that is large.",
    )
    DAMAGED_JARS = (
        r"ClassNotFoundException|NoClassDefFoundError|Could not find or load main class|zip END header not found"
        r"|ZipException",
        "jars are missing or damaged",
        "Install it again: `starquake systems install pulsar@{version} --again`.",
    )

    def is_in(self, log: str) -> bool:
        return re.search(self.value[0], log) is not None


@dataclass(frozen=True, slots=True)
class Explanation:
    """``problem`` ends a sentence that begins with the broker; ``mend`` says what to do."""

    problem: str
    mend: str


def explain(log: str, version: str, *, full_disk: bool) -> Explanation:
    """What the log of one start says of its end."""
    for failure in StartFailure:
        if failure.is_in(log) or (full_disk and failure is StartFailure.DISK_FULL):
            _, problem, mend = failure.value
            return Explanation(problem, mend.format(version=version))
    return Explanation(
        "the end of its log follows" if telling_lines(log) else "it wrote nothing",
        "`starquake doctor` looks for what is missing; a broken installation is mended by "
        f"`starquake systems install pulsar@{version} --again`.",
    )


_FRAME = re.compile(r"\s+(at |\.\.\. |suppressed )|\s*\[wrapped\]\s*$")
_TIME = re.compile(r"^\d\d:\d\d:\d\d\.\d+ ")
# Of classes that are not shared; what every first start says, every later start, and every end.
_HARMLESS = re.compile(
    r"^\[[\d.]+s\]\[warning\]\[cds|okay if it is the first time|Ledger root path: /ledgers already exists"
    r"|from the UncaughtExceptionHandler"
)


def telling_lines(log: str, lines: int = LINES) -> list[str]:
    """The last lines that say something: no stack frames, none twice, none endless."""
    found: dict[str, str] = {}
    for line in map(str.strip, (raw for raw in log.splitlines() if not _FRAME.match(raw))):
        if not line or _HARMLESS.search(line):
            continue
        said = _TIME.sub("", line)
        # The later of two that say the same stays, with its time.
        found.pop(said, None)
        found[said] = line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
    return list(found.values())[-lines:]
