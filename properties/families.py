"""The families by name."""

from __future__ import annotations

from properties.acks import AcksMachine
from properties.chunks import ChunksMachine
from properties.dead_letter import DeadLetterMachine
from properties.dedup import DedupMachine
from properties.machine import FamilyMachine
from properties.receipts import ReceiptsMachine

FAMILIES: dict[str, type[FamilyMachine]] = {
    machine.family: machine
    for machine in (DedupMachine, ReceiptsMachine, ChunksMachine, AcksMachine, DeadLetterMachine)
}
