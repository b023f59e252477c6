"""Outlives the harness for a moment and kills the children it left behind. Run as a script, never imported.

    python reaper.py MARK

Standard input is a pipe whose other end only the harness holds: it ends when the harness does, however it died
(SIGKILL included). Every process whose environment carries the mark is then killed. The environment is inherited, so
grandchildren and children that made a session of their own are found as well, and a reused pid is never hit.
"""

from __future__ import annotations

import sys
import time

import psutil

VARIABLE = "STARQUAKE_OWNER"
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


def main(mark: str) -> None:
    """Wait for the end of standard input, then kill until two rounds in a row find nobody: a child may fork."""
    while sys.stdin.buffer.read(4096):
        pass
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


if __name__ == "__main__":
    main(sys.argv[1])
