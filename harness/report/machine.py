"""``--json``: one object a line, a last one of type ``summary``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from harness.gate.result import GateResult


def lines(result: GateResult, code: int | None = None) -> Iterator[str]:
    """The lines of a result, without line ends. ``code``: the command's exit code where it is not the result's own."""
    replay = {(f.clause, f.anomaly, f.system, f.client): f.replay for f in result.failures}
    for cell in result.cells:
        seeds = [breach.seed for breach in cell.breaches if breach.seed]
        line: dict[str, Any] = {
            "type": "verdict",
            "clause": cell.clause,
            "family": cell.family,
            "system": cell.system,
            "client": cell.client,
            "verdict": cell.verdict,
            "seed": seeds[0] if seeds else None,
            "judged": cell.judged,
            "undecided": cell.undecided,
            "reason": cell.reason,
            "stale": cell.stale,
            "anomalies": [
                {
                    "anomaly": breach.anomaly,
                    "accepted": breach.accepted,
                    "reason": breach.reason,
                    "message": breach.message,
                    "runs": breach.runs,
                    "seed": breach.seed,
                    "replay": replay.get((cell.clause, breach.anomaly, cell.system, cell.client)) or None,
                }
                for breach in cell.breaches
            ],
        }
        yield msgspec.json.encode(line).decode()
    yield msgspec.json.encode(
        {
            "type": "summary",
            "exit_code": result.exit_code() if code is None else code,
            "verdicts": result.counts,
            "stale": result.stale,
            "harness_errors": result.harness_errors,
            "setup_errors": [pair.setup_error for pair in result.pairs if pair.setup_error],
            "directed": sum(pair.directed for pair in result.pairs),
            "examples": sum(pair.examples for pair in result.pairs),
            "events": sum(pair.events for pair in result.pairs),
            "seconds": result.seconds,
            "profile": result.profile,
            "seed": result.seed,
            "versions": result.versions,
            "interrupted": result.interrupted,
        }
    ).decode()
