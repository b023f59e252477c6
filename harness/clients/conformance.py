"""Does an adapter keep ``docs/adapter-contract.md``?

``python -m harness.clients.conformance --url pulsar://HOST:PORT -- COMMAND...``

Each check talks to a fresh process, so one fault shows in the checks about it and nowhere else. What is judged is the
adapter: the broker at ``url`` must be one that ordinary traffic works on. Most checks send first and subscribe then,
because pulsar-lite 0.2.0 delivers messages again and again that are published while it dispatches.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import secrets
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.console import Console
from rich.table import Table

from harness.clients.client import CAPABILITIES, CONTRACT_VERSION, FAIL_KINDS, MALFORMED, UNKNOWN_KINDS
from harness.processes import ChildProcess
from harness.setup_error import SetupError
from harness.wire.frame import FrameDecoder
from harness.wire.pulsar_pb2 import BaseCommand, CommandConnect

HELLO_S = 20.0
"""How long an adapter may take to come up: a JVM on a busy machine needs seconds."""

PATIENCE_S = 10.0
"""How long any other answer may take."""

MESSAGE_MS = 5000
"""How long a message that is in the topic may take to arrive."""

AT_ONCE = 4
"""How many checks run side by side: they mostly wait, but an adapter in a JVM takes 150 MB."""

EXIT_S = 10.0
"""How long the end of stdin may take to become exit status 0."""


class CheckFailed(Exception):
    """The adapter broke the contract; the message says what was expected and what came."""


class NotApplicable(Exception):
    """The adapter does not declare what this check is about."""


class Row(msgspec.Struct, frozen=True):
    """The outcome of one check."""

    check: str
    verdict: Literal["pass", "fail", "n/a"]
    detail: str
    seconds: float


class Talk:
    """One adapter process, spoken to in raw lines; remembers everything it wrote."""

    def __init__(self, child: ChildProcess, url: str) -> None:
        self.url = url
        self.topic = f"persistent://public/default/conformance-{secrets.token_hex(6)}"
        self.capabilities: frozenset[str] = frozenset()
        self.strays: list[str] = []
        self.repeats: list[int] = []
        self._child = child
        self._last_id = 0
        self._answers: dict[int | None, dict[str, Any]] = {}
        self._news = asyncio.Condition()
        self._ended = False
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while line := await self._child.stdout.readline():
            async with self._news:
                self._take(line)
                self._news.notify_all()
        async with self._news:
            self._ended = True
            self._news.notify_all()

    def _take(self, line: bytes) -> None:
        try:
            answer = msgspec.json.decode(line)
            identity = answer["id"]
            if not (isinstance(answer.get("ok"), dict) ^ isinstance(answer.get("error"), dict)):
                raise ValueError("neither ok nor error")
            if identity is not None and not (isinstance(identity, int) and 0 < identity <= self._last_id):
                raise ValueError("an id nobody asked with")
        except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, AttributeError, ValueError) as error:
            self.strays.append(f"{line.decode('utf-8', 'replace').strip()[:200]} ({error})")
            return
        if identity is not None and identity in self._answers:
            self.repeats.append(identity)
        self._answers[identity] = answer

    async def raw(self, line: bytes) -> None:
        """Write a line as it is."""
        try:
            self._child.stdin.write(line + b"\n")
            await self._child.stdin.drain()
        except ConnectionError as error:
            raise CheckFailed(f"it closed its stdin: {self._child.logs_tail(5)}") from error

    async def begin(self, op: str, **parameters: Any) -> int:
        """Write a request; its id."""
        self._last_id += 1
        identity = self._last_id
        await self.raw(msgspec.json.encode({"id": identity, "op": op, **parameters}))
        return identity

    async def end(self, identity: int | None, what: str, timeout: float | None = None) -> dict[str, Any]:
        """The answer with that id, within ``timeout`` seconds (``PATIENCE_S``)."""
        timeout = PATIENCE_S if timeout is None else timeout
        try:
            async with asyncio.timeout(timeout), self._news:
                await self._news.wait_for(lambda: identity in self._answers or self._ended)
        except TimeoutError as error:
            raise CheckFailed(f"no answer to {what} within {timeout:g} s") from error
        if identity not in self._answers:
            raise CheckFailed(f"it ended before it answered {what}: {self._child.logs_tail(5)}")
        return self._answers[identity]

    def logs(self) -> str:
        """What it wrote to stderr last."""
        return self._child.logs_tail(1000)

    def answered(self, identity: int) -> bool:
        return identity in self._answers

    async def ok(self, op: str, **parameters: Any) -> dict[str, Any]:
        """Ask, and insist on ``ok``."""
        return self.accepted(await self.end(await self.begin(op, **parameters), op), op)

    def accepted(self, answer: dict[str, Any], what: str) -> dict[str, Any]:
        if "ok" not in answer:
            raise CheckFailed(f"{what} was answered {answer['error']}")
        accepted: dict[str, Any] = answer["ok"]
        return accepted

    async def refused(self, *kinds: str, op: str, **parameters: Any) -> None:
        """Ask, and insist on an error of one of ``kinds``."""
        self.refusal(await self.end(await self.begin(op, **parameters), op), f"{op} {parameters}", *kinds)

    def refusal(self, answer: dict[str, Any], what: str, *kinds: str) -> None:
        error = answer.get("error")
        if error is None or error.get("kind") not in kinds or not isinstance(error.get("message"), str):
            raise CheckFailed(f"{what}: expected an error {' or '.join(kinds)}, got {answer.get('error', answer)}")

    async def hello(self) -> dict[str, Any]:
        answer = await self.end(await self.begin("hello", contract=CONTRACT_VERSION), "hello", HELLO_S)
        greeting = self.accepted(answer, "hello")
        declared = greeting.get("capabilities")
        self.capabilities = frozenset(declared) if isinstance(declared, list) else frozenset()
        return greeting

    async def connect(self) -> None:
        await self.hello()
        await self.ok("client", client="a", url=self.url, operation_timeout_ms=5000)

    async def producer(self, handle: str = "p", **options: Any) -> dict[str, Any]:
        parameters = {"client": "a", "producer": handle, "topic": self.topic, "name": f"name-{handle}", **options}
        return await self.ok("producer", **parameters)

    def consumer_parameters(self, handle: str, **options: Any) -> dict[str, Any]:
        return {
            "client": "a",
            "consumer": handle,
            "topic": self.topic,
            "subscription": "s",
            "name": f"name-{handle}",
            "type": "exclusive",
            "initial_position": "earliest",
            **options,
        }

    async def consumer(self, handle: str = "c", **options: Any) -> None:
        await self.ok("consumer", **self.consumer_parameters(handle, **options))

    async def send(self, payload: bytes = b"x", handle: str = "p", **options: Any) -> dict[str, Any]:
        return await self.ok("send", producer=handle, payload=base64.b64encode(payload).decode(), **options)

    async def receive(self, handle: str = "c") -> dict[str, Any]:
        answer = await self.ok("receive", consumer=handle, timeout_ms=MESSAGE_MS)
        message = answer.get("message")
        if not isinstance(message, dict):
            raise CheckFailed(f"no message within {MESSAGE_MS} ms, although one was sent: {answer}")
        return message

    def need(self, capability: str) -> None:
        if capability not in self.capabilities:
            raise NotApplicable(f"{capability} is not declared")

    async def finish(self) -> int | None:
        """End stdin; the exit status, or None when it goes on."""
        self._child.stdin.close()
        try:
            return await asyncio.wait_for(self._child.wait(), EXIT_S)
        except TimeoutError:
            return None

    async def release(self) -> None:
        await self._child.stop(grace=1.0)
        self._reader.cancel()


def _identity(value: Any, what: str) -> tuple[int, int]:
    """Ledger and entry of an ID; insists that nothing is negative and nothing else is in it."""
    known = {"ledger", "entry", "batch_index", "partition", "first_chunk"}
    if not isinstance(value, dict) or not {"ledger", "entry"} <= set(value) <= known:
        raise CheckFailed(f"{what} has the id {value}")
    numbers = [*(value[name] for name in value if name != "first_chunk"), *value.get("first_chunk", [])]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise CheckFailed(f"{what} has the id {value}: sentinels must be left out")
    return value["ledger"], value["entry"]


async def greets(talk: Talk) -> None:
    """hello names the client, its version, the contract and only capabilities the contract knows"""
    greeting = await talk.hello()
    if greeting.get("contract") != CONTRACT_VERSION:
        raise CheckFailed(f"contract is {greeting.get('contract')!r}")
    if not all(isinstance(greeting.get(name), str) and greeting[name] for name in ("name", "version")):
        raise CheckFailed(f"name and version must be texts: {greeting}")
    declared = greeting.get("capabilities")
    if not isinstance(declared, list) or not set(declared) <= CAPABILITIES:
        raise CheckFailed(f"unknown capabilities: {declared}")


async def refuses_malformed(talk: Talk) -> None:
    """what is no request is answered malformed, and the adapter goes on"""
    await talk.raw(b"this is no request")
    talk.refusal(await talk.end(None, "a line that is not JSON"), "a line that is not JSON", MALFORMED)
    await talk.refused(MALFORMED, op="somersault")
    await talk.refused(MALFORMED, op="client", client="a")
    await talk.refused(MALFORMED, op="client", client="a", url=talk.url, colour="red")
    await talk.refused(MALFORMED, op="client", client=7, url=talk.url)
    await talk.hello()


async def knows_its_handles(talk: Talk) -> None:
    """handles never created are answered no_such_handle, for each operation that takes one"""
    await talk.hello()
    for op, parameters in (
        ("send", {"producer": "nobody", "payload": ""}),
        ("flush", {"producer": "nobody"}),
        ("receive", {"consumer": "nobody", "timeout_ms": 10}),
        ("ack", {"consumer": "nobody", "ref": 0}),
        ("unsubscribe", {"consumer": "nobody"}),
        ("close", {"consumer": "nobody"}),
        ("close", {"client": "nobody"}),
    ):
        await talk.refused("no_such_handle", op=op, **parameters)


async def sends(talk: Talk) -> None:
    """producer tells last_sequence_id; send answers with the id, flush with nothing"""
    await talk.connect()
    created = await talk.producer()
    last = created.get("last_sequence_id", -1)
    if last is not None and not (type(last) is int and last >= 0):
        raise CheckFailed(f"producer answered {created}: last_sequence_id must be a number from 0 up, or null")
    answer = await talk.send()
    _identity(answer.get("message_id"), "the send")
    if answer.get("duplicate"):
        raise CheckFailed("a first send was called a duplicate")
    await talk.ok("flush", producer="p")


async def carries_everything(talk: Talk) -> None:
    """payload bytes, key, properties and id arrive as they were sent"""
    await talk.connect()
    await talk.producer()
    cases: list[tuple[bytes, dict[str, Any]]] = [
        (bytes(range(256)), {}),
        (b"k", {"key": 'key é " \\'}),
        (b"p", {"properties": {"a": "1", "ü": "line\nbreak"}}),
        (bytes(range(256)) * 200, {"key": "k", "properties": {"z": ""}}),
    ]
    places = [_identity((await talk.send(data, **options)).get("message_id"), "the send") for data, options in cases]
    await talk.consumer()
    for sent, (payload, options) in zip(places, cases, strict=True):
        message = await talk.receive()
        received = _identity(message.get("message_id"), "the received message")
        found = (received, message.get("payload"), message.get("key"), message.get("properties"))
        wanted = (sent, base64.b64encode(payload).decode(), options.get("key"), options.get("properties", {}))
        if found != wanted:
            raise CheckFailed(f"sent {str(wanted)[:200]}, received {str(found)[:200]}")
        if message.get("redelivery_count") != 0:
            raise CheckFailed(f"a first delivery has redelivery_count {message.get('redelivery_count')!r}")


async def keeps_order(talk: Talk) -> None:
    """sends written one after the other without waiting are sent in that order"""
    await talk.connect()
    await talk.producer()
    payloads = [f"message {number}".encode() for number in range(50)]
    begun = [await talk.begin("send", producer="p", payload=base64.b64encode(payload).decode()) for payload in payloads]
    places = [
        _identity(talk.accepted(await talk.end(identity, "send"), "send").get("message_id"), "a send")
        for identity in begun
    ]
    if sorted(set(places)) != places:
        raise CheckFailed(f"ids do not grow: {places}")
    await talk.consumer()
    received = [base64.b64decode((await talk.receive())["payload"]) for _ in payloads]
    if received != payloads:
        raise CheckFailed(f"received {received}")


async def numbers_deliveries(talk: Talk) -> None:
    """ref counts the deliveries of each consumer from 0"""
    await talk.connect()
    await talk.producer()
    for _ in range(3):
        await talk.send()
    await talk.consumer("c")
    await talk.consumer("d", subscription="t")
    for handle in ("c", "d"):
        refs = [(await talk.receive(handle)).get("ref") for _ in range(3)]
        if refs != [0, 1, 2]:
            raise CheckFailed(f"three deliveries of one consumer are numbered {refs}")


async def waits_for_messages(talk: Talk) -> None:
    """receive answers null, not an error, after its timeout and not before"""
    await talk.connect()
    await talk.consumer()
    started = time.monotonic()
    answer = await talk.ok("receive", consumer="c", timeout_ms=400)
    elapsed = time.monotonic() - started
    if answer != {"message": None}:
        raise CheckFailed(f"an empty topic gave {answer}")
    if not 0.39 <= elapsed <= 2.0:
        raise CheckFailed(f"a wait of 0.4 s took {elapsed:.2f} s")
    await talk.ok("receive", consumer="c", timeout_ms=0)


async def overlaps(talk: Talk) -> None:
    """a waiting receive holds up nothing else, and then gets the message"""
    await talk.connect()
    await talk.consumer("c")
    await talk.consumer("d", subscription="t")
    await talk.producer()
    waiting = [await talk.begin("receive", consumer=handle, timeout_ms=5000) for handle in ("c", "d")]
    await talk.ok("flush", producer="p")
    await talk.producer("q")
    if any(talk.answered(identity) for identity in waiting):
        raise CheckFailed("receive was answered although nothing had been sent")
    await talk.send(b"wanted")
    for identity in waiting:
        answer = talk.accepted(await talk.end(identity, "receive"), "receive")
        if not isinstance(answer.get("message"), dict):
            raise CheckFailed(f"the waiting receive got {answer}")


async def acknowledges(talk: Talk) -> None:
    """an acknowledged message does not come again to the subscription; the others do"""
    await talk.connect()
    await talk.producer()
    for number in range(3):
        await talk.send(b"%d" % number)
    await talk.consumer()
    for _ in range(3):
        await talk.receive()
    for ref in (0, 1):
        answer = await talk.ok("ack", consumer="c", ref=ref)
        if type(answer.get("confirmed")) is not bool:
            raise CheckFailed(f"ack answered {answer}")
        if answer["confirmed"] and "ack_receipt" not in talk.capabilities:
            raise CheckFailed("confirmed although ack_receipt is not declared")
    await talk.ok("close", consumer="c")
    await talk.consumer("again")
    message = await talk.receive("again")
    if base64.b64decode(message["payload"]) != b"2":
        raise CheckFailed(f"after two acknowledgements the first delivery is {message}")
    await talk.refused(MALFORMED, op="ack", consumer="again", ref=17)


async def acknowledges_cumulatively(talk: Talk) -> None:
    """ack_cumulative covers the earlier deliveries"""
    await talk.connect()
    talk.need("cumulative_ack")
    await talk.producer()
    for number in range(3):
        await talk.send(b"%d" % number)
    await talk.consumer()
    for _ in range(3):
        await talk.receive()
    await talk.ok("ack_cumulative", consumer="c", ref=1)
    await talk.ok("close", consumer="c")
    await talk.consumer("again")
    message = await talk.receive("again")
    if base64.b64decode(message["payload"]) != b"2":
        raise CheckFailed(f"after a cumulative acknowledgement the first delivery is {message}")


async def gives_back(talk: Talk) -> None:
    """a negatively acknowledged message comes again, as a new delivery"""
    await talk.connect()
    talk.need("nack")
    talk.need("shared")
    await talk.producer()
    await talk.send(b"again")
    await talk.consumer(type="shared", nack_delay_ms=200)
    await talk.receive()
    answer = await talk.ok("nack", consumer="c", ref=0)
    if type(answer.get("confirmed")) is not bool:
        raise CheckFailed(f"nack answered {answer}")
    message = await talk.receive()
    if message.get("ref") != 1 or base64.b64decode(message["payload"]) != b"again":
        raise CheckFailed(f"after a negative acknowledgement came {message}")


PRODUCER_OPTIONS: dict[str, dict[str, Any]] = {
    "batching": {"batching": {"max_messages": 5, "max_bytes": 10_000, "max_delay_ms": 5}},
    "chunking": {"chunking": True},
    "compression_lz4": {"compression": "lz4"},
    "compression_zlib": {"compression": "zlib"},
    "compression_zstd": {"compression": "zstd"},
    "compression_snappy": {"compression": "snappy"},
    "initial_sequence_id": {"initial_sequence_id": 10},
}
CONSUMER_OPTIONS: dict[str, dict[str, Any]] = {
    "shared": {"type": "shared"},
    "failover": {"type": "failover"},
    "key_shared": {"type": "key_shared"},
    "ack_timeout": {"ack_timeout_ms": 20_000},
    "batch_index_ack": {"batch_index_ack": True},
    "chunk_expiry": {"expire_chunks_ms": 60_000},
}


async def honours_capabilities(talk: Talk) -> None:
    """every declared option is accepted and a message passes; every other one is answered unsupported"""
    await talk.connect()
    await talk.producer()
    await talk.send()
    for capability, options in PRODUCER_OPTIONS.items():
        handle = f"p-{capability}"
        if capability not in talk.capabilities:
            parameters = {"client": "a", "producer": handle, "topic": talk.topic, "name": handle, **options}
            await talk.refused("unsupported", op="producer", **parameters)
            continue
        await talk.producer(handle, **options)
        _identity((await talk.send(b"y" * 1000, handle)).get("message_id"), f"a send with {capability}")
    if "explicit_sequence_id" in talk.capabilities:
        await talk.send(sequence_id=7)
    else:
        await talk.refused("unsupported", op="send", producer="p", payload="", sequence_id=7)
    options_of = dict(CONSUMER_OPTIONS)
    options_of["dead_letter"] = {"type": "shared", "dead_letter": {"max_redeliver": 2, "topic": f"{talk.topic}-dead"}}
    for capability, options in options_of.items():
        handle = f"c-{capability}"
        if capability not in talk.capabilities:
            parameters = talk.consumer_parameters(handle, subscription=handle, **options)
            await talk.refused("unsupported", op="consumer", **parameters)
            continue
        await talk.consumer(handle, subscription=handle, **options)
        await talk.receive(handle)


async def seeks(talk: Talk) -> None:
    """seek to the earliest position replays the topic"""
    await talk.connect()
    talk.need("seek_message")
    await talk.producer()
    await talk.send(b"first")
    await talk.send(b"second")
    await talk.consumer()
    await talk.receive()
    await talk.receive()
    await talk.refused(MALFORMED, op="seek", consumer="c")
    await talk.refused(MALFORMED, op="seek", consumer="c", position="earliest", publish_time=1)
    answer = await talk.end(await talk.begin("seek", consumer="c", position="earliest"), "seek")
    if answer.get("error", {}).get("kind") in UNKNOWN_KINDS:
        # pulsar-lite 0.2.0 ends the connection on SEEK: the adapter told the truth about it.
        raise NotApplicable(f"this broker does not seek: {answer['error']}")
    talk.accepted(answer, "seek")
    message = (await talk.ok("receive", consumer="c", timeout_ms=2000)).get("message")
    if message is None:
        # The answer was right; whether the request was, only a broker that replays can show.
        raise NotApplicable("seek was answered, but this broker replayed nothing")
    if base64.b64decode(message["payload"]) != b"first":
        raise CheckFailed(f"after seek to earliest came {message}")


async def closes(talk: Talk) -> None:
    """closed handles are answered already_closed and may be created again; unsubscribe and closing a client work"""
    await talk.connect()
    await talk.consumer()
    await talk.producer()
    await talk.ok("close", producer="p")
    await talk.refused("already_closed", op="send", producer="p", payload="")
    await talk.producer()
    await talk.send()
    await talk.receive()
    await talk.ok("unsubscribe", consumer="c")
    await talk.ok("close", client="a")
    await talk.refused("already_closed", op="send", producer="p", payload="")
    await talk.refused(MALFORMED, op="close")


async def reports_unreachable(talk: Talk) -> None:
    """a broker that is not there is an error of the contract, in good time, and holds up nothing else"""
    await talk.hello()
    await talk.ok("client", client="a", url="pulsar://127.0.0.1:1", operation_timeout_ms=1500)
    parameters = {"client": "a", "producer": "p", "topic": talk.topic, "name": "n"}
    begun = await talk.begin("producer", **parameters)
    await talk.refused("no_such_handle", op="flush", producer="nobody")
    talk.refusal(await talk.end(begun, "producer", 15.0), "an unreachable broker", *(UNKNOWN_KINDS | FAIL_KINDS))


async def says_who_it_is(talk: Talk) -> None:
    """auth reaches the broker in CONNECT, and is neither logged nor repeated"""
    secret = secrets.token_hex(16)
    told: asyncio.Future[CommandConnect] = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        while not told.done() and (data := await reader.read(4096)):
            for frame in decoder.feed(data):
                if frame.command.type == BaseCommand.CONNECT and not told.done():
                    told.set_result(frame.command.connect)
        writer.close()

    await talk.hello()
    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        auth = {"method": "token", "data": secret}
        begun = await talk.begin("client", client="a", url=url, operation_timeout_ms=1500, auth=auth)
        answer = await talk.end(begun, "client")
        if answer.get("error", {}).get("kind") == "unsupported":
            raise NotApplicable("auth")
        talk.accepted(answer, "client with auth")
        producing = await talk.begin("producer", client="a", producer="p", topic=talk.topic, name="n")
        try:
            connect = await asyncio.wait_for(told, PATIENCE_S)
        except TimeoutError as error:
            raise CheckFailed("no CONNECT came to the url of a client with auth") from error
    finally:
        server.close()
    if (connect.auth_method_name, connect.auth_data) != ("token", secret.encode()):
        raise CheckFailed(f"CONNECT said {connect.auth_method_name!r} and not the token that was given")
    answer = await talk.end(producing, "producer", 15.0)
    if secret in f"{answer}{talk.logs()}":
        raise CheckFailed("it repeats the token, in an answer or in its log")


async def ends(talk: Talk) -> None:
    """the end of stdin closes everything and exits with 0, whatever is in flight"""
    await talk.connect()
    await talk.consumer()
    await talk.producer()
    await talk.send()
    await talk.receive()
    await talk.begin("receive", consumer="c", timeout_ms=60_000)
    status = await talk.finish()
    if status != 0:
        raise CheckFailed("it goes on after the end of stdin" if status is None else f"exit status {status}")


CHECKS: tuple[Callable[[Talk], Awaitable[None]], ...] = (
    greets,
    refuses_malformed,
    knows_its_handles,
    sends,
    carries_everything,
    keeps_order,
    numbers_deliveries,
    waits_for_messages,
    overlaps,
    acknowledges,
    acknowledges_cumulatively,
    gives_back,
    honours_capabilities,
    seeks,
    closes,
    reports_unreachable,
    says_who_it_is,
    ends,
)


async def examine(command: Sequence[str], url: str, select: frozenset[str] | None = None) -> list[Row]:
    """Run the checks called ``select`` (all by default) against the adapter behind ``command``.

    Two more rows tell what was seen in all of them: ``keeps_stdout_clean`` and ``answers_once``.
    Raises ``SetupError`` when the command cannot be executed.
    """
    room = asyncio.Semaphore(AT_ONCE)
    with tempfile.TemporaryDirectory(prefix="starquake-") as folder:

        async def judged(name: str, check: Callable[[Talk], Awaitable[None]]) -> tuple[Row, Talk]:
            async with room:
                child = await ChildProcess.spawn_piped(command, name="adapter", log=Path(folder) / f"{name}.log")
                talk = Talk(child, url)
                return await _judge(name, check, talk), talk

        named = [(str(getattr(check, "__name__", "")), check) for check in CHECKS]
        chosen = [judged(name, check) for name, check in named if select is None or name in select]
        outcomes = await asyncio.gather(*chosen)
    strays = [stray for _, talk in outcomes for stray in talk.strays]
    repeats = [f"request {identity} of {row.check}" for row, talk in outcomes for identity in talk.repeats]
    rows = [row for row, _ in outcomes]
    rows.append(Row("keeps_stdout_clean", "fail" if strays else "pass", "; ".join(strays[:3]), 0.0))
    rows.append(Row("answers_once", "fail" if repeats else "pass", "; ".join(repeats[:3]), 0.0))
    return rows


async def _judge(name: str, check: Callable[[Talk], Awaitable[None]], talk: Talk) -> Row:
    started = time.monotonic()
    verdict: Literal["pass", "fail", "n/a"] = "pass"
    detail = ""
    try:
        await check(talk)
    except CheckFailed as failure:
        verdict, detail = "fail", str(failure)
    except NotApplicable as reason:
        verdict, detail = "n/a", str(reason)
    finally:
        await talk.release()
    return Row(name, verdict, detail, time.monotonic() - started)


def passed(rows: Sequence[Row]) -> bool:
    """Whether an adapter with these rows may be used."""
    return all(row.verdict != "fail" for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 the contract is kept, 1 it is broken, 2 the adapter cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m harness.clients.conformance", description=__doc__)
    parser.add_argument("--url", required=True, help="service URL of a working broker, pulsar://HOST:PORT")
    parser.add_argument("--check", action="append", help="only the check of this name (may be given again)")
    parser.add_argument("command", nargs="+", help="the adapter: program and arguments, after --")
    options = parser.parse_args(arguments)
    select = None if options.check is None else frozenset(options.check)
    console = Console()
    try:
        rows = asyncio.run(examine(options.command, options.url, select))
    except SetupError as error:
        console.print(str(error), markup=False)
        return 2
    table = Table("check", "verdict", "s", "what was found")
    for row in rows:
        table.add_row(row.check, row.verdict, f"{row.seconds:.2f}", row.detail.replace("[", "\\["))
    console.print(table)
    return 0 if passed(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
