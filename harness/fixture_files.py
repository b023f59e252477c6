"""Where the files shipped with the harness are: ``fixtures/`` of the repository, or its copy inside a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def fixture_directory() -> Path:
    """The directory that holds ``seeds/``, ``plans/`` and ``known-failing/``.

    A wheel carries the copy as ``harness/_fixtures``; a work tree has none and uses its own ``fixtures``.
    """
    packaged = _PACKAGE / "_fixtures"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "fixtures"


def seeds_directory() -> Path:
    """Where stored seeds are, one JSON file each."""
    return fixture_directory() / "seeds"


def known_failing_files() -> dict[str, Path]:
    """The shipped lists of known failures by what they are of: a system or client, all its versions or (``@``) some."""
    return {path.stem: path for path in sorted((fixture_directory() / "known-failing").glob("*.txt"))}
