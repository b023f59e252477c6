"""The ``starquake`` command: can be interrupted from its first moment on, before anything large is imported."""

from __future__ import annotations

import os
import signal
import sys

from harness.cli_interrupt import interruptible

INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command line; leaves with its exit code."""
    try:
        interruptible()
        code = _run()
    except KeyboardInterrupt:
        # Outside any command: there is nothing to end and nothing to tell.
        os.write(2, b"starquake: interrupted\n")
        os._exit(INTERRUPTED)
    if code == INTERRUPTED:
        # A thread may still be inside a call that cannot be ended, as building Toxiproxy: it is not waited for.
        os._exit(code)
    sys.exit(code)


def _run() -> int:
    from harness.cli_streams import prepare_streams

    prepare_streams()
    code = 0
    try:
        from harness.cli import app

        app()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except OSError as error:
        code = _cannot_write(error)
    try:
        sys.stdout.flush()
    except OSError as error:
        # It would fail once more, with a traceback, when Python closes down.
        os._exit(code or _cannot_write(error))
    return code


def _cannot_write(error: OSError) -> int:
    sys.stderr.write(f"starquake: cannot write to stdout: {error.strerror or error}\n")
    return 2
