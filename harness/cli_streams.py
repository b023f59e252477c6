"""The standard streams of the command: there whatever the caller closed, and patient with a reader that has left."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO


def prepare_streams() -> None:
    """Make descriptors 0, 1 and 2 usable and replace ``sys.stdout`` and ``sys.stderr``.

    A closed one (``0<&-``, ``>&-``) becomes ``/dev/null``: the next file that is opened would take its number, and the
    event loop's library aborts the process when it finds one of its own there. Once the reader of stdout has left
    (``| head -1``) the rest is dropped: that ends no run half-way and changes no exit code. What cannot be written to
    stderr is dropped too, as there is nobody left to tell.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = _text(_Patient(1, (BrokenPipeError,)), sys.stdout)
    sys.stderr = _text(_Patient(2, (OSError,)), sys.stderr)


class _Patient(io.FileIO):
    """Writes to a descriptor until one of ``forgiven`` is raised, then nowhere."""

    def __init__(self, descriptor: int, forgiven: tuple[type[OSError], ...]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._forgiven = forgiven

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except self._forgiven:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def _text(raw: io.FileIO, before: TextIO | None) -> io.TextIOWrapper:
    encoding = None if before is None else before.encoding
    # A name with bytes that are no text must be shown somehow; it must not end a command.
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=raw.fileno() == 2 or raw.isatty()
    )
