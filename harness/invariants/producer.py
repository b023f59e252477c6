"""Producer-side invariants: how SENDs are made, in which order they leave, how they end, where they are stored."""

from __future__ import annotations

from typing import Any

from harness.invariants.completion import Completion
from harness.invariants.connection import Connection
from harness.invariants.core import Invariant
from harness.invariants.frame_shape import FrameShape
from harness.invariants.ledger import Ledger
from harness.invariants.termination import Termination
from harness.invariants.transmission import Transmission

INVARIANTS: tuple[Invariant[Any], ...] = (
    FrameShape(),
    Transmission(),
    Completion(),
    Connection(),
    Ledger(),
    Termination(),
)
