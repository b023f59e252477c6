"""Answers about topics: where they are, how many partitions, which there are."""

from __future__ import annotations

import re

from harness.reference.broker.answers import server_error
from harness.reference.broker.breach import Refusal
from harness.reference.broker.connection import Connection
from harness.reference.broker.core import Core
from harness.reference.broker.topic_name import parse
from harness.reference.broker.topics import Topics
from harness.wire.frame import Frame
from harness.wire.pulsar_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)


class LookupService:
    """Every request gets exactly one answer (LOOKUP-14). This broker owns every topic."""

    def __init__(self, core: Core, topics: Topics) -> None:
        self.core = core
        self.topics = topics

    def lookup(self, connection: Connection, frame: Frame) -> None:
        request = frame.command.lookupTopic
        command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
        answer = command.lookupTopicResponse
        answer.request_id = request.request_id
        try:
            parse(request.topic)
        except Refusal as refusal:
            answer.response = CommandLookupTopicResponse.Failed
            answer.error = server_error(refusal.error)
            answer.message = refusal.message
        else:
            answer.response = CommandLookupTopicResponse.Connect
            answer.brokerServiceUrl = self.core.config.service_url
            answer.authoritative = True
            answer.proxy_through_service_url = False
        connection.send(command)

    def partitions(self, connection: Connection, frame: Frame) -> None:
        request = frame.command.partitionMetadata
        command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
        answer = command.partitionMetadataResponse
        answer.request_id = request.request_id
        try:
            name = parse(request.topic)
        except Refusal as refusal:
            answer.response = CommandPartitionedTopicMetadataResponse.Failed
            answer.error = server_error(refusal.error)
            answer.message = refusal.message
        else:
            answer.response = CommandPartitionedTopicMetadataResponse.Success
            answer.partitions = self.core.config.partitions.get(name.complete, 0)
        connection.send(command)

    def topics_of_namespace(self, connection: Connection, frame: Frame) -> None:
        request = frame.command.getTopicsOfNamespace
        command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        answer = command.getTopicsOfNamespaceResponse
        answer.request_id = request.request_id
        if request.mode != CommandGetTopicsOfNamespace.NON_PERSISTENT:
            names = [topic.name for topic in self.topics.all()]
            found = sorted(name.complete for name in names if name.namespace == request.namespace)
            if request.HasField("topics_pattern"):
                try:
                    pattern = re.compile(request.topics_pattern)
                except re.error as problem:
                    raise Refusal("InvalidTopicName", f"bad pattern: {problem}") from None
                found = [name for name in found if pattern.fullmatch(name)]
                answer.filtered = True
            answer.topics.extend(found)
        connection.send(command)
