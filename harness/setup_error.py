"""The environment lacks something: never a verdict about a system or a client (exit code 2)."""

from __future__ import annotations


class SetupError(Exception):
    """Something this run needs is missing or does not start.

    ``str(error)`` is one message for a person: what failed, and, when ``mend`` is given, what to do about it.
    """

    def __init__(self, problem: str, mend: str = "") -> None:
        super().__init__(f"{problem}\n  {mend}" if mend else problem)
        self.problem = problem
        self.mend = mend
