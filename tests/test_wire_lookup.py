"""Addresses inside frames: what a relay rewrites, and what it may pass on without waiting."""

from __future__ import annotations

import pytest

from harness.wire.frame import Frame, decode, encode
from harness.wire.lookup import first_bytes_may_need_rewrite, rewrite_lookup
from harness.wire.pulsar_pb2 import (
    BaseCommand,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandLookupTopicResponse,
    CommandTopicMigrated,
)
from tests.golden_capture import CAPTURES, frames

URL = "pulsar://127.0.0.1:7001"
OLD, OLD_TLS = "pulsar://broker:6650", "pulsar+ssl://broker:6651"

ADDRESSED = [
    BaseCommand(
        type=BaseCommand.LOOKUP_RESPONSE,
        lookupTopicResponse=CommandLookupTopicResponse(
            request_id=1, response=CommandLookupTopicResponse.Connect, brokerServiceUrl=OLD, brokerServiceUrlTls=OLD_TLS
        ),
    ),
    BaseCommand(
        type=BaseCommand.CLOSE_PRODUCER,
        close_producer=CommandCloseProducer(producer_id=1, request_id=2, assignedBrokerServiceUrl=OLD),
    ),
    BaseCommand(
        type=BaseCommand.CLOSE_CONSUMER,
        close_consumer=CommandCloseConsumer(consumer_id=1, request_id=2, assignedBrokerServiceUrlTls=OLD_TLS),
    ),
    BaseCommand(
        type=BaseCommand.TOPIC_MIGRATED,
        topicMigrated=CommandTopicMigrated(
            resource_id=1,
            resource_type=CommandTopicMigrated.Producer,
            brokerServiceUrl=OLD,
            brokerServiceUrlTls=OLD_TLS,
        ),
    ),
]


@pytest.mark.parametrize("command", ADDRESSED, ids=lambda command: BaseCommand.Type.Name(command.type))
def test_addresses_are_replaced(command: BaseCommand) -> None:
    frame = decode(encode(Frame(command)))
    rewritten = encode(rewrite_lookup(frame, URL))
    assert b"broker:" not in rewritten
    assert rewritten.count(URL.encode()) == 1
    assert rewrite_lookup(decode(rewritten), URL) == decode(rewritten)
    assert frame.command == command
    assert first_bytes_may_need_rewrite(rewritten[:10]) is True


def test_frames_without_an_address_come_back_as_they_are() -> None:
    failed = CommandLookupTopicResponse(request_id=1, response=CommandLookupTopicResponse.Failed)
    through = CommandLookupTopicResponse(request_id=1, brokerServiceUrl=OLD, proxy_through_service_url=True)
    closed = BaseCommand(
        type=BaseCommand.CLOSE_PRODUCER, close_producer=CommandCloseProducer(producer_id=1, request_id=2)
    )
    for command in (
        BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=failed),
        BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=through),
        closed,
    ):
        frame = decode(encode(Frame(command)))
        assert rewrite_lookup(frame, URL) is frame


@pytest.mark.parametrize("name", CAPTURES)
def test_what_the_first_bytes_let_pass_is_never_rewritten(name: str) -> None:
    held = passed = 0
    for _, _, frame in frames(name):
        assert frame.raw is not None
        verdict = first_bytes_may_need_rewrite(frame.raw[:10])
        assert verdict is first_bytes_may_need_rewrite(frame.raw)
        assert [first_bytes_may_need_rewrite(frame.raw[:size]) for size in range(10)] == [None] * 10
        if verdict:
            held += 1
        else:
            passed += 1
            assert rewrite_lookup(frame, URL) is frame
    assert held
    assert passed > held


def test_first_bytes_of_no_frame_are_not_held_back() -> None:
    assert first_bytes_may_need_rewrite(b"\0\0\0\x05\0\0\0\x00") is False
    assert first_bytes_may_need_rewrite(b"\0\0\0\x05\0\0\0\x09") is False


def test_an_unusual_encoding_is_held_back() -> None:
    assert first_bytes_may_need_rewrite(b"\0\0\0\x20\0\0\0\x1c\xc2\x01") is True
    assert first_bytes_may_need_rewrite(b"\0\0\0\x20\0\0\0\x1c\x08\x98") is True
