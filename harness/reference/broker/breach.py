"""Frames for which a broker answers nothing and closes the connection."""

from __future__ import annotations


class ProtocolBreach(Exception):
    """The peer did what the protocol forbids; its connection must be closed (CONN-12, SEND-04, PERMIT-11)."""


class Refusal(Exception):
    """A request that is answered with ERROR. ``error`` is the name of a ServerError."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(f"{error}: {message}")
        self.error = error
        self.message = message
