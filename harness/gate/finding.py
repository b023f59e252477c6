"""The best example of each anomaly seen so far in one pair."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from harness.invariants.core import Anomaly
from harness.seeds.replay import Sighting
from harness.seeds.seed import Expectation
from harness.worlds.plan import Plan
from harness.worlds.world import Outcome


@dataclass(slots=True)
class Finding:
    """One (clause, anomaly) with the shortest plan that showed it; ``runs`` counts all that did."""

    expect: Expectation
    plan: Plan
    sighting: Sighting
    found_by: str
    runs: int = 1


class Findings:
    """Findings by (clause, anomaly)."""

    def __init__(self) -> None:
        self.by_expectation: dict[Expectation, Finding] = {}

    def add(self, plan: Plan, outcome: Outcome, found_by: str) -> list[Finding]:
        """Take in one run; returns the findings that are new. An outcome with a harness error proves nothing."""
        if outcome.error is not None:
            return []
        fresh: list[Finding] = []
        for expect, anomaly in _smallest(outcome).items():
            known = self.by_expectation.get(expect)
            if known is None:
                # Hypothesis goes on to use what it handed over; a finding is kept for later.
                finding = Finding(expect, _copy(plan), Sighting(anomaly, outcome), found_by)
                self.by_expectation[expect] = finding
                fresh.append(finding)
                continue
            known.runs += 1
            if len(plan.steps()) < len(known.plan.steps()):
                known.plan, known.sighting, known.found_by = _copy(plan), Sighting(anomaly, outcome), found_by
        return fresh


def _smallest(outcome: Outcome) -> dict[Expectation, Anomaly]:
    smallest: dict[Expectation, Anomaly] = {}
    for anomaly in outcome.judgement.anomalies:
        expect = Expectation(clause=anomaly.clause, anomaly=anomaly.name)
        if expect not in smallest or len(anomaly.witness) < len(smallest[expect].witness):
            smallest[expect] = anomaly
    return smallest


def _copy(plan: Plan) -> Plan:
    return msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
