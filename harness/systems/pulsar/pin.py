"""For maintainers: ``python -m harness.systems.pulsar.pin VERSION...`` writes locks of what Maven resolves."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from harness.setup_error import SetupError
from harness.systems.pulsar.fetch import resolve
from harness.systems.pulsar.jdk import find_java
from harness.systems.pulsar.lock import lock_file
from harness.systems.pulsar.maven import find_maven
from harness.systems.pulsar.version import PulsarVersion
from harness.systems.system import UnknownSystem


async def pin(version: PulsarVersion) -> Path:
    """Write the lock of a version; its file. Raises ``SetupError``."""
    with tempfile.TemporaryDirectory(prefix="starquake-pin-") as place:
        lock = await resolve(version, find_maven(), find_java(), Path(place) / "lib", lambda text: None)
    target = lock_file(version)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(lock.text(), encoding="utf-8")
    return target


def main(arguments: list[str]) -> int:
    """Exit code 2 when a version cannot be resolved; those before it have been written."""
    try:
        for version in [PulsarVersion.parse(text) for text in arguments]:
            sys.stdout.write(f"{asyncio.run(pin(version))}\n")
    except (SetupError, UnknownSystem) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
