"""What a broker is, however it was reached."""

from __future__ import annotations

from harness.systems import lite


def product_of(system: str, version: str) -> str:
    """The name that shipped lists of known failures go by, of a system of this name that says this of its version.

    A broker reached by its address is known by its ``CommandConnected.server_version``; any other is what it is called.
    """
    return lite.LiteSystem.name if version.startswith(lite.SERVER_VERSION) else system
