"""All topics of the broker."""

from __future__ import annotations

from harness.reference.broker.breach import Refusal
from harness.reference.broker.core import Core
from harness.reference.broker.topic import Topic
from harness.reference.broker.topic_name import parse


class Topics:
    """Made on first use. A partitioned topic itself has no messages, only its partitions have."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._topics: dict[str, Topic] = {}

    def find(self, name: str) -> Topic | None:
        return self._topics.get(parse(name).complete)

    def get(self, name: str) -> Topic:
        """Raises ``Refusal`` for bad names and for the name of a partitioned topic."""
        known = self._topics.get(name)
        if known is not None:
            return known
        parsed = parse(name)
        if parsed.complete in self._core.config.partitions:
            raise Refusal("NotAllowedError", "the topic is partitioned")
        topic = self._topics.get(parsed.complete)
        if topic is None:
            topic = self._topics[parsed.complete] = self._core.parts.topic(parsed, self._core)
        return topic

    def remove(self, topic: Topic) -> None:
        """With everything in it; the next use of the name makes a new one."""
        self._topics.pop(topic.name.complete, None)

    def all(self) -> list[Topic]:
        """In the order in which they were made."""
        return list(self._topics.values())
