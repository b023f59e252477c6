"""One written plan as all that a gate run tries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.gate.profile import Profile
from harness.worlds.plan import Plan
from harness.worlds.world import Outcome, World

PROFILE = Profile("smoke", 0, 0, 0, 0, 0, 0, 0, 1)
"""Nothing is drawn, and what fails is kept as it was written."""


class OnePlan:
    """Implements ``harness.gate.run.Exploration``: the plan ``times`` times, under the family its name begins with."""

    def __init__(self, families: Sequence[str], name: str, plan: Plan, times: int) -> None:
        self.families = families
        self._family = next((family for family in families if name.startswith(f"{family}-")), families[0])
        self._plans = [(name if times == 1 else f"{name} ({number})", plan) for number in range(1, times + 1)]

    def directed(self, family: str, profile: str) -> list[tuple[str, Plan]]:
        return self._plans if family == self._family else []

    def explore(
        self,
        family: str,
        world: World,
        examples: int,
        steps: int,
        seed: int,
        on_outcome: Callable[[Plan, Outcome], None],
    ) -> None:
        """Draws nothing."""
