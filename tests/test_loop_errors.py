"""A world's loop is silent about connections that are over already, and about nothing else."""

from __future__ import annotations

import asyncio
import logging

import pytest

from harness.worlds.loop_errors import report

CLOSED = {
    "message": "Fatal error on SSL protocol",
    "exception": RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed"),
}


@pytest.mark.parametrize(
    ("context", "told"),
    [
        (CLOSED, False),
        ({**CLOSED, "exception": RuntimeError("no")}, True),
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
