"""The bytes of a SEND (clauses SEND-01, BATCH-02, COMP-01, COMP-02, META-04 to META-06)."""

from __future__ import annotations

from harness.reference.client.outgoing import Outgoing
from harness.wire import codec
from harness.wire.batch import SingleMessage, pack
from harness.wire.frame import Frame, encode
from harness.wire.pulsar_pb2 import (
    NONE,
    BaseCommand,
    CommandSend,
    CompressionType,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)


def message_metadata(message: Outgoing, producer_name: str, compression: CompressionType) -> MessageMetadata:
    """Metadata of a message that travels alone."""
    metadata = MessageMetadata(
        producer_name=producer_name,
        sequence_id=message.sequence_id,
        publish_time=message.publish_time,
        properties=_properties(message),
    )
    if message.key is not None:
        metadata.partition_key = message.key
    if message.deliver_at is not None:
        metadata.deliver_at_time = message.deliver_at
    _declare_compression(metadata, compression, len(message.payload))
    return metadata


def batch_envelope(
    messages: list[Outgoing], producer_name: str, compression: CompressionType
) -> tuple[MessageMetadata, bytes]:
    """Metadata and payload of a batch: the envelope is the first member's, compression covers the whole."""
    packed = pack([SingleMessage(_member_metadata(message), message.payload) for message in messages])
    metadata = MessageMetadata(
        producer_name=producer_name,
        sequence_id=messages[0].sequence_id,
        highest_sequence_id=messages[-1].sequence_id,
        publish_time=messages[0].publish_time,
        num_messages_in_batch=len(messages),
    )
    _declare_compression(metadata, compression, len(packed))
    return metadata, codec.compress(compression, packed)


def send_frame(producer_id: int, metadata: MessageMetadata, payload: bytes) -> bytes:
    """The whole frame, with its checksum."""
    send = CommandSend(producer_id=producer_id, sequence_id=metadata.sequence_id)
    if metadata.HasField("num_messages_in_batch"):
        send.num_messages = metadata.num_messages_in_batch
        send.highest_sequence_id = metadata.highest_sequence_id
    if metadata.HasField("chunk_id"):
        send.is_chunk = True
    return encode(Frame(BaseCommand(type=BaseCommand.SEND, send=send), metadata, payload))


def _member_metadata(message: Outgoing) -> SingleMessageMetadata:
    metadata = SingleMessageMetadata(
        payload_size=len(message.payload), sequence_id=message.sequence_id, properties=_properties(message)
    )
    if message.key is not None:
        metadata.partition_key = message.key
    return metadata


def _properties(message: Outgoing) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in message.properties.items()]


def _declare_compression(metadata: MessageMetadata, compression: CompressionType, size: int) -> None:
    if compression != NONE:
        metadata.compression = compression
        metadata.uncompressed_size = size
