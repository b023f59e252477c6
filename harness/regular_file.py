"""Reads what a caller names as a file, and nothing that could keep a command waiting or never ends."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path) -> bytes:
    """The whole content. Raises ``OSError``, also for a directory, a pipe, a socket or a device.

    Opening a pipe that nobody writes to waits for ever, and so does reading a terminal to its end.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file; store its content in one and name that", str(path))
    return path.read_bytes()
