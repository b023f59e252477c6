"""The replaceable parts of a client machine: give another class for one of them to get another client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.reference.client.ack_timeouts import AckTimeouts
from harness.reference.client.ack_tracker import AckTracker
from harness.reference.client.backoff import Backoff
from harness.reference.client.batch_builder import BatchBuilder
from harness.reference.client.batch_splitter import BatchSplitter
from harness.reference.client.chunk_assembler import ChunkAssembler
from harness.reference.client.chunk_splitter import ChunkSplitter
from harness.reference.client.consumer import Consumer
from harness.reference.client.dead_letters import DeadLetters
from harness.reference.client.negative_acks import NegativeAcks
from harness.reference.client.pending_queue import PendingQueue
from harness.reference.client.permits import Permits
from harness.reference.client.producer import Producer
from harness.reference.client.receive_queue import ReceiveQueue
from harness.reference.client.sequence_ids import SequenceIds


@dataclass(frozen=True, slots=True)
class ClientParts:
    """One factory a part; a class serves as its own. All times they are given are nanoseconds."""

    producer: type[Producer] = Producer
    consumer: type[Consumer] = Consumer
    backoff: Callable[[int, int, int | None], Backoff] = Backoff
    sequence_ids: Callable[[int | None], SequenceIds] = SequenceIds
    batch_builder: Callable[[int, int, int], BatchBuilder] = BatchBuilder
    chunk_splitter: Callable[[], ChunkSplitter] = ChunkSplitter
    pending_queue: Callable[[], PendingQueue] = PendingQueue
    permits: Callable[[int], Permits] = Permits
    receive_queue: Callable[[], ReceiveQueue] = ReceiveQueue
    batch_splitter: Callable[[], BatchSplitter] = BatchSplitter
    chunk_assembler: Callable[[int, int], ChunkAssembler] = ChunkAssembler
    ack_tracker: Callable[[bool], AckTracker] = AckTracker
    negative_acks: Callable[[int], NegativeAcks] = NegativeAcks
    ack_timeouts: Callable[[int, int, int], AckTimeouts] = AckTimeouts
    dead_letters: Callable[[int], DeadLetters] = DeadLetters
