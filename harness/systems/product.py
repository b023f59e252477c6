"""What a broker is, however it was reached."""

from __future__ import annotations

import re

from harness.systems import lite

PULSAR = "pulsar"

# 4.0.7 answers "Pulsar Server4.0.7", with nothing between the two; builds of others may write a "-" or a "v" there.
_SERVER = re.compile(r"Pulsar Server[-\s]*v?(?P<version>\d+\.\d+\.\d+\S*)?$")


def product_of(system: str, version: str) -> str:
    """The name that shipped lists of known failures go by, of a system of this name that says this of its version.

    A broker reached by its address is known by its ``CommandConnected.server_version``: ``lite``, ``pulsar@4.0.7``, or
    ``pulsar`` when it keeps its version to itself. Any other is what it is called.
    """
    if version.startswith(lite.SERVER_VERSION):
        return lite.LiteSystem.name
    server = _SERVER.match(version)
    if server is None:
        return system
    return PULSAR if server["version"] is None else f"{PULSAR}@{server['version']}"
