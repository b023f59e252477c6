"""The directed plans of the gate can be carried out as written: the mistakes a plan would hide in silence."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from harness.clients import requests as ask
from harness.seeds.plan_check import check_plan
from harness.worlds.plan import ADMIN_FAULTS, PROCESS_FAULTS, Plan
from tests.write_fifty_kills import FILE, KILLS, fifty_kills

FOLDER = Path(__file__).parent.parent / "fixtures" / "plans"
FILES = sorted(FOLDER.rglob("*.json"))
FAMILIES = ("dedup", "receipts", "chunks", "acks", "dead_letter")

ATTRIBUTES = {
    "latency": {"latency", "jitter"},
    "bandwidth": {"rate"},
    "slow_close": {"delay"},
    "timeout": {"timeout"},
    "reset_peer": {"timeout"},
    "slicer": {"average_size", "size_variation", "delay"},
    "limit_data": {"bytes"},
}
"""What Toxiproxy 2.12 knows. It ignores a misspelt attribute without a word."""


def load(path):
    return msgspec.json.decode(path.read_bytes(), type=Plan)


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def plan(request):
    return load(request.param)


def test_every_family_has_plans():
    counted = Counter(next(family for family in FAMILIES if path.stem.startswith(f"{family}-")) for path in FILES)
    assert min(counted[family] for family in FAMILIES) >= 8


def test_no_two_plans_are_the_same():
    contents = Counter(path.read_bytes() for path in FILES)
    assert max(contents.values()) == 1


def test_faults_are_inside_the_plan_and_spelt_as_toxiproxy_does(plan):
    for placed in plan.schedule:
        assert 0 <= placed.before <= len(plan.operations)
        fault = placed.fault
        assert fault.client in ("a", "b")
        if fault.kind in ("toxic", "untoxic"):
            assert fault.stream in ("upstream", "downstream")
            assert fault.toxic in ATTRIBUTES
        if fault.kind == "toxic":
            assert set(fault.attributes) <= ATTRIBUTES[fault.toxic]
            assert set(fault.attributes) >= ATTRIBUTES[fault.toxic] - {"jitter"}
            assert all(type(value) is int for value in fault.attributes.values())


def test_every_harm_is_taken_away_again_within_the_plan(plan):
    in_force = set()
    for placed in sorted(plan.schedule, key=lambda entry: entry.before):
        fault = placed.fault
        if fault.kind == "toxic":
            in_force.add((fault.client, fault.toxic, fault.stream))
        elif fault.kind == "untoxic":
            in_force.remove((fault.client, fault.toxic, fault.stream))
        elif fault.kind == "refuse":
            in_force.add((fault.client, "refuse"))
        elif fault.kind == "restore":
            in_force.remove((fault.client, "refuse"))
        elif fault.kind in ("broker_kill", "broker_stop"):
            in_force.add("down")
        elif fault.kind == "broker_start":
            in_force.remove("down")
    assert not in_force


def test_the_loader_would_take_it(plan):
    check_plan(plan)


def test_a_fault_of_the_broker_comes_after_something_is_under_way(plan):
    for placed in plan.schedule:
        if placed.fault.kind in PROCESS_FAULTS | ADMIN_FAULTS - {"dedup"}:
            assert placed.before > 2


def test_what_takes_the_broker_down_is_not_in_smoke():
    for path in FOLDER.glob("*.json"):
        assert not load(path).needs_alone


def test_the_fifty_kills_are_what_their_script_writes():
    assert FILE.read_text() == fifty_kills()
    assert sum(placed.fault.kind == "broker_kill" for placed in load(FILE).schedule) == KILLS == 50


def test_handles_are_made_before_they_are_used(plan):
    made = {}
    for operation in plan.operations:
        if operation.verb in ("producer", "consumer"):
            made[operation.handle] = operation.verb
            assert operation.handle.startswith("p" if operation.verb == "producer" else "c")
        elif operation.verb in ("send", "flush"):
            assert made.get(operation.handle) == "producer"
        elif operation.verb == "close":
            assert operation.handle in made
        elif operation.verb not in ("settle", "observe"):
            assert made.get(operation.handle) == "consumer"


def test_messages_are_named_only_after_they_could_have_been_received(plan):
    receives = Counter()
    for operation in plan.operations:
        if operation.verb == "consumer":
            receives[operation.handle] = 0
        elif operation.verb == "receive":
            receives[operation.handle] += 1
        elif operation.verb == "consume":
            receives[operation.handle] += operation.params["count"]
        elif "message" in operation.params:
            assert 0 <= operation.params["message"] < receives[operation.handle]


def test_parameters_are_those_of_the_adapter_contract(plan):
    for operation in plan.operations:
        params = dict(operation.params)
        common = {"id": 1, "op": operation.verb}
        match operation.verb:
            case "producer":
                filled = {"client": "a", "producer": "p", "name": "n", **params, "topic": "t"}
                msgspec.convert({**common, **filled}, ask.NewProducer)
            case "consumer":
                filled = {"client": "a", "consumer": "c", "name": "n", **params, "topic": "t"}
                if "dead_letter" in filled:
                    filled["dead_letter"] = {"topic": "t", **filled["dead_letter"]}
                msgspec.convert({**common, **filled}, ask.NewConsumer)
            case "send":
                filled = {name: value for name, value in params.items() if name not in ("tag", "size", "compressible")}
                msgspec.convert({**common, "producer": "p", "payload": b"", **filled}, ask.Send)
            case "receive":
                msgspec.convert({**common, "consumer": "c", **params}, ask.Receive)
            case "consume":
                assert set(params) == {"count", "then", "timeout_ms"}
                assert params["then"] in ("ack", "ack_cumulative", "nack", "hold")
            case "ack" | "ack_cumulative" | "nack":
                assert set(params) == {"message"}
            case "seek":
                assert len(params) == 1
                assert set(params) <= {"message", "publish_time", "position"}
            case "settle":
                assert set(params) == {"ms"}
            case "flush" | "close" | "unsubscribe" | "observe":
                assert not params


def test_the_plans_between_them_use_every_verb_toxic_codec_and_type():
    plans = [load(path) for path in FILES]
    operations = [operation for plan in plans for operation in plan.operations]
    faults = [placed.fault for plan in plans for placed in plan.schedule]
    verbs = {
        "producer",
        "send",
        "flush",
        "consumer",
        "receive",
        "consume",
        "ack",
        "ack_cumulative",
        "nack",
        "seek",
        "unsubscribe",
        "close",
        "settle",
        "observe",
    }
    assert {operation.verb for operation in operations} == verbs
    network = {"toxic", "untoxic", "cut", "refuse", "restore"}
    assert {fault.kind for fault in faults} == network | PROCESS_FAULTS | ADMIN_FAULTS
    assert {fault.toxic for fault in faults if fault.kind == "toxic"} == set(ATTRIBUTES)
    codecs = {operation.params.get("compression") for operation in operations if operation.verb == "producer"}
    assert codecs == {None, "lz4", "zlib", "zstd", "snappy"}
    types = {operation.params["type"] for operation in operations if operation.verb == "consumer"}
    assert types == {"exclusive", "failover", "shared", "key_shared"}
    assert any(not operation.wait for operation in operations if operation.verb == "send")
