"""Complete names of topics: ``persistent://tenant/namespace/local``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.reference.broker.breach import Refusal
from harness.wire.topic_name import complete, partition

_COMPLETE = re.compile(r"(?P<domain>[^:/]+)://(?P<tenant>[^/]+)/(?P<namespace>[^/]+)/(?P<local>.+)\Z")


@dataclass(frozen=True, slots=True)
class TopicName:
    """``partition`` is the number in the suffix ``-partition-N``, -1 without."""

    complete: str
    namespace: str
    partition: int


def parse(name: str) -> TopicName:
    """Reads a short or complete name. Raises ``Refusal`` InvalidTopicName, or NotAllowedError when not persistent."""
    name = complete(name)
    match = _COMPLETE.match(name)
    if match is None:
        raise Refusal("InvalidTopicName", f"{name!r} is no topic name")
    if match["domain"] == "non-persistent":
        raise Refusal("NotAllowedError", "this broker has no non-persistent topics")
    if match["domain"] != "persistent":
        raise Refusal("InvalidTopicName", f"unknown domain in {name!r}")
    number = partition(name)
    return TopicName(name, f"{match['tenant']}/{match['namespace']}", -1 if number is None else number)
