"""The ``starquake`` command: can be interrupted from its first moment on, before anything large is imported."""

from __future__ import annotations

import os
import signal

from harness.cli_interrupt import interruptible


def main() -> None:
    """Run the command line; leaves with its exit code."""
    interruptible()
    try:
        from harness.cli import main as command

        command()
    except KeyboardInterrupt:
        # Nothing of a command has begun: there is nothing to end and nothing to tell.
        os.write(2, b"starquake: interrupted\n")
        os._exit(128 + signal.SIGINT)
