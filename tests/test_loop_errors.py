"""A world's loop is silent about connections that are over already, and about nothing else."""

from __future__ import annotations

import asyncio
import logging

import pytest

from harness.worlds.loop_errors import report


class Transport:
    def __init__(self, closing: bool) -> None:
        self._closing = closing

    def is_closing(self) -> bool:
        return self._closing


CLOSED = {
    "message": "Fatal error on SSL protocol",
    "exception": RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed"),
    "transport": Transport(closing=True),
}


@pytest.mark.parametrize(
    ("context", "told"),
    [
        (CLOSED, False),
        ({**CLOSED, "transport": Transport(closing=False)}, True),
        ({**CLOSED, "exception": OSError("no")}, True),
        ({**CLOSED, "message": "Task was destroyed"}, True),
        ({"message": "Task exception was never retrieved", "exception": RuntimeError("x")}, True),
    ],
)
def test_reports(context: dict[str, object], told: bool, caplog: pytest.LogCaptureFixture):
    loop = asyncio.new_event_loop()
    try:
        with caplog.at_level(logging.ERROR, "asyncio"):
            report(loop, context)
    finally:
        loop.close()
    assert bool(caplog.records) == told
