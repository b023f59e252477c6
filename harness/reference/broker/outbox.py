"""What the broker has decided to do and not yet handed out."""

from __future__ import annotations

from collections.abc import Hashable

from harness.reference.outputs import BrokerOutput, Close, Write


class Outbox:
    """Outputs in the order of the decisions."""

    def __init__(self) -> None:
        self._outputs: list[BrokerOutput] = []

    def write(self, conn: Hashable, data: bytes) -> None:
        self._outputs.append(Write(conn, data))

    def close(self, conn: Hashable) -> None:
        self._outputs.append(Close(conn))

    def drain(self) -> list[BrokerOutput]:
        outputs, self._outputs = self._outputs, []
        return outputs
