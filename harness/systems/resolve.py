"""From the word on a command line to a system."""

from __future__ import annotations

from collections.abc import Callable

from harness.systems.access import EXTERNAL, OPEN, Access
from harness.systems.external import ExternalSystem, parse_address
from harness.systems.lite import LiteSystem
from harness.systems.system import System, UnknownSystem

KNOWN = (
    "lite",
    "reference",
    "simulated",
    "mutant:NAME",
    "pulsar@VERSION",
    "docker:IMAGE",
    "pulsar://HOST:PORT[,http://HOST:PORT]",
    "pulsar+ssl://HOST:PORT[,https://HOST:PORT]",
)
# Named in the documentation, so that asking for them is no typing mistake.
PLANNED = ("rocketmq-reference", "rocketmq@", "rocketmq://")
PULSAR = "pulsar@"
DOCKER = "docker:"
OURS_TO_START = ("lite", "reference", "pulsar@VERSION", "docker:IMAGE")


def resolve(spec: str, access: Access = OPEN, progress: Callable[[str], None] = lambda text: None) -> System:
    """The system, not yet started. Raises ``UnknownSystem`` with what there is to choose from.

    ``access`` is for the systems that somebody else runs; ours let everybody in. ``progress`` is told what a
    start takes its time for, where that is more than seconds.
    """
    if spec == "lite":
        return LiteSystem()
    if spec == "reference":
        # Imported late: it brings the whole reference broker with it.
        from harness.systems.reference import ReferenceSystem

        return ReferenceSystem()
    if spec.startswith(PULSAR):
        # Imported late: whoever runs another system needs nothing of it.
        from harness.systems.pulsar.system import PulsarSystem

        return PulsarSystem(spec.removeprefix(PULSAR), progress=progress)
    if spec.startswith(DOCKER) and spec != DOCKER:
        from harness.systems.docker import DockerSystem

        return DockerSystem(spec.removeprefix(DOCKER))
    if spec.startswith(EXTERNAL):
        return ExternalSystem(spec, access)
    there_are = f"there are {', '.join(KNOWN)} (`starquake systems list` explains them)"
    if spec.startswith(PLANNED):
        raise UnknownSystem(f"system {spec!r} is not available in this version; {there_are}")
    raise UnknownSystem(f"no system {spec!r}; {there_are}")


def is_ours_to_start(spec: str) -> bool:
    """Whether it is named like one of ``OURS_TO_START``: others run inside the gate, or somebody else starts them."""
    return spec in OURS_TO_START or spec.startswith((PULSAR, DOCKER))


def names_a_system(name: str) -> bool:
    """Whether a system, with or without its ``@version``, may have this name: one there is, or one that is planned."""
    if name.startswith(EXTERNAL):
        try:
            parse_address(name)
        except UnknownSystem:
            return False
        return True
    if name.startswith("mutant:"):
        # Imported late: it brings both reference machines with it.
        from harness.reference.mutants.registry import UnknownMutant, mutant_named

        try:
            mutant_named(name.removeprefix("mutant:"))
        except UnknownMutant:
            return False
        return True
    if name.startswith(DOCKER):
        return name != DOCKER
    if name.startswith(PULSAR):
        from harness.systems.pulsar.version import PulsarVersion

        try:
            PulsarVersion.parse(name.removeprefix(PULSAR))
        except UnknownSystem:
            return False
        return True
    product = name.split("@", 1)[0]
    versioned = [prefix.removesuffix("@") for prefix in (PULSAR, *PLANNED) if prefix.endswith("@")]
    return product in (*KNOWN, *versioned) or name.startswith(PLANNED)
