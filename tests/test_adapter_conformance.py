"""The conformance test of adapters: our own pass it on a real broker, and each way of being wrong fails its check."""

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path

import pulsar_lite
import pytest

from harness.clients import conformance
from harness.clients.conformance import CHECKS, examine, main, passed
from harness.clients.resolve import ADAPTERS
from harness.systems.reference import ReferenceSystem

TOY = str(Path(__file__).with_name("toy_adapter.py"))
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lite")
    (folder / "config.toml").write_text("default_partitions = 0\n[metrics]\nenabled = false\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    binary = Path(pulsar_lite.__file__).parent / "bin" / "pulsar-lite"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [binary, "--config", folder / "config.toml", "--addr", f"127.0.0.1:{port}", "--db-path", folder / "db"],
            stdout=log,
            stderr=log,
        )
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.02)
    yield f"pulsar://127.0.0.1:{port}"
    process.terminate()
    process.wait(5)


@pytest.mark.parametrize("module", ADAPTERS.values(), ids=ADAPTERS)
def test_our_adapters_keep_the_contract_on_pulsar_lite(module, broker, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    rows = asyncio.run(examine([sys.executable, "-m", module], broker))
    assert [row for row in rows if row.verdict == "fail"] == []
    assert len(rows) == len(CHECKS) + 2
    # pulsar-lite ends the connection on SEEK, so that check cannot decide there.
    assert {row.check for row in rows if row.verdict == "n/a"} <= {"seeks"}


@pytest.mark.parametrize("module", ADAPTERS.values(), ids=ADAPTERS)
def test_our_adapters_keep_the_contract_on_the_reference_broker(module, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    async def run():
        system = ReferenceSystem()
        address = await system.start()
        try:
            return await examine([sys.executable, "-m", module], address.service_url)
        finally:
            await system.stop()

    rows = asyncio.run(run())
    assert [row for row in rows if row.verdict != "pass"] == []
    assert len(rows) == len(CHECKS) + 2


def rows_of(way, *checks):
    rows = asyncio.run(examine([sys.executable, TOY, way], "pulsar://127.0.0.1:2", frozenset(checks) or None))
    return {row.check: row for row in rows}


def test_an_adapter_of_few_capabilities_keeps_the_contract():
    rows = rows_of("none")
    assert [row for row in rows.values() if row.verdict == "fail"] == []
    assert {check for check, row in rows.items() if row.verdict == "n/a"} == {
        "acknowledges_cumulatively",
        "says_who_it_is",
        "seeks",
    }


@pytest.mark.parametrize(
    ("way", "check", "told"),
    [
        ("never_answers", "sends", "no answer to send"),
        ("answers_twice", "answers_once", "request"),
        ("garbage", "keeps_stdout_clean", "INFO connected"),
        ("wrong_ids", "keeps_stdout_clean", "nobody asked"),
        ("dies", "sends", "ended before"),
        ("late_hello", "greets", "no answer to hello"),
        ("invented_capability", "greets", "telepathy"),
        ("lenient", "refuses_malformed", "expected an error malformed"),
        ("ignores_options", "honours_capabilities", "expected an error unsupported"),
        ("ignores_options", "says_who_it_is", "no CONNECT came"),
        ("blocks", "overlaps", "no answer to flush"),
        ("early_empty", "waits_for_messages", "took 0.0"),
        ("refs_from_one", "numbers_deliveries", "[1, 2, 3]"),
        ("minus_one", "carries_everything", "sentinels"),
        ("drops_key", "carries_everything", "sent"),
        ("reorders", "keeps_order", "do not grow"),
        ("forgets_ack", "acknowledges", "the first delivery is"),
        ("confirms_falsely", "acknowledges", "ack_receipt is not declared"),
        ("forgets_nack", "gives_back", "no message"),
        ("exits_5", "ends", "exit status 5"),
        ("stays", "ends", "goes on"),
    ],
)
def test_each_way_of_being_wrong_fails_its_check(way, check, told, monkeypatch):
    monkeypatch.setattr(conformance, "PATIENCE_S", 1.0)
    monkeypatch.setattr(conformance, "MESSAGE_MS", 500)
    monkeypatch.setattr(conformance, "HELLO_S", 0.5)
    monkeypatch.setattr(conformance, "EXIT_S", 0.5)
    watched = {"answers_once": "sends", "keeps_stdout_clean": "sends"}.get(check, check)
    rows = rows_of(way, watched)
    assert rows[check].verdict == "fail"
    assert told in rows[check].detail
    assert not passed(list(rows.values()))


def test_the_command_tells_by_its_exit_status(capsys):
    url = ["--url", "pulsar://127.0.0.1:2", "--check", "greets", "--"]
    assert main([*url, sys.executable, TOY, "none"]) == 0
    assert "greets" in capsys.readouterr().out
    assert main([*url, sys.executable, TOY, "invented_capability"]) == 1
    assert "telepathy" in capsys.readouterr().out
    assert main([*url, "/nonexistent/adapter"]) == 2
