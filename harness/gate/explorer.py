"""The state machines of ``properties`` as the gate uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.worlds.plan import Plan
from harness.worlds.world import Outcome, World
from properties import explore
from properties.families import FAMILIES


class MachineExploration:
    """Implements ``harness.gate.run.Exploration``."""

    @property
    def families(self) -> Sequence[str]:
        return list(FAMILIES)

    def directed(self, family: str, profile: str) -> list[tuple[str, Plan]]:
        return explore.directed_plans(family, profile)

    def explore(
        self,
        family: str,
        world: World,
        examples: int,
        steps: int,
        seed: int,
        on_outcome: Callable[[Plan, Outcome], None],
    ) -> None:
        explore.explore(family, world, explore.Settings(examples=examples, steps=steps, seed=seed), on_outcome)
