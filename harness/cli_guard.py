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
            raise typer.Exit(self._run(lambda: command(*args, **kwargs)))

        return guarded

    def _run(self, command: Callable[[], int]) -> int:
        try:
            return command()
        except KeyboardInterrupt:
            say("interrupted")
            return EXIT_INTERRUPTED
        except OSError as error:
            if error.errno in _USERS_DISK:
                say(f"cannot write {error.filename or 'the report'}: {error.strerror}")
                return EXIT_USAGE
            return self._crashed(error)
        except Exception as error:
            if _is_the_users(error):
                say(str(error))
                return EXIT_USAGE
            return self._crashed(error)

    def _crashed(self, error: Exception) -> int:
        if self.debug:
            traceback.print_exception(error)
            return EXIT_HARNESS
        with tempfile.NamedTemporaryFile(
            "w", prefix="starquake-crash-", suffix=".log", delete=False, encoding="utf-8"
        ) as log:
            traceback.print_exception(error, file=log)
        say(f"the harness failed: {type(error).__name__}: {error}\n  the traceback is in {log.name}")
        return EXIT_HARNESS


def say(message: str) -> None:
    """One message for the person, on stderr."""
    typer.echo(f"starquake: {message}", err=True)


def _is_the_users(error: Exception) -> bool:
    if isinstance(error, (UsageError, SetupError, UnknownSystem, UnknownClient, HistoryError)):
        return True
    # Importing the mutants here would load both machines to report a typing error. Who raised one has loaded them.
    registry = sys.modules.get("harness.reference.mutants.registry")
    return registry is not None and isinstance(error, registry.UnknownMutant)
