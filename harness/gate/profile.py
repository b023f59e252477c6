"""How much a gate run tries: the three profiles, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

ProfileName = Literal["smoke", "ci", "nightly"]
PROFILE_NAMES: tuple[str, ...] = get_args(ProfileName)


@dataclass(frozen=True, slots=True)
class Profile:
    """Times in seconds of wall time for the whole gate, shared out over its pairs of system and client.

    ``explore_seconds``: until when new random examples are begun (directed plans always run); ``chunk`` examples of at
    most ``steps`` steps are drawn at a time, family by family, at most ``examples`` a family. ``failure_seconds`` is
    for shrinking and measuring all new failures together, ``shrink_seconds`` at most for one. ``tries``: runs in which
    the reproduction rate of a shrunk failure is measured. ``seed``: base of all randomness where the caller names none;
    None draws a new one for each run.
    """

    name: ProfileName
    explore_seconds: float
    chunk: int
    examples: int
    steps: int
    failure_seconds: float
    shrink_seconds: float
    tries: int
    seed: int | None


PROFILES: dict[str, Profile] = {
    # Written plans and stored seeds only: what smoke tries is the same in every run, so that its verdict is too.
    "smoke": Profile("smoke", 0, 4, 4, 10, 15, 15, 5, 1),
    "ci": Profile("ci", 300, 10, 600, 25, 240, 60, 20, None),
    "nightly": Profile("nightly", 5400, 20, 20_000, 50, 3600, 600, 50, None),
}
