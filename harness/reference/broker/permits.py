"""Flow control of one consumer on one connection."""

from __future__ import annotations

from harness.reference.broker.breach import ProtocolBreach


class Permits:
    """Counted in messages; one entry may overshoot, because a batch is sent whole (FLOW-01, FLOW-02)."""

    def __init__(self) -> None:
        self.available = 0

    def grant(self, messages: int) -> None:
        """FLOW adds to what is left. Raises ``ProtocolBreach`` for a grant of nothing (PERMIT-11)."""
        if messages <= 0:
            raise ProtocolBreach(f"FLOW of {messages} permits")
        self.available += messages

    def charge(self, messages: int) -> None:
        self.available -= messages

    def allow(self) -> bool:
        """Whether another entry may be sent."""
        return self.available > 0
