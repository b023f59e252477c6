"""Outlives the harness for a moment and kills the children it left behind, with their data. Run as a script.

    python reaper.py MARK

Standard input is a pipe whose other end only the harness holds: it ends when the harness does, however it died
(SIGKILL included). Every process whose environment carries the mark is then killed. The environment is inherited, so
grandchildren and children that made a session of their own are found as well, and a reused pid is never hit.

What comes through the pipe are the directories to be removed after that: ``+`` or, to take it back, ``-``, the absolute
path and a zero byte each.
"""

from __future__ import annotations

import os
import shutil
import sys
import time

import psutil

VARIABLE = "STARQUAKE_OWNER"
OURS = "starquake-"
"""How the name of every directory begins that may be removed."""
INHERIT, LEAVE, END = b"+", b"-", b"\0"

CLEAN_ROUNDS = 2
DEADLINE_SECONDS = 10.0


def marked(mark: str) -> list[psutil.Process]:
    """The processes that inherited the mark, those we may not look into left out."""
    found = []
    for process in psutil.process_iter():
        try:
            owner = process.environ().get(VARIABLE)
        except (psutil.Error, OSError):
            continue
        if owner == mark:
            found.append(process)
    return found


def inherited(told: bytes) -> list[str]:
    """The directories that are to be removed. What follows the last zero byte was cut off, and names another one."""
    found: dict[str, None] = {}
    for record in told.split(END)[:-1]:
        word, path = record[:1], os.fsdecode(record[1:])
        if word == LEAVE:
            found.pop(path, None)
        elif os.path.isabs(path) and os.path.basename(path).startswith(OURS):
            found[path] = None
    return list(found)


def main(mark: str) -> None:
    """Wait for the end of standard input, then kill until two rounds in a row find nobody: a child may fork."""
    directories = inherited(sys.stdin.buffer.read())
    clean = 0
    deadline = time.monotonic() + DEADLINE_SECONDS
    while clean < CLEAN_ROUNDS and time.monotonic() < deadline:
        left = marked(mark)
        clean = 0 if left else clean + 1
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(left, timeout=0.2)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
