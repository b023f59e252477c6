"""What the events of the fault layer mean to a judge: whom they concern, what the broker forgets, when it works.

A fault is recorded before it takes hold and may be refused afterwards (``not_injected`` behind it), so none of them
proves that anything happened; each may only excuse. What is recorded once it is over (``broker_ready``) does prove it.
"""

from __future__ import annotations

from harness.history.event import Event

HARMLESS = frozenset({"dedup", "healed", "quiescent", "not_injected"})
"""Nothing is in anybody's way because of these."""

RESTORING = frozenset({"broker_ready", "broker_resume"})
"""The end of what an earlier event began: recorded once the broker works again."""

GRACEFUL = frozenset({"broker_stop", "unload", "unload_namespace"})
"""The topic is given up in good order: what was confirmed or acknowledged is kept, what a dispatcher knew is not."""

RELOADS = GRACEFUL | {"broker_kill", "broker_ready"}
"""Around these a broker forgets what it keeps of a topic in memory: consumers, who holds what, redelivery counts."""

PROCESS = frozenset({"broker_kill", "broker_stop", "broker_pause", "broker_resume", "broker_ready"})

DISTURBANCES = (
    RELOADS
    | PROCESS
    | {
        "toxic",
        "cut",
        "refuse",
        "dedup",
        "terminate",
        "delete_subscription",
        "grow_partitions",
        "backlog_quota",
        "ledger_rollover",
        "max_message_size",
    }
)
"""What can make an operation fail or wait, or change what is stored; ``untoxic`` and ``restore`` only undo."""


def concerns(event: Event, topic: str) -> bool:
    """Whether a fault event is about this topic: broker-wide ones are, and one about all partitions of it is."""
    named = event.topic
    return named is None or named == topic or topic.startswith(f"{named}-partition-")


def reloads(event: Event, topic: str) -> bool:
    """Whether the topic may be given up and taken again, or was, with this event."""
    return event.layer == "fault" and event.kind in RELOADS and concerns(event, topic)


def kills(event: Event) -> bool:
    """The broker's process dies: what it had not written is gone."""
    return event.layer == "fault" and event.kind == "broker_kill"


def deletes(event: Event, topic: str, subscription: str | None = None) -> bool:
    """Whether the subscription may be deleted with all it remembers; without a name: any of the topic."""
    return (
        event.layer == "fault"
        and event.kind == "delete_subscription"
        and concerns(event, topic)
        and (subscription is None or event.subscription in (None, subscription))
    )


def evicts(event: Event) -> bool:
    """Whether the broker may skip what a subscription has not read: a backlog quota may say so (a legal loss)."""
    return event.layer == "fault" and event.kind == "backlog_quota"


class Interruptions:
    """When the broker's process was paused or away. A time without an end reaches to the end of the history."""

    def __init__(self) -> None:
        self._over: list[tuple[int, int]] = []
        self._paused: int | None = None
        self._down: int | None = None

    def observe(self, event: Event) -> None:
        """Take a fault event."""
        if event.kind == "broker_pause" and self._paused is None:
            self._paused = event.time_ns
        elif event.kind in ("broker_kill", "broker_stop") and self._down is None:
            self._down = event.time_ns
        elif event.kind == "broker_resume" and self._paused is not None:
            self._over.append((self._paused, event.time_ns))
            self._paused = None
        elif event.kind == "broker_ready":
            began = [since for since in (self._paused, self._down) if since is not None]
            if began:
                self._over.append((min(began), event.time_ns))
            self._paused = self._down = None

    def worked(self, since_ns: int, until_ns: int) -> int:
        """For how long (ns) of that time the broker could work; never negative. Parts that overlap count once."""
        if until_ns <= since_ns:
            return 0
        away = sorted(
            (max(begin, since_ns), min(end, until_ns))
            for begin, end in (*self._over, *((one, until_ns) for one in (self._paused, self._down) if one is not None))
            if begin < until_ns and end > since_ns
        )
        lost, reached = 0, since_ns
        for begin, end in away:
            lost += max(0, end - max(begin, reached))
            reached = max(reached, end)
        return until_ns - since_ns - lost
