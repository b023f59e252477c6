"""The attributes of faults that reach the broker itself, a type for each kind; Toxiproxy's own are in ``faults``."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from harness.systems.admin import QuotaPolicy
from harness.worlds.plan import Fault

LONGEST_PAUSE_MS = 120_000
MOST_PARTITIONS = 64
MOST_TOPICS = 1_000
LARGEST_MESSAGE = 64 * 1024 * 1024
SMALLEST_LIMIT = 1024
"""Bytes of the smallest ``max_message_size``: below it brokers cannot even answer a lookup."""

_Topic = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOPICS)]
_Amount = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class BadAttributes(ValueError):
    """What is wrong with the attributes of a fault, in one sentence."""


class Attributes(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """None at all."""


class Pause(Attributes):
    """``ms``: how long the process is stopped."""

    ms: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_PAUSE_MS)]


class Rollover(Attributes):
    """Exactly one of them: what a ledger may hold before the next one is begun."""

    entries: _Amount | None = None
    megabytes: _Amount | None = None
    minutes: _Amount | None = None


class MaxMessageSize(Attributes):
    """``bytes``: the largest message the broker takes."""

    bytes: Annotated[int, msgspec.Meta(ge=SMALLEST_LIMIT, le=LARGEST_MESSAGE)]


class Dedup(Attributes):
    """Whether duplicates are dropped from now on."""

    enabled: bool


class OneTopic(Attributes):
    """``topic``: the index of one of the plan's topics."""

    topic: _Topic = 0


class Subscription(Attributes):
    """``force``: also with consumers connected."""

    subscription: Annotated[str, msgspec.Meta(min_length=1)]
    topic: _Topic = 0
    force: bool = False


class Partitions(Attributes):
    """``partitions``: how many there shall be in all."""

    partitions: Annotated[int, msgspec.Meta(ge=1, le=MOST_PARTITIONS)]
    topic: _Topic = 0


class Quota(Attributes):
    """``policy``: what happens to a topic whose backlog is larger, or older, than the one limit that is given."""

    policy: QuotaPolicy
    bytes: _Amount | None = None
    seconds: _Amount | None = None


TYPES: dict[str, type[Attributes]] = {
    "broker_kill": Attributes,
    "broker_stop": Attributes,
    "broker_start": Attributes,
    "broker_pause": Pause,
    "ledger_rollover": Rollover,
    "max_message_size": MaxMessageSize,
    "dedup": Dedup,
    "unload": OneTopic,
    "unload_namespace": Attributes,
    "terminate": OneTopic,
    "delete_subscription": Subscription,
    "grow_partitions": Partitions,
    "backlog_quota": Quota,
}
"""One for each process and admin fault."""


def attributes_of(fault: Fault) -> Any:
    """The attributes of a process or admin fault, of the type its kind has in ``TYPES``. Raises ``BadAttributes``."""
    try:
        found: Any = msgspec.convert(fault.attributes, TYPES[fault.kind])
    except msgspec.ValidationError as error:
        raise BadAttributes(f"attributes: {error}") from error
    if isinstance(found, Rollover | Quota):
        choices = ("entries", "megabytes", "minutes") if isinstance(found, Rollover) else ("bytes", "seconds")
        if sum(getattr(found, name) is not None for name in choices) != 1:
            raise BadAttributes(f"exactly one of the attributes {', '.join(choices)} is needed")
    return found
