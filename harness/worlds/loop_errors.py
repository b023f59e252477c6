"""What an event loop reports beside the work, and which of it says nothing."""

from __future__ import annotations

import asyncio
from typing import Any


def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception handler for a world's loop: as the default one, but for one report of uvloop 0.23.

    It goes on reading a connection through TLS whose socket was closed under it (a reset at the wrong moment), wants to
    write, and tells its own surprise as a fatal error. That connection is over, and recorded as such, either way.
    """
    error = context.get("exception")
    # The transport itself does not say that it is closing then.
    closed = isinstance(error, RuntimeError) and "the handler is closed" in str(error)
    if not (closed and context.get("message") == "Fatal error on SSL protocol"):
        loop.default_exception_handler(context)
