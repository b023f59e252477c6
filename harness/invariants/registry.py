"""Every invariant of the harness, family by family."""

from __future__ import annotations

from typing import Any

from harness.invariants import acks, admin, chunks, dead_letter, dedup, delivery, producer, receipts
from harness.invariants.core import Invariant


def all_invariants() -> tuple[Invariant[Any], ...]:
    """The invariants a run is judged by. They hold no state of their own, so one tuple serves many judges."""
    families = (dedup, receipts, producer, chunks, acks, dead_letter, delivery, admin)
    return tuple(invariant for family in families for invariant in family.INVARIANTS)
