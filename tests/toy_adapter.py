"""Adapters that are wrong in one way each: ``python tests/toy_adapter.py WAY``. No client behind them.

Run plainly (``none``) it keeps a list of payloads per topic in its own memory, so that everything else about the
contract can be answered without a broker.
"""

import json
import os
import signal
import sys
import threading
import time

WAY = sys.argv[1]
CAPABILITIES = ["shared", "nack"]

lock = threading.Lock()
state = threading.Lock()
clients = {}
topics = {}
subscriptions = {}
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


def take(consumer):
    """The next message for a consumer of a subscription, or None."""
    subscription = subscriptions[consumer["topic"], consumer["subscription"]]
    again = [place for place, due in subscription["again"].items() if due <= time.monotonic()]
    if again:
        del subscription["again"][again[0]]
        return again[0]
    if subscription["next"] < len(topics[consumer["topic"]]):
        subscription["next"] += 1
        return subscription["next"] - 1
    return None


def receive(consumer, request):
    deadline = time.monotonic() + (0 if WAY == "early_empty" else request["timeout_ms"] / 1000)
    while True:
        with state:
            place = take(consumer)
        if place is not None:
            payload, key, properties = topics[consumer["topic"]][place]
            identity = {"ledger": 0, "entry": place}
            if WAY == "minus_one":
                identity["batch_index"] = -1
            ref = len(consumer["taken"]) + (1 if WAY == "refs_from_one" else 0)
            consumer["taken"].append(place)
            message = {
                "ref": ref,
                "message_id": identity,
                "payload": payload,
                "redelivery_count": 0,
                "properties": properties,
            }
            if key is not None and WAY != "drops_key":
                message["key"] = key
            answer(request, ok={"message": message})
            return
        if time.monotonic() >= deadline:
            answer(request, ok={"message": None})
            return
        time.sleep(0.005)


def settle(consumer, request):
    if not 0 <= request["ref"] < len(consumer["taken"]):
        return error(request, "malformed", "no such delivery")
    place = consumer["taken"][request["ref"]]
    subscription = subscriptions[consumer["topic"], consumer["subscription"]]
    with state:
        if request["op"] == "nack" and WAY != "forgets_nack":
            subscription["again"][place] = time.monotonic() + consumer.get("nack_delay_ms", 100) / 1000
        if request["op"] == "ack" and WAY != "forgets_ack":
            subscription["acked"].add(place)
    return answer(request, ok={"confirmed": WAY == "confirms_falsely"})


def create(request):
    op = request["op"]
    made = {"kind": op, "taken": [], **request}
    if op != "client" and clients.get(request["client"]) == "pulsar://127.0.0.1:1":
        return error(request, "disconnected")
    if op == "client":
        clients[request["client"]] = request["url"]
    if "topic" in request:
        topics.setdefault(request["topic"], [])
    if op == "consumer":
        if request["type"] not in ("exclusive", "shared"):
            return error(request, "unsupported")
        fresh = {"next": 0, "again": {}, "acked": set()}
        subscription = subscriptions.setdefault((request["topic"], request["subscription"]), fresh)
        with state:
            subscription["again"] = {
                place: 0 for place in range(subscription["next"]) if place not in subscription["acked"]
            }
    handles[request[op]] = made
    closed.discard(request[op])
    return answer(request, ok={"last_sequence_id": None} if op == "producer" else {})


KNOWN = {
    "hello": {"contract"},
    "client": {"client", "url", "operation_timeout_ms"},
    "producer": {"client", "producer", "topic", "name", "send_timeout_ms"},
    "send": {"producer", "payload", "key", "properties"},
    "flush": {"producer"},
    "consumer": {"client", "consumer", "topic", "subscription", "name", "type", "initial_position", "nack_delay_ms"},
    "receive": {"consumer", "timeout_ms"},
    "ack": {"consumer", "ref"},
    "ack_cumulative": {"consumer", "ref"},
    "nack": {"consumer", "ref"},
    "seek": {"consumer", "ref", "position", "publish_time"},
    "unsubscribe": {"consumer"},
    "close": {"client", "producer", "consumer"},
}
CAPABLE = {
    "auth",
    "batching",
    "chunking",
    "compression",
    "initial_sequence_id",
    "ack_timeout_ms",
    "dead_letter",
    "batch_index_ack",
    "expire_chunks_ms",
    "sequence_id",
}


def ill_formed(request):
    targets = set(request) & {"client", "producer", "consumer"}
    return (
        not all(isinstance(request[name], str) for name in targets)
        or (request["op"] == "client" and "url" not in request)
        or (request["op"] == "close" and len(targets) != 1)
    )


def handle(request):
    op = request.get("op")
    extra = set(request) - {"id", "op"} - KNOWN.get(op, set())
    if op not in KNOWN or extra - CAPABLE or ill_formed(request):
        if WAY != "lenient":
            return error(request, "malformed")
        if op not in KNOWN:
            return answer(request, ok={})
    if extra & CAPABLE and WAY != "ignores_options":
        return error(request, "unsupported")
    if op == "hello":
        if WAY == "late_hello":
            time.sleep(30)
        capabilities = [*CAPABILITIES, "telepathy"] if WAY == "invented_capability" else CAPABILITIES
        return answer(request, ok={"name": "toy", "version": "1", "contract": 1, "capabilities": capabilities})
    if op in ("client", "producer", "consumer"):
        return create(request)
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
        if WAY == "segfaults":
            sys.stderr.write("the core lost a pointer\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGSEGV)
        log = topics[used["topic"]]
        if WAY == "reorders" and len(log) % 2:
            log.insert(len(log) - 1, (request["payload"], request.get("key"), request.get("properties", {})))
            return answer(request, ok={"message_id": {"ledger": 0, "entry": len(log) - 2}})
        log.append((request["payload"], request.get("key"), request.get("properties", {})))
        return answer(request, ok={"message_id": {"ledger": 0, "entry": len(log) - 1}})
    if op == "receive":
        if WAY == "blocks":
            return receive(used, request)
        threading.Thread(target=receive, args=(used, request), daemon=True).start()
        return None
    if op in ("ack_cumulative", "seek"):
        return error(request, "unsupported")
    if op in ("ack", "nack"):
        return settle(used, request)
    if op == "close":
        for gone in [other for other, made in handles.items() if name in (other, made.get("client"))]:
            closed.add(gone)
            del handles[gone]
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
