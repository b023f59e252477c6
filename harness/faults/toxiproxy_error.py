"""What can go wrong with Toxiproxy itself: always the harness's trouble, never the system's."""

from __future__ import annotations


class ToxiproxyError(RuntimeError):
    """Toxiproxy did not do what it was told. A run in which that happens proves nothing."""


class ToxiproxyDied(ToxiproxyError):
    """The server process has gone. Its proxies and every connection through them went with it."""
