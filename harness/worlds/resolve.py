"""From the words of a command line to a world."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.clients.client import UnknownClient
from harness.systems.access import OPEN, Access
from harness.worlds.world import World


def world_for(
    system: str,
    client: str,
    history_dir: Path | None,
    progress: Callable[[str], None] = lambda text: None,
    *,
    access: Access = OPEN,
) -> World:
    """The world of a system and a client, not yet started. Raises UnknownSystem or UnknownClient.

    ``simulated`` is the reference pair under virtual time; ``mutant:NAME`` the same with one of its parts broken.
    ``access`` lets us into systems that somebody else runs.
    """
    if system == "simulated" or system.startswith("mutant:"):
        if client != "reference":
            raise UnknownClient(f"the simulated world has one client, 'reference'; {client!r} needs a real system")
        from harness.worlds.simulated import SimulatedWorld

        if system == "simulated":
            return SimulatedWorld()
        from harness.reference.mutants.registry import world_of_mutant

        return world_of_mutant(system.removeprefix("mutant:"))
    from harness.clients.resolve import resolve as resolve_client
    from harness.systems.resolve import resolve as resolve_system
    from harness.worlds.real import RealWorld

    found = resolve_system(system, access, progress)
    return RealWorld(found, resolve_client(client), history_dir=history_dir, progress=progress)
