"""What the events of the fault layer mean to a judge: whom they concern, what the broker forgets, when it works.

A fault is recorded before it takes hold and may be refused afterwards (``not_injected`` behind it), so none of them
proves that anything happened; each may only excuse. What is recorded once it is over (``broker_ready``) does prove it.
"""

from __future__ import annotations

from bisect import bisect_left

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

NETWORK = frozenset({"toxic", "cut", "refuse"})
"""The disturbances that do nothing to the broker itself."""


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


class Deletions:
    """The subscriptions of a topic that may have been deleted, known to a judge by then or not.

    A deletion is recorded before it takes hold: the first SUBSCRIBE of a subscription may come between the two.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._named: set[str | None] = set()

    def observe(self, event: Event) -> None:
        """Take a fault event."""
        if deletes(event, self._topic):
            self._named.add(event.subscription)

    def hit(self, subscription: str) -> bool:
        """Whether what was begun with the subscription may have been cut off by a deletion."""
        return not self._named.isdisjoint((None, subscription))


def evicts(event: Event) -> bool:
    """Whether the broker may skip what a subscription has not read: a backlog quota may say so (a legal loss)."""
    return event.layer == "fault" and event.kind == "backlog_quota"


class Interruptions:
    """When the broker's process was paused or away. A time without an end reaches to the end of the history."""

    def __init__(self) -> None:
        # In order and apart from each other; and how much of them there was up to the end of each.
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._lost: list[int] = []
        self._paused: int | None = None
        self._down: int | None = None

    def observe(self, event: Event) -> None:
        """Take a fault event."""
        if event.kind == "broker_pause" and self._paused is None:
            self._paused = event.time_ns
        elif event.kind in ("broker_kill", "broker_stop") and self._down is None:
            self._down = event.time_ns
        elif event.kind == "broker_resume" and self._paused is not None:
            self._over(self._paused, event.time_ns)
            self._paused = None
        elif event.kind == "broker_ready":
            began = [since for since in (self._paused, self._down) if since is not None]
            if began:
                self._over(min(began), event.time_ns)
            self._paused = self._down = None

    def _over(self, begin: int, end: int) -> None:
        # One that was paused while it was on its way down, or the other way round, was away once.
        while self._ends and self._ends[-1] >= begin:
            begin = min(begin, self._begins.pop())
            end = max(end, self._ends.pop())
            self._lost.pop()
        self._lost.append((self._lost[-1] if self._lost else 0) + end - begin)
        self._begins.append(begin)
        self._ends.append(end)

    def worked(self, since_ns: int, until_ns: int) -> int:
        """For how long (ns) of that time the broker could work; never negative. Parts that overlap count once."""
        # While it is away until nobody knows when, it works no more.
        until_ns = min([until_ns, *(one for one in (self._paused, self._down) if one is not None)])
        if until_ns <= since_ns:
            return 0
        return until_ns - since_ns - (self._away_before(until_ns) - self._away_before(since_ns))

    def _away_before(self, moment_ns: int) -> int:
        """For how long (ns) it was away before that moment, as far as that is over."""
        place = bisect_left(self._ends, moment_ns)
        before = self._lost[place - 1] if place else 0
        if place < len(self._begins):
            before += max(0, moment_ns - self._begins[place])
        return before
