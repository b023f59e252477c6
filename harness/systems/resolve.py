"""From the word on a command line to a system."""

from __future__ import annotations

from harness.systems.external import ExternalSystem
from harness.systems.lite import LiteSystem
from harness.systems.system import System, UnknownSystem

KNOWN = ("reference", "lite", "pulsar://HOST:PORT[,http://HOST:PORT]")
# Named in the documentation, so that asking for them is no typing mistake.
PLANNED = ("pulsar@", "docker:", "rocketmq-reference", "rocketmq@", "rocketmq://")


def resolve(spec: str) -> System:
    """The system, not yet started. Raises ``UnknownSystem`` with what there is to choose from."""
    if spec == "lite":
        return LiteSystem()
    if spec == "reference":
        # Imported late: it brings the whole reference broker with it.
        from harness.systems.reference import ReferenceSystem

        return ReferenceSystem()
    if spec.startswith("pulsar://"):
        return ExternalSystem(spec)
    if spec.startswith(PLANNED):
        raise UnknownSystem(f"system {spec!r} is not available in this version; there are {', '.join(KNOWN)}")
    raise UnknownSystem(f"no system {spec!r}; there are {', '.join(KNOWN)}")
