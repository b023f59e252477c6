"""What properties, gate and replay know of a world: open a session, perform steps, finish, read the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from harness.history.event import Event
from harness.invariants.engine import Judgement
from harness.worlds.plan import Fault, Operation, Plan


class Outcome(msgspec.Struct, kw_only=True):
    """What one plan led to. With ``error`` set the harness itself failed: nothing may be held against the system.

    ``client_ended``: that error is the end of the client's process, told by each plan that was under way in it; the
    world goes on with a fresh one, until it raises WorldBroken.
    """

    judgement: Judgement
    events: int
    history: list[Event]
    directory: Path | None = None
    error: str | None = None
    client_ended: bool = False


class Described(Protocol):
    """The name, version and capabilities of a system or client, as the verdicts and reports need them."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def capabilities(self) -> frozenset[str]: ...


class DescribedSystem(Described, Protocol):
    """A system names its product and settings too: see ``harness.systems.system.System``."""

    @property
    def product(self) -> str: ...

    @property
    def configuration(self) -> Mapping[str, str]: ...


class Session(Protocol):
    """One plan being carried out, on topics of its own."""

    def perform(self, step: Operation | Fault) -> None:
        """Carry out one step and record it. Never raises for what the system or client does."""

    def finish(self) -> Outcome:
        """Heal, complete, drain, read everything back, judge."""


class World(Protocol):
    """A system and a client with faults between them. All calls are synchronous."""

    @property
    def system(self) -> DescribedSystem: ...

    @property
    def client(self) -> Described: ...

    @property
    def lanes(self) -> int:
        """How many sessions may be open at once; more than one only from as many threads."""

    def start(self) -> None:
        """Start everything; raises SetupError and its kin when the environment is at fault."""

    def stop(self) -> None:
        """Stop everything this world started. Idempotent."""

    def open(self, plan: Plan | None = None, *, alone: bool = False) -> Session:
        """A session on fresh topics, by ``plan.topic_options``.

        A plan that needs the broker alone waits for it; ``alone`` says so of one whose steps are not known yet.
        """


def run_plan(world: World, plan: Plan) -> Outcome:
    """Carry a whole plan out in one session."""
    session = world.open(plan)
    for step in plan.steps():
        session.perform(step)
    return session.finish()
