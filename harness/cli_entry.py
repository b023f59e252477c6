"""The ``starquake`` command: can be interrupted from its first moment on, before anything large is imported."""

from __future__ import annotations

import os
import signal
import sys

from harness.cli_interrupt import interruptible
from harness.cli_streams import prepare_streams

INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command line; leaves with its exit code."""
    interruptible()
    prepare_streams()
    code = _run()
    try:
        sys.stdout.flush()
    except OSError as error:
        # It would fail once more, with a traceback, when Python closes down.
        os._exit(code or _cannot_write(error))
    if code == INTERRUPTED:
        # A thread may still be inside a call that cannot be ended, as building Toxiproxy: it is not waited for.
        os._exit(code)
    sys.exit(code)


def _run() -> int:
    try:
        from harness.cli import app

        app()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except KeyboardInterrupt:
        # Nothing of a command has begun: there is nothing to end and nothing to tell.
        sys.stderr.write("starquake: interrupted\n")
        return INTERRUPTED
    except OSError as error:
        return _cannot_write(error)
    return 0


def _cannot_write(error: OSError) -> int:
    sys.stderr.write(f"starquake: cannot write to stdout: {error.strerror or error}\n")
    return 2
