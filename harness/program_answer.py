"""What a program says of itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

PATIENCE_S = 20.0


def answer_of(command: Sequence[str | Path], cwd: Path | None = None) -> str:
    """All it writes, on both streams, without colours where it heeds ``NO_COLOR``. It gets no input.

    Raises ``OSError`` when it cannot be executed, ``subprocess.SubprocessError`` when it fails or takes too long.
    """
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=PATIENCE_S,
        check=True,
        env={**os.environ, "NO_COLOR": "1"},
        cwd=cwd,
    ).stdout
