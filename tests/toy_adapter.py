"""Adapters that are wrong in one way each: ``python tests/toy_adapter.py WAY``. No client behind them.

Run plainly (``none``) it keeps a list of payloads per topic in its own memory, so that everything else about the
contract can be answered without a broker.
"""

import json
import os
import sys
import threading
import time

WAY = sys.argv[1]
CAPABILITIES = ["shared", "nack"]

lock = threading.Lock()
topics = {}
handles = {}
closed = set()


def write(text):
    with lock:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def answer(request, **body):
    identity = request["id"]
    if WAY == "wrong_ids" and request["op"] == "send":
        identity += 1000
    write(json.dumps({"id": identity, **body}))
    if WAY == "answers_twice" and request["op"] == "send":
        write(json.dumps({"id": identity, **body}))


def error(request, kind, message="toy"):
    answer(request, error={"kind": kind, "message": message})


def receive(consumer, request):
    deadline = time.monotonic() + request["timeout_ms"] / 1000
    log = topics[consumer["topic"]]
    if WAY == "early_empty":
        deadline = 0
    while True:
        if consumer["next"] < len(log):
            place, (payload, key, properties) = consumer["next"], log[consumer["next"]]
            consumer["next"] += 1
            identity = {"ledger": 0, "entry": place}
            if WAY == "minus_one":
                identity["batch_index"] = -1
            ref = consumer["refs"] + (1 if WAY == "refs_from_one" else 0)
            consumer["refs"] += 1
            message = {"ref": ref, "message_id": identity, "payload": payload, "redelivery_count": 0,
                       "properties": properties}
            if key is not None and WAY != "drops_key":
                message["key"] = key
            answer(request, ok={"message": message})
            return
        if time.monotonic() >= deadline:
            answer(request, ok={"message": None})
            return
        time.sleep(0.005)


KNOWN = {
    "hello": {"contract"}, "client": {"client", "url", "operation_timeout_ms"},
    "producer": {"client", "producer", "topic", "name", "send_timeout_ms"},
    "send": {"producer", "payload", "key", "properties"}, "flush": {"producer"},
    "consumer": {"client", "consumer", "topic", "subscription", "name", "type", "initial_position"},
    "receive": {"consumer", "timeout_ms"}, "ack": {"consumer", "ref"}, "ack_cumulative": {"consumer", "ref"},
    "nack": {"consumer", "ref"}, "seek": {"consumer", "ref", "position", "publish_time"},
    "unsubscribe": {"consumer"}, "close": {"client", "producer", "consumer"},
}
CAPABLE = {"batching", "chunking", "compression", "initial_sequence_id", "ack_timeout_ms", "dead_letter",
           "batch_index_ack", "expire_chunks_ms", "sequence_id"}


def handle(request):
    op = request.get("op")
    extra = set(request) - {"id", "op"} - KNOWN.get(op, set())
    if op not in KNOWN or extra - CAPABLE:
        if WAY != "lenient":
            return error(request, "malformed")
        if op not in KNOWN:
            return answer(request, ok={})
    if extra & CAPABLE:
        return error(request, "unsupported")
    if op == "hello":
        if WAY == "late_hello":
            time.sleep(30)
        capabilities = [*CAPABILITIES, "telepathy"] if WAY == "invented_capability" else CAPABILITIES
        return answer(request, ok={"name": "toy", "version": "1", "contract": 1, "capabilities": capabilities})
    if op in ("client", "producer", "consumer"):
        handles[request[op]] = {"kind": op, "next": 0, "refs": 0, **request}
        closed.discard(request[op])
        if "topic" in request:
            topics.setdefault(request["topic"], [])
        return answer(request, ok={"last_sequence_id": None} if op == "producer" else {})
    name = request.get("producer") or request.get("consumer") or request.get("client")
    if name in closed:
        return error(request, "already_closed")
    if name not in handles:
        return error(request, "no_such_handle")
    used = handles[name]
    if op == "send":
        if WAY == "never_answers":
            return None
        if WAY == "garbage":
            write("2026-01-01 INFO connected to the broker")
        if WAY == "dies":
            os._exit(3)
        log = topics[used["topic"]]
        log.append((request["payload"], request.get("key"), request.get("properties", {})))
        return answer(request, ok={"message_id": {"ledger": 0, "entry": len(log) - 1}})
    if op == "receive":
        if WAY == "blocks":
            return receive(used, request)
        threading.Thread(target=receive, args=(used, request), daemon=True).start()
        return None
    if op == "ack_cumulative" and used["type"] == "shared":
        return error(request, "invalid")
    if op in ("ack", "nack", "ack_cumulative"):
        return answer(request, ok={"confirmed": False})
    if op == "close":
        closed.add(handles.pop(name)[used["kind"]])
    return answer(request, ok={})


for line in sys.stdin:
    try:
        wanted = json.loads(line)
        identified = isinstance(wanted, dict) and isinstance(wanted.get("id"), int)
    except ValueError:
        identified = False
    if not identified:
        write(json.dumps({"id": None, "error": {"kind": "malformed", "message": "no request"}}))
        continue
    handle(wanted)
if WAY == "stays":
    time.sleep(60)
sys.exit(5 if WAY == "exits_5" else 0)
