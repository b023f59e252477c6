"""What the parts of one broker share: settings, time, timers, names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.reference.broker.config import BrokerConfig
from harness.reference.broker.outbox import Outbox
from harness.reference.broker.timers import Timers

if TYPE_CHECKING:
    from harness.reference.broker.parts import BrokerParts


class Core:
    """``now`` is the time of the call being served (ns). Ids are never used twice, not even across a crash."""

    def __init__(self, config: BrokerConfig, parts: BrokerParts) -> None:
        self.config = config
        self.parts = parts
        self.outbox = Outbox()
        self.timers = Timers()
        self.now = 0
        self._dedup = {"": config.dedup_enabled}
        self._ledgers = 0
        self._names = 0

    def set_dedup(self, enabled: bool, prefix: str) -> None:
        """Deduplication of topics whose complete name begins so; the longest prefix that fits a topic decides."""
        if not prefix:
            self._dedup.clear()
        self._dedup[prefix] = enabled

    def dedup_enabled(self, topic: str) -> bool:
        """Whether a topic made now deduplicates."""
        return self._dedup[max((prefix for prefix in self._dedup if topic.startswith(prefix)), key=len)]

    def set_partitions(self, topic: str, partitions: int) -> None:
        """``topic`` is a complete name. Its partitions are topics that are made on first use, as all others."""
        self.config = replace(self.config, partitions={**self.config.partitions, topic: partitions})

    def new_ledger_id(self) -> int:
        self._ledgers += 1
        return self._ledgers

    def new_name(self) -> str:
        """A producer or consumer name for a client that chose none."""
        self._names += 1
        return f"{self.config.cluster}-{self._names}"
