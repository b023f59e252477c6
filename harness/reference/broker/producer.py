"""One registered producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.reference.broker import answers
from harness.reference.broker.connection import Connection

if TYPE_CHECKING:
    from harness.reference.broker.topic import Topic


class Producer:
    """Lives on one connection. ``pending``: SENDs accepted and not yet answered; ``closing``: who waits for them."""

    def __init__(self, producer_id: int, name: str, epoch: int, topic: Topic, connection: Connection) -> None:
        self.id = producer_id
        self.name = name
        self.epoch = epoch
        self.topic = topic
        self.connection = connection
        self.pending = 0
        self.closing: list[Callable[[], None]] = []

    def receipt(self, sequence_id: int, highest: int | None, at: tuple[int, int] | None) -> None:
        """Answers one SEND; nobody hears it when the connection is gone."""
        self.connection.send(answers.receipt(self.id, sequence_id, highest, at))

    def refuse(self, sequence_id: int, error: str, message: str) -> None:
        self.connection.send(answers.send_error(self.id, sequence_id, error, message))

    def settle(self) -> None:
        """One accepted SEND has its answer."""
        self.pending -= 1
        if not self.pending:
            waiting, self.closing = self.closing, []
            for proceed in waiting:
                proceed()
