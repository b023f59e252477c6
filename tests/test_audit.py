"""The final read is whole only when the broker's storage, where it can be asked, agrees."""

from __future__ import annotations

import asyncio

import pytest

from harness.history.event import Event
from harness.history.recorder import Recorder
from harness.systems.first_message import send_one
from harness.systems.reference import ReferenceSystem
from harness.worlds.audit import Auditor

TOPIC = "persistent://public/default/audited"


@pytest.mark.parametrize(
    ("entries_beyond", "complete"),
    [(None, True), (0, True), (1, False)],
)
def test_entries_that_the_storage_has_and_the_read_did_not_bring_leave_it_incomplete(
    entries_beyond: int | None, complete: bool
):
    history: list[Event] = []

    async def run() -> None:
        system = ReferenceSystem()
        address = await system.start()
        auditor = Auditor(address, Recorder("run", clock=lambda: 0, observers=[history.append]))
        try:
            await auditor.open()
            await auditor.attach(TOPIC)
            last = await send_one(address.host, address.port, TOPIC, 5.0)

            async def stored(topic: str) -> tuple[int, int] | None:
                return None if entries_beyond is None else (last.ledger, last.entry + entries_beyond)

            await auditor.read_everything(stored)
        finally:
            await auditor.close()
            await system.stop()

    asyncio.run(run())
    assert [event.kind for event in history] == ["ENTRY", "LOG_END"]
    assert history[-1].extra["complete"] is complete
