"""Written plans: JSON files of operations and a schedule, to be carried out as they are."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.regular_file import read_regular
from harness.seeds.plan_check import BadPlan, check_plan
from harness.usage_error import UsageError
from harness.worlds.plan import Plan


def read_plan(path: Path) -> Plan:
    """Raises ``UsageError`` naming the file and what is wrong with it."""
    try:
        data = read_regular(path)
    except OSError as error:
        raise UsageError(f"cannot read the plan {path}: {error.strerror or error}") from error
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON, or only a part of it: {error}") from error
    if isinstance(raw, dict) and "expect" in raw:
        raise UsageError(f"{path} is a seed; `starquake replay {path}` runs it")
    try:
        plan = msgspec.convert(raw, Plan)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UsageError(f"{path} is not a plan: {error}") from error
    if not plan.operations:
        raise UsageError(f"{path} has no operations")
    beyond = [entry.before for entry in plan.schedule if not 0 <= entry.before <= len(plan.operations)]
    if beyond:
        raise UsageError(
            f"{path}: a fault is placed before operation {beyond[0]}, but there are {len(plan.operations)}"
        )
    try:
        check_plan(plan)
    except BadPlan as error:
        raise UsageError(f"{path} cannot be carried out: {error}") from error
    return plan
