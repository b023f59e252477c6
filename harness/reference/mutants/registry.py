"""All mutants by name, and the simulated world of one."""

from __future__ import annotations

import dataclasses
import difflib

from harness.reference.broker.parts import BrokerParts
from harness.reference.client.parts import ClientParts
from harness.reference.mutants import (
    broker_admin,
    broker_cursor,
    broker_delivery,
    broker_durability,
    broker_session,
    broker_storage,
    client_chunks,
    client_consumer,
    client_durability,
    client_producer,
    client_receipts,
    client_session,
)
from harness.reference.mutants.mutant import Mutant
from harness.worlds.simulated import SimulatedWorld


class UnknownMutant(ValueError):
    """No mutant of that name; the message names the nearest."""


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for module in (
        broker_storage,
        broker_delivery,
        broker_session,
        broker_admin,
        broker_durability,
        broker_cursor,
        client_producer,
        client_receipts,
        client_chunks,
        client_consumer,
        client_session,
        client_durability,
    )
    for mutant in module.MUTANTS
}


def mutant_named(name: str) -> Mutant:
    """Raises UnknownMutant."""
    try:
        return MUTANTS[name]
    except KeyError:
        near = ", ".join(difflib.get_close_matches(name, MUTANTS, n=3)) or ", ".join(sorted(MUTANTS))
        raise UnknownMutant(f"no mutant is called {name!r}; there are: {near}") from None


def world_of_mutant(name: str, *, keep_history: bool = True) -> SimulatedWorld:
    """The reference pair in the simulated world with this mutant on its side. Raises UnknownMutant."""
    mutant = mutant_named(name)
    if mutant.side == "broker":
        return SimulatedWorld(
            broker_parts=dataclasses.replace(BrokerParts(), **mutant.parts), keep_history=keep_history
        )
    return SimulatedWorld(client_parts=dataclasses.replace(ClientParts(), **mutant.parts), keep_history=keep_history)
