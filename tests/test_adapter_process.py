"""The driver of an adapter process: what it passes on, and how it tells an adapter's faults from a client's."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from harness.clients.adapter_process import AdapterProcess
from harness.clients.client import AdapterDied, AdapterGarbage, AdapterRefused, ClientError, UnknownClient
from harness.clients.resolve import resolve
from harness.setup_error import SetupError

TOY = Path(__file__).with_name("toy_adapter.py")


def toy(way, **options):
    return AdapterProcess([sys.executable, str(TOY), way], name="toy", grace=1.0, **options)


async def opened(way, **options):
    adapter = toy(way, **options)
    await adapter.start()
    await adapter.request({"op": "client", "client": "a", "url": "pulsar://127.0.0.1:2"}, 5)
    await adapter.request({"op": "producer", "client": "a", "producer": "p", "topic": "t", "name": "n"}, 5)
    return adapter


SEND = {"op": "send", "producer": "p", "payload": "aGVsbG8="}


def test_greets_and_reports_what_the_adapter_said():
    async def run():
        adapter = toy("none")
        assert not adapter.alive()
        await adapter.start()
        assert (adapter.name, adapter.version) == ("toy", "1")
        assert adapter.capabilities == {"shared", "nack"}
        assert adapter.alive()
        await adapter.stop()
        await adapter.stop()
        assert not adapter.alive()
        assert adapter.returncode == 0
        with pytest.raises(AdapterDied):
            await adapter.request(SEND, 1)

    asyncio.run(run())


def test_a_client_error_is_passed_on_with_its_kind():
    async def run():
        adapter = await opened("none")
        with pytest.raises(ClientError) as caught:
            await adapter.request({"op": "flush", "producer": "nobody"}, 5)
        assert caught.value.kind == "no_such_handle"
        assert caught.value.phase == "fail"
        await adapter.stop()

    asyncio.run(run())


def test_overlapping_calls_are_matched_by_id():
    async def run():
        adapter = await opened("none")
        consumer = {"client": "a", "consumer": "c", "topic": "t", "subscription": "s", "name": "c", "type": "shared"}
        await adapter.request({"op": "consumer", **consumer}, 5)
        waiting = asyncio.create_task(adapter.request({"op": "receive", "consumer": "c", "timeout_ms": 5000}, 6))
        await asyncio.sleep(0.05)
        big = "eHh4" * 100_000
        sent = await adapter.request({**SEND, "payload": big}, 5)
        assert sent == {"message_id": {"ledger": 0, "entry": 0}}
        assert (await waiting)["message"]["payload"] == big
        await adapter.stop()

    asyncio.run(run())


def test_a_request_without_answer_times_out_and_its_late_answer_is_no_garbage():
    async def run():
        adapter = await opened("none")
        consumer = {"client": "a", "consumer": "c", "topic": "t", "subscription": "s", "name": "c", "type": "shared"}
        await adapter.request({"op": "consumer", **consumer}, 5)
        with pytest.raises(ClientError) as caught:
            await adapter.request({"op": "receive", "consumer": "c", "timeout_ms": 300}, 0.05)
        assert caught.value.kind == "timeout"
        assert caught.value.phase == "unknown"
        await asyncio.sleep(0.5)
        assert await adapter.request({"op": "receive", "consumer": "c", "timeout_ms": 1}, 5) == {"message": None}
        assert adapter.alive()
        await adapter.stop()

    asyncio.run(run())


def test_a_death_ends_every_call_in_flight():
    async def run():
        adapter = await opened("dies")
        results = await asyncio.gather(*[adapter.request(SEND, 5) for _ in range(3)], return_exceptions=True)
        assert all(isinstance(result, AdapterDied) for result in results)
        assert "exit status 3" in str(results[0])
        assert not adapter.alive()
        await adapter.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("way", "shown"),
    [("garbage", "INFO connected"), ("wrong_ids", "not waiting"), ("answers_twice", "not waiting")],
)
def test_garbage_is_the_adapters_fault_and_shows_the_line(way, shown):
    async def run():
        adapter = await opened(way)

        async def send_twice():
            for _ in range(2):
                await adapter.request(SEND, 5)
                await asyncio.sleep(0.05)

        with pytest.raises(AdapterGarbage, match=shown):
            await send_twice()
        await adapter.stop()

    asyncio.run(run())


def test_a_capability_the_contract_does_not_know_is_refused():
    with pytest.raises(AdapterGarbage, match="telepathy"):
        asyncio.run(toy("invented_capability").start())


def test_malformed_is_our_own_fault():
    async def run():
        adapter = await opened("none")
        with pytest.raises(AdapterRefused):
            await adapter.request({"op": "somersault"}, 5)
        await adapter.stop()

    asyncio.run(run())


def test_a_late_hello_is_not_waited_for():
    started = time.monotonic()
    with pytest.raises(AdapterDied, match="hello"):
        asyncio.run(toy("late_hello", hello_timeout=0.2).start())
    assert time.monotonic() - started < 10


def test_last_stderr_lines_tell_why_it_died():
    adapter = AdapterProcess([sys.executable, "-c", "raise SystemExit('no such library')"], name="broken")
    with pytest.raises(AdapterDied, match="no such library"):
        asyncio.run(adapter.start())


def test_a_program_that_is_not_there_is_an_environment_problem():
    with pytest.raises(SetupError, match="/nonexistent/adapter"):
        asyncio.run(AdapterProcess(["/nonexistent/adapter"], name="gone").start())


def test_an_adapter_that_ignores_the_end_of_stdin_is_stopped():
    async def run():
        adapter = await opened("stays")
        await adapter.stop()
        assert adapter.returncode == -15

    asyncio.run(run())


def test_names():
    assert resolve("python").name == "python"
    with pytest.raises(UnknownClient, match="python, reference"):
        resolve("cobol")
