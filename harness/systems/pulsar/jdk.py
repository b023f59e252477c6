"""Finds the Java that runs a broker."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness.program_answer import answer_of
from harness.setup_error import SetupError
from harness.systems.pulsar.version import PulsarVersion

FIRST_WITH_DYNAMIC_ARCHIVE = 13

MEND = "Install one (apt-get install openjdk-17-jre-headless), or set JAVA_HOME to one that is there."


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was run. ``feature`` is 17 for ``version`` 17.0.15; ``source`` is ``JAVA_HOME`` or ``PATH``."""

    path: Path
    home: Path
    feature: int
    version: str
    architecture: str
    source: str
    fingerprint: str
    """Of the build and its class library: a class-data archive fits only the Java that wrote it."""

    @property
    def makes_archives(self) -> bool:
        """Whether it can write a class-data archive at exit (JEP 350, Java 13)."""
        return self.feature >= FIRST_WITH_DYNAMIC_ARCHIVE

    def require(self, version: PulsarVersion) -> None:
        """Raises ``SetupError`` when that Pulsar does not run on it."""
        if self.feature < version.minimum_java:
            raise SetupError(
                f"pulsar@{version} needs Java {version.minimum_java} or newer;"
                f" {self.path} (from {self.source}) is {self.version}",
                f"Install one (apt-get install openjdk-17-jre-headless) and set JAVA_HOME to it"
                f"{'' if self.source == 'JAVA_HOME' else ', or put it first on PATH'}.",
            )


def find_java(version: PulsarVersion | None = None) -> Java:
    """The Java of JAVA_HOME, else the one on PATH. Raises ``SetupError`` when there is none that runs ``version``.

    A JAVA_HOME that is set and wrong is an error, never passed over: Maven and the broker would disagree about it.
    """
    home = os.environ.get("JAVA_HOME", "")
    if home:
        path, source = Path(home) / "bin" / "java", "JAVA_HOME"
        if not os.access(path, os.X_OK) or path.is_dir():
            raise SetupError(
                f"JAVA_HOME is {home}, but there is no {path} that can be executed",
                "Set JAVA_HOME to the directory of a JDK or JRE, or unset it to take the java on PATH.",
            )
    else:
        on_path = shutil.which("java")
        if on_path is None:
            raise SetupError("there is no Java: JAVA_HOME is not set and no java is on PATH", MEND)
        path, source = Path(on_path), "PATH"
    java = _examine(path, source, path.resolve().stat().st_mtime_ns)
    if version is not None:
        java.require(version)
    return java


@functools.lru_cache(maxsize=8)
def _examine(path: Path, source: str, changed_ns: int) -> Java:
    """Asks it once in the life of this process; ``changed_ns`` tells a replaced one from the one asked before."""
    try:
        answer = answer_of([path, "-XshowSettings:properties", "-version"])
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stdout", None) or str(error)).strip().splitlines()
        raise SetupError(
            f"{path} (from {source}) does not run: {said[-1] if said else 'it said nothing'}", MEND
        ) from error
    properties = dict(re.findall(r"^ {4}([\w.]+) = (.*?)\s*$", answer, re.MULTILINE))
    told = properties.get("java.version", "")
    feature = re.match(r"(?:1\.)?(\d+)", told)
    if feature is None or "java.home" not in properties:
        raise SetupError(f"{path} (from {source}) does not say which Java it is", MEND)
    home = Path(properties["java.home"])
    return Java(
        path=path,
        home=home,
        feature=int(feature[1]),
        version=told,
        architecture=properties.get("os.arch", "unknown"),
        source=source,
        fingerprint=_fingerprint(answer, home),
    )


def _fingerprint(answer: str, home: Path) -> str:
    """The build by its own words, and the class library by its file: an update in place may keep the words."""
    library = home / "lib" / "modules"
    state = library.stat() if library.exists() else None
    build = [line for line in answer.splitlines() if not line.startswith(" ")]
    parts = [str(home), *build, "" if state is None else f"{state.st_size} {state.st_mtime_ns}"]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
