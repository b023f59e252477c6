"""What happens to a new failure: is it repeatable, how small can it be, how often does it fail, and a seed of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from harness.gate.excerpt import excerpt
from harness.gate.finding import Finding
from harness.gate.profile import Profile
from harness.gate.result import Failure
from harness.seeds.rate import Rate
from harness.seeds.replay import Reproduction, Sighting, attempt
from harness.seeds.seed import Expectation, Seed, make_seed, write
from harness.shrink import shrink
from harness.worlds.plan import Plan
from harness.worlds.world import World

CALIBRATION_TRIES = 3


@dataclass(frozen=True, slots=True)
class Repeat:
    """The oracle's rule: a plan still fails when it failed in ``failures`` of at most ``tries`` runs."""

    failures: int
    tries: int


def repeat_rule(calibration: Reproduction) -> Repeat | None:
    """The rule that fits how the original plan repeats; None when it did not fail again at all.

    A plan that always failed must go on failing at once, which keeps shrinking quick and does not let it drift into a
    rarer failure; one that fails sometimes is given more tries.
    """
    if calibration.failed == 0:
        return None
    if calibration.failed == calibration.tries:
        return Repeat(1, 1)
    return Repeat(1, 4)


class Investigator:
    """Looks into the new failures of one pair while its world is up."""

    def __init__(self, world: World, profile: Profile, system: str, client: str, versions: dict[str, str]) -> None:
        self._world = world
        self._profile = profile
        self._system = system
        self._client = client
        self._versions = versions

    def look_into(self, finding: Finding, deadline: float, seeds: Path, watch: Callable[[str], None]) -> Failure:
        """Shrink, measure and store one finding. Raises ``OSError``.

        ``deadline`` is on the monotonic clock; once it has passed nothing more is run and the plan is stored as found.
        """
        expect = finding.expect
        ends = min(deadline, monotonic() + self._profile.shrink_seconds)
        plan, seen = finding.plan, finding.sighting
        steps_found = len(plan.steps())
        hurried = monotonic() >= ends
        calibration = Reproduction() if hurried else self._repeat(plan, expect, CALIBRATION_TRIES, ends)
        rule = repeat_rule(calibration)
        if hurried:
            note = "there was no time left to run it again or to shrink it"
        elif rule is None:
            note = f"did not show again in {calibration.tries} runs, so it was not shrunk"
        else:
            seen = calibration.sighting or seen
            plan, seen, note = self._shrunk(plan, seen, expect, rule, ends, watch)
        rate = self._measured(plan, expect, rule, calibration, deadline)
        seed = self._seed(finding, plan, seen, rate)
        path = write(seed, seeds)
        return self._failure(
            finding,
            plan,
            seen,
            steps_found=steps_found,
            shrink_note=note,
            rate=rate if rate.tries else None,
            seed=seed.id,
            seed_path=str(path),
            replay=f"starquake replay {path}",
        )

    def accepted(self, finding: Finding, status: str, reason: str, stored: Seed | None, seeds: Path) -> Failure:
        """A failure somebody has accepted: shown with its evidence and not shrunk.

        ``stored`` is its committed reproduction; where there is none, the plan is stored in ``seeds`` as it was found.
        """
        failure = self._failure(finding, finding.plan, finding.sighting, steps_found=len(finding.plan.steps()))
        if stored is not None:
            elsewhere = {"--system": (stored.system, self._system), "--client": (stored.client, self._client)}
            changes = [f" {option} {here}" for option, (there, here) in elsewhere.items() if there != here]
            failure.seed, failure.rate = stored.id, stored.rate
            failure.replay = f"starquake replay {stored.id}{''.join(changes)}"
        else:
            seed = self._seed(finding, finding.plan, finding.sighting, Rate(0, 0))
            # A report that cannot be written is told about elsewhere.
            with suppress(OSError):
                failure.seed_path = str(write(seed, seeds))
                failure.seed, failure.replay = seed.id, f"starquake replay {failure.seed_path}"
        failure.accepted = "flaky" if status == "flaky" else "known"
        failure.accepted_reason = reason
        return failure

    def _seed(self, finding: Finding, plan: Plan, seen: Sighting, rate: Rate) -> Seed:
        return make_seed(
            finding.expect,
            plan,
            protocol="pulsar",
            system=self._system,
            client=self._client,
            versions=self._versions,
            rate=rate,
            note=seen.anomaly.message,
        )

    def unstored(self, finding: Finding, why: str) -> Failure:
        """A new failure that could not be stored: told as it was found."""
        return self._failure(
            finding, finding.plan, finding.sighting, steps_found=len(finding.plan.steps()), shrink_note=why
        )

    def _repeat(self, plan: Plan, expect: Expectation, times: int, ends: float) -> Reproduction:
        return attempt(self._world, plan, expect, times, enough=lambda _: monotonic() >= ends)

    def _shrunk(
        self, plan: Plan, seen: Sighting, expect: Expectation, rule: Repeat, ends: float, watch: Callable[[str], None]
    ) -> tuple[Plan, Sighting, str]:
        best = [seen]

        def still_fails(candidate: Plan) -> bool:
            runs = attempt(
                self._world, candidate, expect, rule.tries, enough=lambda so_far: so_far.failed >= rule.failures
            )
            if runs.failed < rule.failures or runs.sighting is None:
                return False
            best[0] = runs.sighting
            watch(f"{len(candidate.steps())} steps")
            return True

        smaller = shrink(plan, still_fails, lambda: monotonic() >= ends)
        note = f"shrunk from {len(plan.steps())} to {len(smaller.plan.steps())} steps in {smaller.tried} attempts"
        if not smaller.complete:
            note += ", stopped by the time limit"
        return smaller.plan, best[0], note

    def _measured(
        self, plan: Plan, expect: Expectation, rule: Repeat | None, calibration: Reproduction, deadline: float
    ) -> Rate:
        if rule is None:
            return calibration.rate
        if monotonic() >= deadline:
            # The runs that chose the shrunk plan are biased towards failing; the calibration is of another plan.
            return Rate(0, 0)
        return self._repeat(plan, expect, self._profile.tries, deadline).rate

    def _failure(
        self,
        finding: Finding,
        plan: Plan,
        seen: Sighting,
        *,
        steps_found: int,
        shrink_note: str = "",
        rate: Rate | None = None,
        seed: str | None = None,
        seed_path: str | None = None,
        replay: str = "",
    ) -> Failure:
        directory = seen.outcome.directory
        return Failure(
            clause=finding.expect.clause,
            anomaly=finding.expect.anomaly,
            system=self._system,
            client=self._client,
            message=seen.anomaly.message,
            severity=seen.anomaly.severity,
            found_by=finding.found_by,
            excerpt=excerpt(seen.outcome.history, seen.anomaly),
            plan=plan,
            runs=finding.runs,
            steps_found=steps_found,
            shrink_note=shrink_note,
            rate=rate,
            seed=seed,
            seed_path=seed_path,
            replay=replay,
            history="" if directory is None else str(directory),
        )
