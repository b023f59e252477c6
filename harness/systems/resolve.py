"""From the word on a command line to a system."""

from __future__ import annotations

from harness.systems.external import ExternalSystem
from harness.systems.lite import LiteSystem
from harness.systems.system import System, UnknownSystem

KNOWN = ("lite", "reference", "simulated", "mutant:NAME", "pulsar://HOST:PORT[,http://HOST:PORT]")
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
    there_are = f"there are {', '.join(KNOWN)} (`starquake systems list` explains them)"
    if spec.startswith(PLANNED):
        raise UnknownSystem(f"system {spec!r} is not available in this version; {there_are}")
    if spec.startswith("pulsar+ssl://"):
        raise UnknownSystem(f"system {spec!r}: TLS hides the frames; give the plain-text port as pulsar://HOST:6650")
    raise UnknownSystem(f"no system {spec!r}; {there_are}")
