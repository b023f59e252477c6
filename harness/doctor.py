"""Looks at what this machine has for Starquake, and says how to mend what is missing. Builds and installs nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.cache_directory import cache_directory
from harness.faults import toxiproxy_binary
from harness.faults.toxiproxy_binary import passed_over
from harness.program_answer import answer_of
from harness.setup_error import SetupError
from harness.systems.lite import lite_binary
from harness.systems.pulsar.installation import installed_versions, whole
from harness.systems.pulsar.jdk import find_java
from harness.systems.pulsar.maven import find_maven
from harness.systems.pulsar.version import NEWEST_LTS

CONNECT_TIMEOUT_S = 20.0
FREE_DISK_BYTES = 1_000_000_000
PORTS_AT_ONCE = 16
MINIMUM_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    ``ok``: it is there and works. ``mend`` says what to do when it is not. ``needed_for`` names what does not work
    without it; ``required`` whether the default gate is among that (then a finding that is not ok means exit code 2).
    """

    name: str
    ok: bool
    detail: str
    mend: str
    needed_for: str
    required: bool


def examine() -> list[Finding]:
    """Everything, in the order in which a person would mend it. Runs programs for their versions; takes seconds."""
    return [
        python(),
        packages(),
        pulsar_client(),
        pulsar_lite(),
        cache_writable(),
        free_disk(),
        loopback(),
        toxiproxy(),
        go(),
        java(),
        maven(),
        installed_pulsars(),
        *(tool(*wanted) for wanted in _TOOLS),
    ]


def healthy(findings: list[Finding]) -> bool:
    """Whether nothing that is required is missing."""
    return all(finding.ok for finding in findings if finding.required)


def python() -> Finding:
    ok = sys.version_info[:2] >= MINIMUM_PYTHON
    return Finding(
        "python", ok, f"{platform.python_version()} in {sys.prefix}", "Use Python 3.11 or newer.", "everything", True
    )


def packages() -> Finding:
    """The packages Starquake says it needs. Without its own metadata (a source tree) there is nothing to compare."""
    try:
        wanted = importlib.metadata.requires("starquake") or []
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            "packages", True, "run from a source tree: requirements are in pyproject.toml", "", "everything", True
        )
    names = [match[0] for text in wanted if "extra ==" not in text and (match := re.match(r"[\w.-]+", text))]
    missing = []
    for name in names:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    detail = f"missing: {', '.join(missing)}" if missing else f"{len(names)} packages"
    return Finding("packages", not missing, detail, "pip install --upgrade starquake", "everything", True)


def pulsar_client() -> Finding:
    """Imported in a process of its own: a library built for another platform may take the process down."""
    version = _ask([sys.executable, "-c", "import pulsar, importlib.metadata as m; print(m.version('pulsar-client'))"])
    return Finding(
        "pulsar-client",
        version is not None,
        version or "cannot be imported",
        "pip install pulsar-client==3.13.0",
        "client python",
        True,
    )


def pulsar_lite() -> Finding:
    try:
        binary = lite_binary()
    except SetupError as error:
        return Finding("pulsar-lite", False, error.problem, error.mend, "system lite", True)
    runs = _ask([str(binary), "--help"]) is not None
    version = importlib.metadata.version("pulsar-lite")
    detail = f"{version}, {binary}" if runs else f"{binary} does not run on this machine"
    return Finding("pulsar-lite", runs, detail, "pip install --force-reinstall pulsar-lite", "system lite", True)


def cache_writable() -> Finding:
    directory = cache_directory()
    problem = ""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        problem = f": {error.strerror or error}"
    return Finding(
        "cache directory",
        not problem,
        f"{directory}{problem}",
        "Make it writable, or set XDG_CACHE_HOME to a directory that is.",
        "building Toxiproxy",
        True,
    )


def free_disk() -> Finding:
    """Room where the cache is, or will be."""
    place = next(path for path in (cache_directory(), *cache_directory().parents) if path.exists())
    free = shutil.disk_usage(place).free
    return Finding(
        "free disk",
        free >= FREE_DISK_BYTES,
        f"{free / 1e9:.1f} GB at {place}",
        f"Free {FREE_DISK_BYTES / 1e9:.0f} GB, or set XDG_CACHE_HOME to a directory elsewhere.",
        "building Toxiproxy, histories",
        True,
    )


def loopback() -> Finding:
    """Sixteen ports of 127.0.0.1 at once, and a connection to one of them."""
    held: list[socket.socket] = []
    problem = ""
    try:
        for _ in range(PORTS_AT_ONCE):
            listener = socket.socket()
            held.append(listener)
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
        with socket.create_connection(held[0].getsockname(), timeout=CONNECT_TIMEOUT_S):
            pass
    except OSError as error:
        problem = str(error)
    finally:
        for listener in held:
            listener.close()
    return Finding(
        "loopback ports",
        not problem,
        problem or "127.0.0.1 listens and connects",
        "Allow programs to listen on 127.0.0.1.",
        "every real run",
        True,
    )


def toxiproxy() -> Finding:
    """A server that is there. One that can be built when it is first needed is no lack."""
    found = toxiproxy_binary.find()
    if found is not None:
        return Finding("toxiproxy", True, f"{found.version}, {found.path} ({found.source})", "", "every real run", True)
    go = toxiproxy_binary.machine_go()
    if go is not None and go[1] >= toxiproxy_binary.MINIMUM_GO:
        how = f"with {go[0]}"
    elif importlib.util.find_spec("pip") is not None or importlib.util.find_spec("ensurepip") is not None:
        how = "with Go from PyPI"
    else:
        return Finding(
            "toxiproxy", False, "not found, and nothing to build it with", toxiproxy_binary.MEND, "every real run", True
        )
    return Finding(
        "toxiproxy",
        True,
        f"not there yet; the first run builds {toxiproxy_binary.VERSION} {how}. {passed_over()}".strip(),
        toxiproxy_binary.MEND,
        "every real run",
        True,
    )


def go() -> Finding:
    found = toxiproxy_binary.machine_go()
    wanted = ".".join(map(str, toxiproxy_binary.MINIMUM_GO))
    ok = found is not None and found[1] >= toxiproxy_binary.MINIMUM_GO
    detail = "not found" if found is None else f"{found[1][0]}.{found[1][1]}, {found[0]}"
    return Finding(
        "go",
        ok,
        detail,
        f"Install Go {wanted} or newer; without it Toxiproxy is built with Go from PyPI.",
        "building Toxiproxy without fetching Go",
        False,
    )


def java() -> Finding:
    """What a broker in Java would be started with."""
    try:
        found = find_java()
    except SetupError as error:
        return Finding("java", False, error.problem, error.mend, _PULSAR, False)
    newest = NEWEST_LTS.minimum_java
    return Finding(
        "java",
        found.feature >= newest,
        f"{found.version} {found.architecture}, {found.path} ({found.source})",
        f"Versions before 2.11 may run on it; for others install Java {newest} (apt-get install"
        f" openjdk-{newest}-jre-headless) and set JAVA_HOME to it.",
        _PULSAR,
        False,
    )


def maven() -> Finding:
    try:
        path = find_maven()
    except SetupError as error:
        return Finding("maven", False, error.problem, error.mend, "systems install", False)
    version = _ask([str(path), "--version"])
    return Finding(
        "maven",
        version is not None,
        f"{version or 'does not run'}, {path}",
        f"Run {path} --version, and mend what it says.",
        "systems install",
        False,
    )


def installed_pulsars() -> Finding:
    """Every installed version, each jar of it read: one that is damaged would end a run."""
    sound, broken = [], []
    for version in installed_versions():
        try:
            found = whole(version)
            if found is not None:
                sound.append(f"{version} ({found.size / 1e6:.0f} MB)")
        except SetupError as error:
            broken.append(error)
    if broken:
        return Finding(
            "installed Pulsars",
            False,
            " ".join(error.problem for error in broken),
            " ".join(error.mend for error in broken),
            _PULSAR,
            False,
        )
    detail = ", ".join(sound) or f"none; the first run installs what it needs, or: {INSTALL}"
    return Finding("installed Pulsars", True, detail, "", _PULSAR, False)


def tool(name: str, command: tuple[str, ...], mend: str, needed_for: str) -> Finding:
    """A program that nothing in this version needs; systems and clients of later versions will."""
    path = shutil.which(command[0])
    version = None if path is None else _ask([path, *command[1:]])
    detail = "not found" if path is None else f"{version or 'does not run'}, {path}"
    return Finding(name, version is not None, detail, mend, needed_for, False)


_PULSAR = "systems pulsar@VERSION"

INSTALL = f"starquake systems install pulsar@{NEWEST_LTS}"

_TOOLS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    (
        "node",
        ("node", "--version"),
        "Install Node.js 18 or newer.",
        "nothing yet; clients in JavaScript, in later versions",
    ),
    (
        "cargo",
        ("cargo", "--version"),
        "Install Rust 1.80 or newer (rustup).",
        "nothing yet; clients in Rust, in later versions",
    ),
)


def _ask(command: list[str]) -> str | None:
    """The first line the program answers with, colours removed; None when it does not run, fails or hangs."""
    try:
        # Not where we are: a Python that is asked would import what lies there.
        answer = answer_of(command, cwd=Path(tempfile.gettempdir()))
    except (OSError, subprocess.SubprocessError):
        return None
    return re.sub(r"\x1b\[[0-9;]*m", "", answer.strip().split("\n")[0])
