"""Commands a broker sends. Each function returns one ``BaseCommand``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from harness.wire.pulsar_pb2 import BaseCommand, MessageIdData, ServerError

_UINT64 = 1 << 64
NO_ID = _UINT64 - 1  # -1 as an unsigned ledger or entry id


def signed(value: int) -> int:
    """An id as the 64-bit signed number the peer meant."""
    return value - _UINT64 if value >= _UINT64 >> 1 else value


def message_id(ledger: int, entry: int, partition: int = -1, batch_index: int = -1) -> MessageIdData:
    data = MessageIdData(ledgerId=ledger % _UINT64, entryId=entry % _UINT64)
    if partition >= 0:
        data.partition = partition
    if batch_index >= 0:
        data.batch_index = batch_index
    return data


def server_error(name: str) -> ServerError:
    """The number of a ServerError, as the type its fields have."""
    return cast("ServerError", ServerError.Value(name))


def success(request_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SUCCESS)
    command.success.request_id = request_id
    return command


def error(request_id: int, name: str, message: str) -> BaseCommand:
    """``name`` of a ServerError."""
    command = BaseCommand(type=BaseCommand.ERROR)
    command.error.request_id = request_id
    command.error.error = server_error(name)
    command.error.message = message
    return command


def ping() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PING)
    command.ping.SetInParent()
    return command


def pong() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PONG)
    command.pong.SetInParent()
    return command


def receipt(producer_id: int, sequence_id: int, highest: int | None, at: tuple[int, int] | None) -> BaseCommand:
    """SEND_RECEIPT; ``at`` None is the answer to a duplicate: -1:-1 (DEDUP-01)."""
    command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
    answer = command.send_receipt
    answer.producer_id = producer_id
    answer.sequence_id = sequence_id
    if highest is not None:
        answer.highest_sequence_id = highest
    answer.message_id.CopyFrom(message_id(*at) if at is not None else message_id(-1, -1))
    return command


def send_error(producer_id: int, sequence_id: int, name: str, message: str) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SEND_ERROR)
    answer = command.send_error
    answer.producer_id = producer_id
    answer.sequence_id = sequence_id
    answer.error = server_error(name)
    answer.message = message
    return command


def message(
    consumer_id: int, at: MessageIdData, redelivery_count: int, ack_set: Iterable[int], epoch: int | None
) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.MESSAGE)
    sent = command.message
    sent.consumer_id = consumer_id
    sent.message_id.CopyFrom(at)
    if redelivery_count:
        sent.redelivery_count = redelivery_count
    sent.ack_set.extend(ack_set)
    if epoch is not None:
        sent.consumer_epoch = epoch
    return command


def active_consumer_change(consumer_id: int, is_active: bool) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE)
    command.active_consumer_change.consumer_id = consumer_id
    command.active_consumer_change.is_active = is_active
    return command


def close_producer(producer_id: int) -> BaseCommand:
    """The broker's own decision: no request to answer, so the request id is -1."""
    command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = NO_ID
    return command


def close_consumer(consumer_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    command.close_consumer.request_id = NO_ID
    return command
