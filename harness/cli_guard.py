"""Turns whatever ends a command into one message on stderr and an exit code; a traceback only when asked for."""

from __future__ import annotations

import errno
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import typer

from harness.cli_json import tell_end
from harness.clients.client import UnknownClient
from harness.history.errors import HistoryError
from harness.setup_error import SetupError
from harness.systems.system import UnknownSystem
from harness.usage_error import UsageError
from harness.verdict import EXIT_HARNESS, EXIT_INTERRUPTED, EXIT_USAGE

P = ParamSpec("P")

_USERS_DISK = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR}
)


class Guard:
    """Wraps commands. With ``debug`` a failure of the harness shows its traceback instead of storing it."""

    def __init__(self) -> None:
        self.debug = False

    def __call__(self, command: Callable[P, int]) -> Callable[P, None]:
        """``command`` returns its exit code; the wrapped one raises ``typer.Exit`` with it, whatever happens."""

        @wraps(command)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            code, error = self._run(lambda: command(*args, **kwargs))
            if error:
                say(error)
                if kwargs.get("as_json"):
                    tell_end(code, error)
            raise typer.Exit(code)

        return guarded

    def _run(self, command: Callable[[], int]) -> tuple[int, str]:
        """The exit code, and what to say when the command did not come to its own end."""
        try:
            return command(), ""
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED, "interrupted"
        except OSError as error:
            if error.errno in _USERS_DISK:
                return EXIT_USAGE, f"cannot write {error.filename or 'the report'}: {error.strerror}"
            return self._crashed(error)
        except Exception as error:
            if is_the_users(error):
                return EXIT_USAGE, str(error)
            return self._crashed(error)

    def _crashed(self, error: Exception) -> tuple[int, str]:
        told = f"the harness failed: {type(error).__name__}: {error}"
        if self.debug:
            traceback.print_exception(error)
            return EXIT_HARNESS, told
        with tempfile.NamedTemporaryFile(
            "w", prefix="starquake-crash-", suffix=".log", delete=False, encoding="utf-8"
        ) as log:
            traceback.print_exception(error, file=log)
        return EXIT_HARNESS, f"{told}\n  the traceback is in {log.name}"


def say(message: str) -> None:
    """One message for the person, on stderr."""
    typer.echo(f"starquake: {message}", err=True)


def is_the_users(error: Exception) -> bool:
    """Whether an error is for the person at the keyboard to mend, so that its message alone says all."""
    if isinstance(error, (UsageError, SetupError, UnknownSystem, UnknownClient, HistoryError)):
        return True
    # Importing the mutants here would load both machines to report a typing error. Who raised one has loaded them.
    registry = sys.modules.get("harness.reference.mutants.registry")
    return registry is not None and isinstance(error, registry.UnknownMutant)
