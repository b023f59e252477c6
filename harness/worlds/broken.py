"""How a world tells that nothing more can be run in it; both are our own trouble, never the system's breach."""

from __future__ import annotations


class WorldBroken(RuntimeError):
    """A part of the world is gone for good (a process ended, the system no longer answers, the disk is full).

    Raised where a next session would be opened: all of them would tell the same.
    """


class WorldStopped(RuntimeError):
    """The world was stopped while a call was open (Ctrl-C): what the call would have told is not known."""


class SystemDied(RuntimeError):
    """The system under test ended or fell silent during a plan, through no fault of the schedule.

    Whoever ended it (a person, the kernel short of memory, itself): what a history says of a broker that is not there
    proves nothing about its promises.
    """


class SystemStaysDown(SystemDied):
    """The schedule took the broker away, and it did not come back; its last words are in the message."""
