"""What a run does, as plain data: operations, and the schedule of faults between them.

Nothing here depends on what came back. A message is named by its place in what a consumer has received
(``message=2`` is the third message handed to that consumer), so that the same plan can be drawn by Hypothesis,
stored in a seed, shrunk and replayed.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

Verb = Literal[
    "producer",
    "send",
    "flush",
    "consumer",
    "receive",
    "consume",
    "ack",
    "ack_cumulative",
    "nack",
    "seek",
    "unsubscribe",
    "close",
    "settle",
    "observe",
]

NetworkFault = Literal["toxic", "untoxic", "cut", "refuse", "restore"]

ProcessFault = Literal[
    "broker_kill", "broker_stop", "broker_start", "broker_pause", "ledger_rollover", "max_message_size"
]
"""SIGKILL; SIGTERM; a start on the same data; SIGSTOP for ``attributes.ms`` and then SIGCONT.

``ledger_rollover`` (``attributes`` one of entries, megabytes, minutes) and ``max_message_size`` (``attributes.bytes``)
are settings a broker reads at its start only: it is stopped in good order and started with them. ``broker_start`` of a
broker that is up does the same without a change. A plan that ends with the broker down is healed by a start.
"""

AdminFault = Literal[
    "dedup",
    "unload",
    "unload_namespace",
    "terminate",
    "delete_subscription",
    "grow_partitions",
    "backlog_quota",
]
"""``attributes``: ``dedup`` enabled; ``unload`` and ``terminate`` topic (index, default 0); ``unload_namespace`` none;
``delete_subscription`` topic, subscription, force; ``grow_partitions`` topic, partitions;
``backlog_quota`` policy, and one of bytes, seconds."""

FaultKind = Literal[NetworkFault, ProcessFault, AdminFault]

PROCESS_FAULTS: frozenset[str] = frozenset(get_args(ProcessFault))
ADMIN_FAULTS: frozenset[str] = frozenset(get_args(AdminFault))
FAULTS_OF_A_RUNNING_PROCESS = frozenset({"broker_kill", "broker_stop", "broker_pause"})
"""Those that are signals, which nobody gets while the broker is down."""


class Operation(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One API call. ``handle`` names the producer or consumer it creates or uses, ``client`` the client instance.

    ``params`` are those of the verb in ``docs/adapter-contract.md``, plus for ``send``: ``tag`` (text that makes the
    payload unique) and ``size`` (bytes, padded from the tag) in place of a payload. ``wait=False`` starts the call and
    goes on; its completion is recorded when it comes. ``consume`` is a loop of receives with one disposition
    (``then``: ``ack`` | ``ack_cumulative`` | ``nack`` | ``hold``) up to ``count`` messages or ``timeout_ms`` of quiet.
    ``settle`` waits ``ms`` of this world's time. ``observe`` has the broker tell its own view of the session's topics.
    """

    verb: Verb
    handle: str = ""
    client: str = "a"
    params: dict[str, Any] = {}
    wait: bool = True


class Fault(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One injected fault: on the link of ``client``, on the broker's process, or by its admin service.

    ``toxic`` adds a Toxiproxy toxic (``toxic`` its type, ``stream`` upstream|downstream, ``attributes`` as Toxiproxy
    names them, toxicity always 1); ``untoxic`` removes all toxics of that type and stream; ``cut`` closes every
    connection now; ``refuse`` closes them and refuses new ones until ``restore``; ``dedup`` switches deduplication
    (``attributes: {"enabled": bool}``) where the system can. ``frame`` is reserved for faults placed on one frame.
    """

    kind: FaultKind
    client: str = "a"
    toxic: str = ""
    stream: Literal["", "upstream", "downstream"] = ""
    attributes: dict[str, Any] = {}
    frame: dict[str, Any] | None = None


class ScheduledFault(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A fault placed before the operation at position ``before`` (``len(operations)``: after the last)."""

    before: int
    fault: Fault


class Plan(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Operations and the schedule between them. Position order is the whole meaning; there are no clocks in a plan.

    ``topic_options``: ``dedup`` (whether the topics deduplicate from the start, default false) and ``partitions`` (how
    many topic 0 begins with, default none).
    """

    operations: list[Operation] = []
    schedule: list[ScheduledFault] = []
    topic_options: dict[str, Any] = {}

    @property
    def needs_alone(self) -> bool:
        """Whether it does something to the broker that every other session would feel."""
        return any(entry.fault.kind in PROCESS_FAULTS for entry in self.schedule)

    def steps(self) -> list[Operation | Fault]:
        """Operations and faults in the order in which they are carried out."""
        ordered: list[Operation | Fault] = []
        placed = sorted(self.schedule, key=lambda entry: entry.before)
        for position, operation in enumerate(self.operations):
            while placed and placed[0].before <= position:
                ordered.append(placed.pop(0).fault)
            ordered.append(operation)
        ordered.extend(entry.fault for entry in placed)
        return ordered
