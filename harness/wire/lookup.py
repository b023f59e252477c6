"""Addresses of brokers inside frames, and how a relay puts its own in their place.

A client opens its real connections to the addresses a broker names (clause LOOKUP-04), so a relay that wants to see
them must be the address that is named.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message

from harness.wire.frame import Frame
from harness.wire.pulsar_pb2 import BaseCommand

_TYPES_WITH_ADDRESSES: Final = frozenset(
    {BaseCommand.LOOKUP_RESPONSE, BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER, BaseCommand.TOPIC_MIGRATED}
)
_BEFORE_COMMAND: Final = 8
_TYPE_TAG: Final = 0x08


def rewrite_lookup(frame: Frame, url: str) -> Frame:
    """``frame`` with ``url`` (``pulsar://host:port``) in place of each broker address, and no TLS address.

    The frame itself comes back when it names no address. A lookup answer with ``proxy_through_service_url`` is left
    alone too: its address is only a name that a proxy resolves, the client connects to the service URL.
    """
    command = BaseCommand()
    command.CopyFrom(frame.command)
    if command.type == BaseCommand.LOOKUP_RESPONSE:
        if command.lookupTopicResponse.proxy_through_service_url:
            return frame
        changed = _replace_address(command.lookupTopicResponse, "brokerServiceUrl", url)
    elif command.type == BaseCommand.CLOSE_PRODUCER:
        changed = _replace_address(command.close_producer, "assignedBrokerServiceUrl", url)
    elif command.type == BaseCommand.CLOSE_CONSUMER:
        changed = _replace_address(command.close_consumer, "assignedBrokerServiceUrl", url)
    elif command.type == BaseCommand.TOPIC_MIGRATED:
        changed = _replace_address(command.topicMigrated, "brokerServiceUrl", url)
    else:
        return frame
    return Frame(command) if changed else frame


def first_bytes_may_need_rewrite(prefix: bytes) -> bool | None:
    """Whether the frame that begins with ``prefix`` may name an address; None when more bytes are needed to tell.

    False lets a relay pass the frame on without waiting for the rest of it. Ten bytes always decide: two sizes, then
    the command, whose encoders all write the type first. Bytes that do not look like that are held back (True), unless
    they cannot be a frame at all.
    """
    if len(prefix) >= _BEFORE_COMMAND:
        total = int.from_bytes(prefix[0:4], "big")
        command_size = int.from_bytes(prefix[4:8], "big")
        if command_size < 2 or command_size > total - 4:
            return False
    if len(prefix) < _BEFORE_COMMAND + 2:
        return None
    tag, first = prefix[_BEFORE_COMMAND], prefix[_BEFORE_COMMAND + 1]
    if tag != _TYPE_TAG or first & 0x80:
        return True
    return first in _TYPES_WITH_ADDRESSES


def _replace_address(body: Message, field: str, url: str) -> bool:
    """Whether there was an address to replace. The TLS address of a message is in the field named ``...Tls``."""
    if not body.HasField(field) and not body.HasField(f"{field}Tls"):
        return False
    setattr(body, field, url)
    body.ClearField(f"{field}Tls")
    return True
