"""From a MESSAGE frame to what the application is handed (clauses RECV-06, META-06, PERMIT-09)."""

from __future__ import annotations

from harness.reference.client.ack_set import from_words
from harness.reference.client.delivery import Delivery
from harness.wire.batch import SingleMessage
from harness.wire.frame import Frame
from harness.wire.message import is_batch
from harness.wire.message_id import Position
from harness.wire.pulsar_pb2 import MessageMetadata

#: A batch member needs a size, and a header with at least its payload size.
_SMALLEST_MEMBER = 6


def permits_taken(frame: Frame) -> int:
    """How many permits the broker took for this entry.

    A damaged entry may claim any number of members; more than its bytes can hold is not believed.
    """
    metadata = frame.metadata
    if metadata is None or not is_batch(metadata):
        return 1
    size = max(len(frame.payload), metadata.uncompressed_size)
    count = max(1, min(metadata.num_messages_in_batch, size // _SMALLEST_MEMBER))
    return len(from_words(frame.command.message.ack_set, count))


def plain_delivery(
    metadata: MessageMetadata, payload: bytes, position: Position, epoch: int, redelivery_count: int
) -> Delivery:
    """A message that was stored alone, or the whole of a chunked one."""
    return Delivery(
        position=position,
        entries=(position,),
        payload=payload,
        epoch=epoch,
        key=metadata.partition_key if metadata.HasField("partition_key") else None,
        properties={pair.key: pair.value for pair in metadata.properties},
        producer=metadata.producer_name,
        sequence_id=metadata.sequence_id,
        publish_time=metadata.publish_time,
        redelivery_count=redelivery_count,
    )


def member_delivery(
    metadata: MessageMetadata, index: int, member: SingleMessage, position: Position, epoch: int, redelivery_count: int
) -> Delivery:
    """Member ``index`` of a batch; some clients leave out the sequence ids of members, which then count up."""
    header = member.metadata
    return Delivery(
        position=position,
        entries=(position,),
        payload=member.payload,
        epoch=epoch,
        batch_index=index,
        batch_size=metadata.num_messages_in_batch,
        key=header.partition_key if header.HasField("partition_key") else None,
        properties={pair.key: pair.value for pair in header.properties},
        producer=metadata.producer_name,
        sequence_id=header.sequence_id if header.HasField("sequence_id") else metadata.sequence_id + index,
        publish_time=metadata.publish_time,
        redelivery_count=redelivery_count,
    )
