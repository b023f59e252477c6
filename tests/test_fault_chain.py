"""The real Python client behind tap B, Toxiproxy and tap A, in front of pulsar-lite: nothing gets past the taps."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.faults.tap import Tap
from harness.faults.toxiproxy import Toxiproxy
from harness.history.event import Event
from harness.history.recorder import Recorder
from harness.processes import ChildProcess
from harness.systems.lite import LiteSystem

MESSAGES = 5

# os._exit: the C++ library's teardown is not what is being tested.
CLIENT = f"""
import os, sys
import pulsar
client = pulsar.Client(sys.argv[1], logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, sys.argv[2]))
consumer = client.subscribe("t", "s", consumer_name="c")
producer = client.create_producer("t", producer_name="p")
for n in range({MESSAGES}):
    producer.send(b"message %d" % n)
    message = consumer.receive(timeout_millis=10_000)
    assert message.data() == b"message %d" % n
    consumer.acknowledge(message)
print("done", flush=True)
sys.stdin.readline()
producer.send(b"after the cut")
while (message := consumer.receive(timeout_millis=10_000)).data() != b"after the cut":
    # The client sends acknowledgements late, so the cut may have lost them: these are delivered again.
    assert message.data().startswith(b"message "), message.data()
consumer.acknowledge(message)
consumer.close()
print(message.data().decode(), flush=True)
sys.stdin.readline()
os._exit(0)
"""

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


def of(events: list[Event], layer: str, kind: str) -> list[Event]:
    return [event for event in events if event.layer == layer and event.kind == kind]


def dialled(pid: int) -> set[int]:
    return {entry.raddr.port for entry in psutil.Process(pid).net_connections() if entry.raddr}


async def test_produce_consume_and_survive_a_cut_through_the_whole_chain(tmp_path: Path):
    events: list[Event] = []
    recorder = Recorder("run", clock=lambda: 0, observers=[events.append])
    lite, toxiproxy = LiteSystem(), Toxiproxy()
    address = await lite.start()
    await toxiproxy.start()
    tap_a = Tap("broker", (address.host, address.port), recorder)
    host, port = await tap_a.start()
    link = await toxiproxy.proxy("link", f"{host}:{port}")
    tap_b = Tap("client", link.listen, recorder, rewrite_to="self")
    host, port = await tap_b.start()
    child = await ChildProcess.spawn_piped(
        [sys.executable, "-c", CLIENT, f"pulsar://{host}:{port}", tmp_path / "client.log"],
        name="client",
        log=tmp_path / "stderr",
    )
    try:
        async with asyncio.timeout(40):
            assert await child.stdout.readline() == b"done\n", child.logs_tail()
            assert dialled(child.pid) == {port}
            await link.cut()
            child.stdin.write(b"\n")
            assert await child.stdout.readline() == b"after the cut\n", child.logs_tail()
            assert dialled(child.pid) == {port}
            child.stdin.write(b"\n")
            assert await child.wait() == 0
    finally:
        await child.stop()
        await tap_b.stop()
        await toxiproxy.stop()
        await tap_a.stop()
        await lite.stop()
    assert tap_a.failure is None
    assert tap_b.failure is None
    assert not of(events, "tap.client", "WIRE_ERROR")
    assert not of(events, "tap.broker", "WIRE_ERROR")
    for layer in ("tap.client", "tap.broker"):
        sends = of(events, layer, "SEND")
        assert [send.sequence_id for send in sends[:MESSAGES]] == list(range(MESSAGES))
        assert {(send.producer, send.topic) for send in sends} == {("p", "persistent://public/default/t")}
        assert len(of(events, layer, "SEND_RECEIPT")) >= MESSAGES + 1
        assert len(of(events, layer, "MESSAGE")) >= MESSAGES + 1
        assert of(events, layer, "ACK")
        opened = {event.connection for event in of(events, layer, "CONNECTION_OPEN")}
        closed = {event.connection for event in of(events, layer, "CONNECTION_CLOSED")}
        assert len(opened) >= 2
        assert opened == closed
    # What the client sent passed tap B before tap A, and the answer the other way round (until the cut lost some).
    for kind, first, second in (
        ("SEND", "tap.client", "tap.broker"),
        ("SEND_RECEIPT", "tap.broker", "tap.client"),
        ("MESSAGE", "tap.broker", "tap.client"),
    ):
        pairs = list(zip(of(events, first, kind)[:MESSAGES], of(events, second, kind)[:MESSAGES], strict=True))
        assert len(pairs) == MESSAGES
        for earlier, later in pairs:
            assert earlier.index < later.index
            assert (earlier.sequence_id, earlier.entry_id) == (later.sequence_id, later.entry_id)
