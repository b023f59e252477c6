"""Turns the operations of a plan into adapter requests and API events; the same code in both worlds.

Sans-I/O: a script is a generator that yields what it needs (:class:`Ask`, :class:`Rest`) and is sent the answer, so
that the simulated world can pump machines under virtual time where the real one awaits a child process.
"""

from __future__ import annotations

import base64
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from harness.clients.client import FAIL_KINDS
from harness.history.event import Event
from harness.history.recorder import Recorder
from harness.worlds.attachments import Attachments
from harness.worlds.payload import digest, payload
from harness.worlds.plan import Operation

DEFAULT_TIMEOUT_MS = 10_000
SEND_TIMEOUT_MS = 3_000
OPERATION_TIMEOUT_MS = 5_000
DRAIN_LIMIT_MESSAGES = 20_000

NACK_SLACK_MS = 400
"""Clients look at their negative acks a few times a second only, and a dead letter needs a producer made for it."""

FAILOVER_SILENCE_MS = 1_500
"""A broker lets a new active consumer wait (a second by default) so that acks of the former one can land."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request of the adapter contract (without ``id``) and how long the driver waits for its answer."""

    message: dict[str, Any]
    timeout_ms: int = DEFAULT_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class Rest:
    """Let this much of the world's time pass."""

    ms: int


@dataclass(frozen=True, slots=True)
class Answer:
    """``ok`` of an answer, or the error ``kind`` and ``message``. A driver timeout is ``kind="timeout"``."""

    ok: dict[str, Any] | None
    kind: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """Have the broker tell its own view of the session's topics; answered with an error where it cannot."""


Script = Generator[Ask | Rest | Look, Answer, None]


@dataclass(slots=True)
class ProducerHandle:
    client: str
    topic: str
    name: str
    remote: str
    send_timeout_ms: int
    open: bool = True


@dataclass(slots=True)
class ConsumerHandle:
    client: str
    topic: str
    subscription: str
    name: str
    remote: str
    type: str
    options: dict[str, Any]
    received: list[dict[str, Any]] = field(default_factory=list)
    pending_nacks: int = 0
    open: bool = True


DEFAULT_NAMESPACE = "public/default"


def topic_name(run: str, topic: int | str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """The complete name of a plan's topic: an index becomes a topic of this run's own."""
    if isinstance(topic, str) and "://" in topic:
        return topic
    return f"persistent://{namespace}/{run}-{topic}"


def dead_letter_topic(topic: str, subscription: str) -> str:
    """The default dead-letter topic of a subscription, as the clients name it (DLQ-01)."""
    return f"{topic}-{subscription}-DLQ"


class Driver:
    """Carries out operations for one session and records their API events.

    ``urls`` maps a plan's client handle to the service URL its client must dial. ``run`` prefixes everything that
    must be unique at the broker; ``remote`` handles are unique in the adapter process. ``attachments`` must observe the
    same recorder. ``namespace`` holds the topics that a plan names by an index. ``partitions``: those topic 0 has.
    ``auth`` is the adapter contract's, for every client; it is recorded nowhere.
    """

    def __init__(
        self,
        recorder: Recorder,
        run: str,
        urls: dict[str, str],
        attachments: Attachments,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        partitions: int = 0,
        auth: dict[str, str] | None = None,
    ) -> None:
        self._recorder = recorder
        self._attachments = attachments
        self._undrained = False
        self._run = run
        self._namespace = namespace
        self._partitions = partitions
        self._auth = auth
        self._urls = urls
        self._operation = 0
        self._position = 0
        self._clients: dict[str, str] = {}
        self._incarnations: dict[str, int] = {}
        self.producers: dict[str, ProducerHandle] = {}
        self.consumers: dict[str, ConsumerHandle] = {}
        self.topics: list[str] = []

    # --- what the world asks -------------------------------------------------------------------------------------

    def script(self, operation: Operation) -> Script:
        """The script of one operation. Its position in the plan is taken when this is called."""
        position = self._position
        self._position += 1
        body = {
            "producer": self._producer,
            "send": self._send,
            "flush": self._flush,
            "consumer": self._consumer,
            "receive": self._receive_operation,
            "consume": self._consume,
            "ack": self._acknowledge,
            "ack_cumulative": self._acknowledge,
            "nack": self._acknowledge,
            "seek": self._seek,
            "unsubscribe": self._unsubscribe,
            "close": self._close,
            "settle": self._settle,
            "observe": self._observe,
        }[operation.verb]
        return body(operation, position)

    def topic(self, topic: int | str) -> str:
        """The complete name of one of the plan's topics."""
        return topic_name(self._run, topic, self._namespace)

    def grown(self, partitions: int) -> None:
        """Topic 0 has so many partitions from now on; the new ones are told by :meth:`new_partitions`."""
        self._partitions = partitions

    def new_partitions(self) -> list[str]:
        """Partitions of topic 0 that nothing has used so far."""
        fresh = [name for name in self._stored_in(self.topic(0)) if name not in self.topics]
        self.topics.extend(fresh)
        return fresh

    def _stored_in(self, topic: str) -> list[str]:
        """The topics that hold the messages of a topic: its partitions, or itself."""
        if not self._partitions or topic != self.topic(0):
            return [topic]
        return [f"{topic}-partition-{number}" for number in range(self._partitions)]

    def upcoming_topics(self, operation: Operation) -> list[str]:
        """Topics this operation will use for the first time; the auditor subscribes to them before anything is sent."""
        if operation.verb not in ("producer", "consumer"):
            return []
        topic = self.topic(operation.params.get("topic", 0))
        names = self._stored_in(topic)
        policy = operation.params.get("dead_letter")
        if operation.verb == "consumer" and policy:
            subscription = operation.params.get("subscription", "s")
            names.append(self._dead_letter(topic, subscription, policy)["topic"])
        fresh = [name for name in names if name not in self.topics]
        self.topics.extend(fresh)
        return fresh

    def drain(self, handle: str, idle_ms: int, limit_ms: int) -> Script:
        """Receive without acknowledging until ``idle_ms`` of silence while subscribed; see :attr:`drained`.

        Silence of a consumer that has lost its subscription says nothing, nor while a dead letter is under way: it is
        waited for up to ``limit_ms``.
        """
        consumer = self.consumers[handle]
        waited = 0
        for _ in range(DRAIN_LIMIT_MESSAGES):
            before = self._attachments.attachment(consumer.name)
            message = yield from self._receive(handle, consumer, idle_ms)
            if message is not None:
                continue
            # For the whole of the silence: one that came back in the middle of it may not have been sent anything yet
            # (Pulsar 4.0.7 lets a failover consumer wait for a second).
            attached = before is not None and before == self._attachments.attachment(consumer.name)
            # pulsar-client 3.13.0 dies (SIGSEGV) when a consumer is closed while its dead letter is being sent.
            if attached and not self._dead_letter_under_way(consumer):
                return
            waited += idle_ms
            if waited > limit_ms:
                if attached:
                    return
                break
        self._undrained = True

    def _dead_letter_under_way(self, consumer: ConsumerHandle) -> bool:
        policy = consumer.options.get("dead_letter") or {}
        return "max_redeliver" in policy and self._attachments.exhausted(consumer.name, int(policy["max_redeliver"]))

    @property
    def drained(self) -> bool:
        """False when a consumer never fell silent, or was not subscribed when it did."""
        return not self._undrained

    def idle_ms(self, handle: str) -> int:
        """How long a consumer must be silent to count as drained: longer when redeliveries are still to come."""
        consumer = self.consumers[handle]
        idle = 250
        if consumer.type == "failover":
            idle = FAILOVER_SILENCE_MS
        if consumer.pending_nacks:
            idle = max(idle, int(consumer.options.get("nack_delay_ms", 60_000)) * 2 + NACK_SLACK_MS)
        return max(idle, int(consumer.options.get("ack_timeout_ms") or 0) * 2)

    def close_everything(self) -> Script:
        """Close consumers, producers and clients, in that order (a consumer's close flushes its acks)."""
        for handle, consumer in self.consumers.items():
            if consumer.open:
                yield from self._close(Operation(verb="close", handle=handle), -1)
        for handle, producer in self.producers.items():
            if producer.open:
                yield from self._close(Operation(verb="close", handle=handle), -1)
        for remote in self._clients.values():
            yield Ask({"op": "close", "client": remote}, OPERATION_TIMEOUT_MS)

    # --- recording -----------------------------------------------------------------------------------------------

    def _invoke(self, kind: str, **columns: Any) -> int:
        self._operation += 1
        self._recorder.record(layer="api", kind=kind, phase="invoke", op=self._operation, **columns)
        return self._operation

    def _complete(self, kind: str, op: int, answer: Answer, **columns: Any) -> Event:
        if answer.ok is not None:
            return self._recorder.record(layer="api", kind=kind, phase="ok", op=op, **columns)
        phase = "fail" if answer.kind in FAIL_KINDS else "unknown"
        extra = {**columns.pop("extra", {}), "message": answer.message}
        return self._recorder.record(
            layer="api", kind=kind, phase=phase, op=op, error=answer.kind, extra=extra, **columns
        )

    def _skip(self, operation: Operation, why: str) -> None:
        self._recorder.record(
            layer="api",
            kind="skipped",
            phase="event",
            actor=operation.handle or None,
            extra={"verb": operation.verb, "params": operation.params, "why": why},
        )

    # --- the verbs -----------------------------------------------------------------------------------------------

    def _client(self, handle: str) -> Generator[Ask | Rest | Look, Answer, str]:
        if handle not in self._clients:
            remote = f"{self._run}/{handle}"
            self._clients[handle] = remote
            yield Ask(
                {
                    "op": "client",
                    "client": remote,
                    "url": self._urls[handle],
                    "operation_timeout_ms": OPERATION_TIMEOUT_MS,
                    **({} if self._auth is None else {"auth": self._auth}),
                }
            )
        return self._clients[handle]

    def _incarnation(self, handle: str) -> int:
        self._incarnations[handle] = self._incarnations.get(handle, 0) + 1
        return self._incarnations[handle]

    def _producer(self, operation: Operation, position: int) -> Script:
        remote_client = yield from self._client(operation.client)
        params = dict(operation.params)
        topic = self.topic(params.pop("topic", 0))
        name = f"{self._run}-{params.pop('name', operation.handle)}"
        remote = f"{self._run}/{operation.handle}.{self._incarnation(operation.handle)}"
        params.setdefault("send_timeout_ms", SEND_TIMEOUT_MS)
        columns = {"actor": operation.handle, "topic": topic, "producer": name}
        op = self._invoke("producer", extra={"options": params, "client": operation.client}, **columns)
        answer = yield Ask(
            {
                "op": "producer",
                "client": remote_client,
                "producer": remote,
                "topic": topic,
                "name": name,
                **params,
            }
        )
        extra: dict[str, Any] = {}
        if answer.ok is not None:
            self.producers[operation.handle] = ProducerHandle(
                operation.client, topic, name, remote, int(params["send_timeout_ms"])
            )
            extra["last_sequence_id"] = answer.ok.get("last_sequence_id")
        self._complete("producer", op, answer, extra=extra, **columns)

    def _send(self, operation: Operation, position: int) -> Script:
        producer = self.producers.get(operation.handle)
        if producer is None:
            self._skip(operation, "no such producer")
            return
        params = dict(operation.params)
        data = payload(
            position,
            str(params.pop("tag", "")),
            int(params.pop("size", 0)),
            compressible=params.pop("compressible", False),
        )
        columns: dict[str, Any] = {
            "actor": operation.handle,
            "topic": producer.topic,
            "producer": producer.name,
            "payload_digest": digest(data),
            "payload_size": len(data),
            "sequence_id": params.get("sequence_id"),
        }
        described: dict[str, Any] = {
            name: params[name] for name in ("key", "properties", "deliver_after_ms") if name in params
        }
        op = self._invoke("send", extra=described, **columns)
        message = {"op": "send", "producer": producer.remote, "payload": base64.b64encode(data).decode(), **params}
        # The client's own patience ends first: a broker that is started again may take longer than ours.
        answer = yield Ask(message, max(DEFAULT_TIMEOUT_MS, producer.send_timeout_ms + OPERATION_TIMEOUT_MS))
        extra: dict[str, Any] = dict(described)
        if answer.ok is not None:
            columns |= _id_columns(answer.ok.get("message_id") or {})
            extra |= _id_extra(answer.ok.get("message_id") or {})
            if answer.ok.get("duplicate"):
                extra["duplicate"] = True
        self._complete("send", op, answer, extra=extra, **columns)

    def _flush(self, operation: Operation, position: int) -> Script:
        producer = self.producers.get(operation.handle)
        if producer is None:
            self._skip(operation, "no such producer")
            return
        columns = {"actor": operation.handle, "topic": producer.topic, "producer": producer.name}
        op = self._invoke("flush", **columns)
        patience = max(DEFAULT_TIMEOUT_MS, producer.send_timeout_ms + OPERATION_TIMEOUT_MS)
        answer = yield Ask({"op": "flush", "producer": producer.remote}, patience)
        self._complete("flush", op, answer, **columns)

    def _dead_letter(self, topic: str, subscription: str, policy: dict[str, Any]) -> dict[str, Any]:
        return {**policy, "topic": policy.get("topic") or dead_letter_topic(topic, subscription)}

    def _consumer(self, operation: Operation, position: int) -> Script:
        remote_client = yield from self._client(operation.client)
        params = dict(operation.params)
        topic = self.topic(params.pop("topic", 0))
        subscription = str(params.pop("subscription", "s"))
        kind = str(params.pop("type", "exclusive"))
        params.setdefault("initial_position", "earliest")
        if params.get("dead_letter"):
            params["dead_letter"] = self._dead_letter(topic, subscription, params["dead_letter"])
        incarnation = self._incarnation(operation.handle)
        name = f"{self._run}-{operation.handle}.{incarnation}"
        remote = f"{self._run}/{operation.handle}.{incarnation}"
        columns = {"actor": operation.handle, "topic": topic, "subscription": subscription, "consumer": name}
        op = self._invoke("consumer", extra={"type": kind, "options": params, "client": operation.client}, **columns)
        answer = yield Ask(
            {
                "op": "consumer",
                "client": remote_client,
                "consumer": remote,
                "topic": topic,
                "subscription": subscription,
                "name": name,
                "type": kind,
                **params,
            }
        )
        if answer.ok is not None:
            self.consumers[operation.handle] = ConsumerHandle(
                operation.client, topic, subscription, name, remote, kind, params
            )
        self._complete("consumer", op, answer, extra={"type": kind}, **columns)

    def _consumer_of(self, operation: Operation) -> ConsumerHandle | None:
        consumer = self.consumers.get(operation.handle)
        if consumer is None:
            self._skip(operation, "no such consumer")
        return consumer

    def _receive_operation(self, operation: Operation, position: int) -> Script:
        consumer = self._consumer_of(operation)
        if consumer is not None:
            yield from self._receive(operation.handle, consumer, int(operation.params.get("timeout_ms", 1_000)))

    def _receive(
        self, handle: str, consumer: ConsumerHandle, timeout_ms: int
    ) -> Generator[Ask | Rest | Look, Answer, dict[str, Any] | None]:
        columns: dict[str, Any] = {
            "actor": handle,
            "topic": consumer.topic,
            "subscription": consumer.subscription,
            "consumer": consumer.name,
        }
        op = self._invoke("receive", extra={"timeout_ms": timeout_ms}, **columns)
        answer = yield Ask(
            {"op": "receive", "consumer": consumer.remote, "timeout_ms": timeout_ms}, timeout_ms + OPERATION_TIMEOUT_MS
        )
        message: dict[str, Any] | None = None
        extra: dict[str, Any] = {}
        if answer.ok is not None:
            message = answer.ok.get("message")
            if message is None:
                extra["empty"] = True
            else:
                consumer.received.append(message)
                data = base64.b64decode(message["payload"])
                columns |= _id_columns(message["message_id"])
                columns |= {
                    "payload_digest": digest(data),
                    "payload_size": len(data),
                    "redelivery_count": message.get("redelivery_count"),
                    "sequence_id": message.get("sequence_id"),
                    "producer": message.get("producer"),
                }
                extra = _id_extra(message["message_id"])
                extra |= {name: message[name] for name in ("key", "properties", "publish_time") if message.get(name)}
                extra["ref"] = message["ref"]
        self._complete("receive", op, answer, extra=extra, **columns)
        return message

    def _consume(self, operation: Operation, position: int) -> Script:
        consumer = self._consumer_of(operation)
        if consumer is None:
            return
        then = str(operation.params.get("then", "ack"))
        timeout_ms = int(operation.params.get("timeout_ms", 1_000))
        for _ in range(int(operation.params.get("count", 1))):
            message = yield from self._receive(operation.handle, consumer, timeout_ms)
            if message is None:
                return
            if then != "hold":
                yield from self._settle_message(then, operation.handle, consumer, message)

    def _acknowledge(self, operation: Operation, position: int) -> Script:
        consumer = self._consumer_of(operation)
        if consumer is None:
            return
        place = int(operation.params.get("message", 0))
        if place >= len(consumer.received):
            self._skip(operation, "no such message yet")
            return
        yield from self._settle_message(operation.verb, operation.handle, consumer, consumer.received[place])

    def _settle_message(self, verb: str, handle: str, consumer: ConsumerHandle, message: dict[str, Any]) -> Script:
        columns: dict[str, Any] = {
            "actor": handle,
            "topic": consumer.topic,
            "subscription": consumer.subscription,
            "consumer": consumer.name,
            "payload_digest": digest(base64.b64decode(message["payload"])),
            **_id_columns(message["message_id"]),
        }
        extra = _id_extra(message["message_id"])
        op = self._invoke(verb, extra=extra, **columns)
        if verb == "nack":
            consumer.pending_nacks += 1
        answer = yield Ask({"op": verb, "consumer": consumer.remote, "ref": message["ref"]})
        confirmed = bool(answer.ok and answer.ok.get("confirmed"))
        self._complete(verb, op, answer, extra={**extra, "confirmed": confirmed}, **columns)

    def _seek(self, operation: Operation, position: int) -> Script:
        consumer = self._consumer_of(operation)
        if consumer is None:
            return
        request: dict[str, Any] = {"op": "seek", "consumer": consumer.remote}
        columns: dict[str, Any] = {
            "actor": operation.handle,
            "topic": consumer.topic,
            "subscription": consumer.subscription,
            "consumer": consumer.name,
        }
        extra: dict[str, Any] = {}
        if "message" in operation.params:
            place = int(operation.params["message"])
            if place >= len(consumer.received):
                self._skip(operation, "no such message yet")
                return
            message = consumer.received[place]
            request["ref"] = message["ref"]
            columns |= _id_columns(message["message_id"])
            extra = _id_extra(message["message_id"])
        else:
            target: dict[str, Any] = {
                name: operation.params[name] for name in ("position", "publish_time") if name in operation.params
            }
            request |= target
            extra = dict(target)
        op = self._invoke("seek", extra=extra, **columns)
        answer = yield Ask(request)
        self._complete("seek", op, answer, extra=extra, **columns)

    def _unsubscribe(self, operation: Operation, position: int) -> Script:
        consumer = self._consumer_of(operation)
        if consumer is None:
            return
        columns = {
            "actor": operation.handle,
            "topic": consumer.topic,
            "subscription": consumer.subscription,
            "consumer": consumer.name,
        }
        op = self._invoke("unsubscribe", **columns)
        answer = yield Ask({"op": "unsubscribe", "consumer": consumer.remote})
        if answer.ok is not None:
            consumer.open = False
        self._complete("unsubscribe", op, answer, **columns)

    def _close(self, operation: Operation, position: int) -> Script:
        producer = self.producers.get(operation.handle)
        if producer is not None:
            columns: dict[str, Any] = {"actor": operation.handle, "topic": producer.topic, "producer": producer.name}
            request = {"op": "close", "producer": producer.remote}
            producer.open = False
        else:
            consumer = self._consumer_of(operation)
            if consumer is None:
                return
            columns = {
                "actor": operation.handle,
                "topic": consumer.topic,
                "subscription": consumer.subscription,
                "consumer": consumer.name,
            }
            request = {"op": "close", "consumer": consumer.remote}
            consumer.open = False
        op = self._invoke("close", **columns)
        answer = yield Ask(request, OPERATION_TIMEOUT_MS + 1_000)
        self._complete("close", op, answer, **columns)

    def _settle(self, operation: Operation, position: int) -> Script:
        yield Rest(int(operation.params.get("ms", 100)))

    def _observe(self, operation: Operation, position: int) -> Script:
        answer = yield Look()
        if answer.ok is None:
            self._skip(operation, answer.message)


def _id_columns(message_id: dict[str, Any]) -> dict[str, Any]:
    return {
        "ledger_id": message_id.get("ledger"),
        "entry_id": message_id.get("entry"),
        "batch_index": message_id.get("batch_index"),
        "partition": message_id.get("partition"),
    }


def _id_extra(message_id: dict[str, Any]) -> dict[str, Any]:
    first = message_id.get("first_chunk")
    return {"first_chunk": first} if first else {}
