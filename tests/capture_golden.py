"""Makes ``fixtures/golden/*.bin``: a real client, a real broker, and a plain relay that writes down what passes.

Run from the root: ``python -m tests.capture_golden fixtures/golden``. Everything listens on 127.0.0.1 and is stopped
at the end. Ids, times and port numbers differ from run to run, so the files are kept rather than made again.

A file is a sequence of records in the order in which the bytes passed the relay::

    connection (1 byte) | direction (1 byte, 0 to the broker, 1 to the client) | size (4 bytes, big-endian) | bytes

Bytes are as their sender wrote them. What the relay changes on its way to the client is not in the file: the address
in lookup answers, so that the client comes back to the relay, and the largest message size, which this broker does not
announce: with a small one the client cuts messages into pieces that are small enough to be kept here.
"""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pulsar
import pulsar_lite

from harness.wire.frame import Frame, FrameDecoder, encode
from harness.wire.lookup import rewrite_lookup
from harness.wire.pulsar_pb2 import BaseCommand

RECORD = struct.Struct(">BBI")
MAX_MESSAGE_SIZE = 16 * 1024


class Relay:
    """Relays every connection to ``upstream`` and appends what passes to ``log``."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.log = bytearray()
        self._lock = threading.Lock()
        self._connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self.upstream))
            number, self._connections = self._connections, self._connections + 1
            threading.Thread(target=self._pump, args=(number, 0, client, broker), daemon=True).start()
            threading.Thread(target=self._pump, args=(number, 1, broker, client), daemon=True).start()

    def _pump(self, connection: int, direction: int, source: socket.socket, target: socket.socket) -> None:
        decoder = FrameDecoder()
        try:
            while data := source.recv(65536):
                with self._lock:
                    self.log += RECORD.pack(connection, direction, len(data)) + data
                if direction == 1:
                    data = b"".join(self._for_client(decoder, data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            target.close()

    def _for_client(self, decoder: FrameDecoder, data: bytes) -> list[bytes]:
        return [
            encode(self._changed(frame)) if frame.metadata is None else frame.raw or b"" for frame in decoder.feed(data)
        ]

    def _changed(self, frame: Frame) -> Frame:
        if frame.command.type != BaseCommand.CONNECTED:
            return rewrite_lookup(frame, self.url)
        command = BaseCommand()
        command.CopyFrom(frame.command)
        command.connected.max_message_size = MAX_MESSAGE_SIZE
        return Frame(command)

    def close(self) -> None:
        self._listener.close()


def plain(client: pulsar.Client) -> None:
    """Named producer, key and properties, single and cumulative acknowledgements, unsubscribe."""
    consumer = client.subscribe(
        "plain", "s", consumer_name="consumer-1", initial_position=pulsar.InitialPosition.Earliest
    )
    producer = client.create_producer("plain", producer_name="producer-1", batching_enabled=False)
    producer.send(b"one", partition_key="k", properties={"a": "1", "b": "zwei"})
    producer.send(b"two", sequence_id=7, event_timestamp=1_700_000_000_000)
    producer.send(b"")
    first = consumer.receive(5000)
    consumer.acknowledge(first)
    consumer.receive(5000)
    consumer.acknowledge_cumulative(consumer.receive(5000))
    producer.close()
    consumer.unsubscribe()


def assigned_name(client: pulsar.Client) -> None:
    """The broker names the producer."""
    producer = client.create_producer("assigned")
    producer.send(b"anonymous")
    producer.close()


def codecs(client: pulsar.Client) -> None:
    """Each codec, alone and in a batch; the payload is the codec's name many times over."""
    consumer = client.subscribe("codecs", "s", consumer_name="c", initial_position=pulsar.InitialPosition.Earliest)
    for name in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"):
        kind = getattr(pulsar.CompressionType, name)
        alone = client.create_producer(
            "codecs", producer_name=f"{name}-alone", compression_type=kind, batching_enabled=False
        )
        alone.send(name.encode() * 100)
        alone.close()
        together = client.create_producer(
            "codecs",
            producer_name=f"{name}-batch",
            compression_type=kind,
            batching_enabled=True,
            batching_max_publish_delay_ms=10_000,
        )
        for number in range(3):
            together.send_async(f"{name}-{number}".encode() * 50, None, partition_key=f"k{number}")
        together.flush()
        together.close()
    for _ in range(5 * 4):
        consumer.acknowledge(consumer.receive(5000))
    consumer.close()


def chunks(client: pulsar.Client) -> None:
    """A message in several pieces. It is stored before anybody reads: this broker may push an entry twice otherwise,
    and then the client gives the whole message up."""
    producer = client.create_producer("chunks", producer_name="p", batching_enabled=False, chunking_enabled=True)
    producer.send(random.Random(7).randbytes(3 * MAX_MESSAGE_SIZE))
    consumer = client.subscribe("chunks", "s", consumer_name="c", initial_position=pulsar.InitialPosition.Earliest)
    consumer.acknowledge(consumer.receive(5000))
    producer.close()
    consumer.close()


def redelivery(client: pulsar.Client) -> None:
    """Shared subscription, negative acknowledgement, redelivery; then a seek and a reader."""
    consumer = client.subscribe(
        "redelivery",
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        consumer_name="c",
        initial_position=pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
    )
    producer = client.create_producer("redelivery", producer_name="p", batching_enabled=False)
    producer.send(b"again")
    message = consumer.receive(5000)
    consumer.negative_acknowledge(message)
    consumer.acknowledge(consumer.receive(5000))
    consumer.seek(pulsar.MessageId.earliest)
    consumer.close()
    reader = client.create_reader("redelivery", pulsar.MessageId.earliest)
    while reader.has_message_available():
        reader.read_next(5000)
    reader.close()
    producer.close()


def partitions(client: pulsar.Client) -> None:
    """One message to each partition, key-shared."""
    consumer = client.subscribe(
        "public/default/parts",
        "s",
        consumer_type=pulsar.ConsumerType.KeyShared,
        consumer_name="c",
        initial_position=pulsar.InitialPosition.Earliest,
    )
    producer = client.create_producer("public/default/parts", producer_name="p", batching_enabled=False)
    for number in range(4):
        producer.send(str(number).encode(), partition_key=f"key-{number}")
    for _ in range(4):
        consumer.acknowledge(consumer.receive(5000))
    producer.close()
    consumer.close()


SCENARIOS: dict[str, tuple[int, Callable[[pulsar.Client], None]]] = {
    "plain": (0, plain),
    "assigned_name": (0, assigned_name),
    "codecs": (0, codecs),
    "chunks": (0, chunks),
    "redelivery": (0, redelivery),
    "partitions": (2, partitions),
}


def capture(target: Path, name: str, default_partitions: int, scenario: Callable[[pulsar.Client], None]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config = Path(directory, "config.toml")
        config.write_text(f"default_partitions = {default_partitions}\n[metrics]\nenabled = false\n")
        binary = Path(pulsar_lite.__file__).parent / "bin" / "pulsar-lite"
        broker = subprocess.Popen(
            [binary, "--config", config, "--addr", f"127.0.0.1:{port}", "--db-path", Path(directory, "db")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        relay = Relay(port)
        try:
            while broker.poll() is None:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
            client = pulsar.Client(relay.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
            scenario(client)
            client.close()
        finally:
            relay.close()
            broker.terminate()
            broker.wait()
            (target / f"{name}.bin").write_bytes(relay.log)


if __name__ == "__main__":
    for each, (partition_count, steps) in SCENARIOS.items():
        if len(sys.argv) == 2 or each in sys.argv[2:]:
            capture(Path(sys.argv[1]), each, partition_count, steps)
