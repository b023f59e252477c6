"""A client made of frames, for tests of a broker machine: it says exactly what it is told to."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from harness.reference.broker.machine import BrokerMachine
from harness.reference.outputs import BrokerOutput, Write
from harness.wire.batch import SingleMessage, pack
from harness.wire.frame import Frame, FrameDecoder, command_name, encode
from harness.wire.pulsar_pb2 import BaseCommand, MessageMetadata, SingleMessageMetadata

TOPIC = "persistent://public/default/t"


class Bench:
    """A machine, a clock that is set by hand, and what each connection was sent."""

    def __init__(self, machine: BrokerMachine) -> None:
        self.machine = machine
        self.now = 1_000_000_000_000
        self.clients: dict[Hashable, RawClient] = {}

    def client(self, *, connect: bool = True) -> RawClient:
        client = RawClient(self, len(self.clients))
        self.clients[client.conn] = client
        self.take(self.machine.connected(client.conn, self.now))
        if connect:
            client.say(BaseCommand.CONNECT, "connect", client_version="raw", protocol_version=21)
            assert client.heard() == ["CONNECTED"]
        return client

    def take(self, outputs: list[BrokerOutput]) -> None:
        for output in outputs:
            client = self.clients[output.conn]
            assert not client.closed, "output for a closed connection"
            if isinstance(output, Write):
                client.inbox += client.decoder.feed(output.data)
            else:
                client.closed = True

    def wait(self, ns: int) -> None:
        """Lets time pass, deadline by deadline."""
        end = self.now + ns
        while (due := self.machine.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.take(self.machine.tick(self.now))
        self.now = end


class RawClient:
    """``inbox`` holds frames not yet looked at."""

    def __init__(self, bench: Bench, conn: Hashable) -> None:
        self.bench = bench
        self.conn = conn
        self.decoder = FrameDecoder()
        self.inbox: list[Frame] = []
        self.closed = False
        self.requests = 0

    # --- speaking

    def write(self, data: bytes) -> None:
        self.bench.take(self.bench.machine.received(self.conn, data, self.bench.now))

    def say(self, kind: Any, body: str, **fields: Any) -> None:
        command = BaseCommand(type=kind)
        getattr(command, body).SetInParent()
        part = getattr(command, body)
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(part, name).extend(value)
            elif hasattr(value, "DESCRIPTOR"):
                getattr(part, name).CopyFrom(value)
            else:
                setattr(part, name, value)
        self.write(encode(Frame(command)))

    def ask(self, kind: Any, body: str, **fields: Any) -> int:
        self.requests += 1
        self.say(kind, body, request_id=self.requests, **fields)
        return self.requests

    def produce(self, producer_id: int = 1, name: str = "p", topic: str = TOPIC, **fields: Any) -> int:
        return self.ask(
            BaseCommand.PRODUCER, "producer", topic=topic, producer_id=producer_id, producer_name=name, **fields
        )

    def send(self, sequence_id: int, payload: bytes = b"x", producer_id: int = 1, **metadata: Any) -> None:
        self.write(self.send_frame(sequence_id, payload, producer_id, **metadata))

    def send_frame(
        self, sequence_id: int, payload: bytes = b"x", producer_id: int = 1, highest: int | None = None, **metadata: Any
    ) -> bytes:
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id = producer_id
        command.send.sequence_id = sequence_id
        if highest is not None:
            command.send.highest_sequence_id = highest
        labels = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1, **metadata)
        return encode(Frame(command, labels, payload))

    def send_batch(self, first: int, count: int, *, highest: bool = True, producer_id: int = 1) -> None:
        members = [SingleMessage(SingleMessageMetadata(payload_size=1), b"%d" % (n % 10)) for n in range(count)]
        last = first + count - 1 if highest else None
        self.write(self.send_frame(first, pack(members), producer_id, last, num_messages_in_batch=count))

    def subscribe(self, consumer_id: int = 1, name: str = "s", kind: Any = 0, flow: int = 0, **fields: Any) -> int:
        fields = {"topic": TOPIC, "initialPosition": 1, **fields}
        asked = self.ask(
            BaseCommand.SUBSCRIBE, "subscribe", subscription=name, subType=kind, consumer_id=consumer_id, **fields
        )
        if flow:
            self.flow(flow, consumer_id)
        return asked

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        self.say(BaseCommand.FLOW, "flow", consumer_id=consumer_id, messagePermits=permits)

    def ack(self, *ids: Any, consumer_id: int = 1, cumulative: bool = False, **fields: Any) -> None:
        self.say(
            BaseCommand.ACK, "ack", consumer_id=consumer_id, ack_type=int(cumulative), message_id=list(ids), **fields
        )

    def redeliver(self, *ids: Any, consumer_id: int = 1, **fields: Any) -> None:
        self.say(
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
            "redeliverUnacknowledgedMessages",
            consumer_id=consumer_id,
            message_ids=list(ids),
            **fields,
        )

    def leave(self) -> None:
        self.closed = True
        self.bench.take(self.bench.machine.disconnected(self.conn, self.bench.now))

    # --- hearing

    def heard(self) -> list[str]:
        """Names of the frames since the last look, and forgets them."""
        return [command_name(frame.command) for frame in self.frames()]

    def frames(self) -> list[Frame]:
        frames, self.inbox = self.inbox, []
        return frames

    def only(self, name: str) -> Any:
        """Body of the one frame that came, which must be a ``name``."""
        frames = self.frames()
        assert [command_name(frame.command) for frame in frames] == [name]
        command = frames[0].command
        return next(value for field, value in command.ListFields() if field.name != "type")

    def messages(self) -> list[Frame]:
        """MESSAGE frames; whatever else came is forgotten."""
        return [frame for frame in self.frames() if frame.command.type == BaseCommand.MESSAGE]

    def payloads(self) -> list[bytes]:
        return [frame.payload for frame in self.messages()]

    def receipts(self) -> list[tuple[int, int, int]]:
        """(sequence id, ledger, entry) of SEND_RECEIPT frames; -1 for the sentinel."""
        found = [frame.command.send_receipt for frame in self.frames() if frame.command.HasField("send_receipt")]
        return [(r.sequence_id, _signed(r.message_id.ledgerId), _signed(r.message_id.entryId)) for r in found]


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
