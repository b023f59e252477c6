"""One client connection as the broker knows it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from harness.reference.broker.outbox import Outbox
from harness.wire.frame import Frame, FrameDecoder, encode
from harness.wire.pulsar_pb2 import BaseCommand

if TYPE_CHECKING:
    from harness.reference.broker.consumer import Consumer
    from harness.reference.broker.producer import Producer


class Connection:
    """``alive`` turns false once and for good; nothing is written after that.

    ``heard``: bytes came since the last keep-alive tick. ``probes``: who waits to learn whether the peer still lives.
    """

    def __init__(self, conn: Hashable, outbox: Outbox, max_frame_size: int) -> None:
        self.conn = conn
        self.decoder = FrameDecoder(max_frame_size=max_frame_size)
        self.alive = True
        self.shaken = False
        self.heard = True
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.registering: set[tuple[str, int]] = set()
        self.closed_producers: set[int] = set()
        self.probes: list[Callable[[bool], None]] = []
        self._outbox = outbox

    def send(self, command: BaseCommand) -> None:
        if self.alive:
            self._outbox.write(self.conn, encode(Frame(command)))

    def send_bytes(self, frame: bytes) -> None:
        if self.alive:
            self._outbox.write(self.conn, frame)

    def close(self) -> None:
        """Asks for the closing; those who depend on the connection are told by ``Sessions``."""
        if self.alive:
            self.alive = False
            self._outbox.close(self.conn)
