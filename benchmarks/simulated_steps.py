"""Simulated steps a second, beside the same Hypothesis machines with nothing behind them.

    python benchmarks/simulated_steps.py --steps 200000 [--seed 1]

A step is one operation or fault carried out in the simulated world (reference client, reference broker, virtual time,
faults, all invariants online). The peer is Hypothesis itself: the same rules, a session that does nothing. Exit 1 when
the unbroken pair shows any anomaly.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from harness.invariants.engine import Judgement
from harness.worlds.plan import Fault, Operation, Plan
from harness.worlds.simulated import SimulatedWorld
from harness.worlds.world import Outcome
from properties.explore import Settings, explore
from properties.families import FAMILIES


class EmptySession:
    def perform(self, step: Operation | Fault) -> None:
        pass

    def finish(self) -> Outcome:
        return Outcome(judgement=Judgement(), events=0, history=[])


class EmptyWorld(SimulatedWorld):
    def open(self, plan: Plan | None = None) -> Any:
        return EmptySession()


def run(world: SimulatedWorld, steps: int, seed: int) -> tuple[int, int, float, list[str]]:
    """(steps, events, seconds, anomalies) of all families in turn until each has its share of the steps."""
    done = events = 0
    anomalies: list[str] = []
    began = time.perf_counter()
    share = steps / len(FAMILIES)
    for family in FAMILIES:
        family_steps = 0

        def count(plan: Plan, outcome: Outcome) -> None:
            nonlocal family_steps, events
            family_steps += len(plan.operations) + len(plan.schedule)
            events += outcome.events
            if outcome.error:
                anomalies.append(f"error: {outcome.error}")
            anomalies.extend(f"{item.clause} {item.name}: {item.message}" for item in outcome.judgement.anomalies)

        round_ = 0
        while family_steps < share:
            # Hypothesis grows slow with thousands of examples in one call, so the share is drawn in rounds.
            explore(family, world, Settings(examples=100, steps=30, seed=seed * 1_000_003 + round_), count)
            round_ += 1
        done += family_steps
    return done, events, time.perf_counter() - began, anomalies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    steps, events, seconds, anomalies = run(SimulatedWorld(keep_history=False), arguments.steps, arguments.seed)
    empty_steps, _, empty_seconds, _ = run(EmptyWorld(), min(arguments.steps, 50_000), arguments.seed)
    print(
        f"simulated world    {steps:>9} steps  {events:>10} events  {seconds:>8.1f} s  {steps / seconds:>9.0f} steps/s"
    )
    print(
        f"empty rules (peer) {empty_steps:>9} steps  {'':>10}         {empty_seconds:>8.1f} s  "
        f"{empty_steps / empty_seconds:>9.0f} steps/s"
    )
    for line in anomalies[:20]:
        print(line)
    print(f"anomalies on the unbroken pair: {len(anomalies)}")
    return 1 if anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
