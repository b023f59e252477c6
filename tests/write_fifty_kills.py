"""Writes ``fixtures/plans/nightly/dedup-fifty-kills.json``: a broker that is killed fifty times under load.

    python -m tests.write_fifty_kills

Two producers with sequence ids of their own send all the time, also while the broker is down; two consumers on two
subscriptions acknowledge what comes. Nothing that was confirmed may be lost, nothing may be stored twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "fixtures" / "plans" / "nightly" / "dedup-fifty-kills.json"
KILLS = 50
BEFORE, DURING = 4, 2
"""Sends of each producer in a round: under way when the broker is killed, and while it is down."""


def fifty_kills() -> str:
    """The plan as JSON, one step a line."""
    operations: list[dict[str, Any]] = [
        _consumer("c0", "a", "s"),
        _consumer("c1", "b", "t"),
        _producer("p0", "a"),
        _producer("p1", "b"),
    ]
    schedule: list[dict[str, Any]] = []
    # Confirmed before the first kill: a C++ client that reconnects before its first receipt counts anew (PROD-05).
    sent = _send_both(operations, 1, 0, "first", wait=True)
    for kill in range(KILLS):
        sent = _send_both(operations, BEFORE, sent, f"round {kill}")
        schedule.append(_fault("broker_kill", operations))
        sent = _send_both(operations, DURING, sent, f"down {kill}")
        schedule.append(_fault("broker_start", operations))
        operations += [_consume("c0", "ack_cumulative" if kill % 2 else "ack"), _consume("c1", "ack")]
    operations += [{"verb": "flush", "handle": handle} for handle in ("p0", "p1")]
    return (
        f'{{\n  "operations": [\n{_lines(operations)}\n  ],\n  "schedule": [\n{_lines(schedule)}\n  ],\n'
        '  "topic_options": {"dedup": true}\n}\n'
    )


def _consumer(handle: str, client: str, subscription: str) -> dict[str, Any]:
    options = {"topic": 0, "subscription": subscription, "type": "exclusive"}
    return {"verb": "consumer", "handle": handle, "client": client, "params": options}


def _producer(handle: str, client: str) -> dict[str, Any]:
    return {"verb": "producer", "handle": handle, "client": client, "params": {"topic": 0, "send_timeout_ms": 60_000}}


def _send_both(operations: list[dict[str, Any]], count: int, sent: int, tag: str, *, wait: bool = False) -> int:
    for _ in range(count):
        sent += 1
        for handle in ("p0", "p1"):
            params = {"tag": tag, "sequence_id": sent, "size": 100}
            operations.append({"verb": "send", "handle": handle, "params": params, "wait": wait})
    return sent


def _consume(handle: str, then: str) -> dict[str, Any]:
    params = {"count": 2 * (BEFORE + DURING), "then": then, "timeout_ms": 1_000}
    return {"verb": "consume", "handle": handle, "params": params}


def _fault(kind: str, operations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"before": len(operations), "fault": {"kind": kind}}


def _lines(steps: list[dict[str, Any]]) -> str:
    return ",\n".join(f"    {json.dumps(step)}" for step in steps)


if __name__ == "__main__":
    FILE.write_text(fifty_kills(), encoding="utf-8")
