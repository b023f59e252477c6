"""The files of a report directory: ``gate.json``, ``junit.xml`` and ``index.html``."""

from __future__ import annotations

from pathlib import Path

from harness.gate.result import GateResult, save
from harness.report.html import page
from harness.report.junit import junit
from harness.usage_error import UsageError


def prepare(directory: Path) -> Path:
    """Make a report directory and try to write to it, before hours are spent. Raises ``UsageError``."""
    probe = directory / ".starquake-probe"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write to the report directory {directory}: {error.strerror or error}; choose another one"
        ) from error
    return directory


def write_reports(result: GateResult, directory: Path, junit_file: Path | None) -> Path:
    """Write all three; returns the page. ``junit_file`` is a further copy. Raises ``OSError``."""
    save(result, directory)
    document = junit(result)
    (directory / "junit.xml").write_bytes(document)
    if junit_file is not None:
        junit_file.parent.mkdir(parents=True, exist_ok=True)
        junit_file.write_bytes(document)
    path = directory / "index.html"
    path.write_text(page(result), encoding="utf-8")
    return path
