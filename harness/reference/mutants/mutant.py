"""What a mutant is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A reference broker or client with one rule broken.

    ``family`` names the properties that must catch it, ``breaks`` the broken promise in one sentence, ``expected`` the
    clauses that make this promise: only their objection kills the mutant, any other alarm does not. ``shown_by`` is a
    directed plan of the family that is known to show it. ``parts`` are the part factories that differ (names of
    ``BrokerParts`` or ``ClientParts`` fields).
    """

    name: str
    family: str
    side: Literal["broker", "client"]
    breaks: str
    expected: tuple[str, ...]
    shown_by: str
    parts: dict[str, Any] = field(default_factory=dict)
