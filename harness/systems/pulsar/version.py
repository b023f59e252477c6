"""Versions of Apache Pulsar: their order, what they keep their metadata in, which Java they need."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from harness.systems.system import UnknownSystem

MetadataStore = Literal["zookeeper", "rocksdb"]


@dataclass(frozen=True, slots=True, order=True)
class PulsarVersion:
    """A release, ``MAJOR.MINOR.PATCH``; ordered as released within a line."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> PulsarVersion:
        """Reads ``4.0.7``. Raises ``UnknownSystem`` for what is no release that can be started."""
        if not re.fullmatch(r"(0|[1-9]\d{0,3})\.(0|[1-9]\d{0,3})\.(0|[1-9]\d{0,3})", text, re.ASCII):
            raise UnknownSystem(
                f"{text!r} is no version of Pulsar; it should look like pulsar@{NEWEST_LTS}"
                " (three numbers: candidates and snapshots are not published as releases)"
            )
        version = cls(*map(int, text.split(".")))
        if version < OLDEST:
            raise UnknownSystem(f"pulsar@{version} is too old: versions from {OLDEST} on can be started")
        return version

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def metadata_store(self) -> MetadataStore:
        """What a standalone keeps its metadata in: from 2.11 on RocksDB (PIP-117), before it a ZooKeeper inside."""
        return "zookeeper" if self < PulsarVersion(2, 11, 0) else "rocksdb"

    @property
    def minimum_java(self) -> int:
        """Oldest feature release of Java that it runs on; no newest one is known (2.8.2 and 4.0.7 start on 25).

        Source: class files of the broker are for Java 17 since 2.11 (major version 61). Those before are for Java 8,
        but the project ran them on 11 (its README, "Pulsar Runtime Java Version Recommendation"), and
        ``--add-opens``, which they need, is unknown to Java 8.
        """
        return 11 if self < PulsarVersion(2, 11, 0) else 17


OLDEST = PulsarVersion(2, 8, 0)
NEWEST_LTS = PulsarVersion(4, 0, 7)

MEASURED: tuple[PulsarVersion, ...] = (
    PulsarVersion(2, 8, 0),
    PulsarVersion(2, 8, 2),
    PulsarVersion(2, 9, 1),
    PulsarVersion(2, 10, 5),
    PulsarVersion(2, 11, 0),
    PulsarVersion(3, 0, 0),
    PulsarVersion(3, 0, 7),
    PulsarVersion(3, 2, 3),
    PulsarVersion(3, 3, 2),
    PulsarVersion(4, 0, 0),
    NEWEST_LTS,
    PulsarVersion(4, 2, 4),
)
"""Versions whose jars are pinned and whose start was measured."""
