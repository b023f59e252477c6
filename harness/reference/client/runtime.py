"""What every piece of a machine works with, and the answer a request gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.reference.client.config import ClientConfig
from harness.reference.client.failure import Failure
from harness.reference.client.timers import Timer, Timers
from harness.reference.outputs import Answer, ClientOutput

if TYPE_CHECKING:
    from harness.reference.client.parts import ClientParts


class Step:
    """What all parts of one machine share: the time of the step being taken, timers, outputs, connection numbers."""

    def __init__(self) -> None:
        self.now = 0
        self.timers = Timers()
        self.outputs: list[ClientOutput] = []
        self.connections = 0


class Runtime:
    """A view of the step for one client handle, with that handle's configuration."""

    def __init__(self, config: ClientConfig, parts: ClientParts, step: Step) -> None:
        self.config = config
        self.parts = parts
        self._step = step

    @property
    def now(self) -> int:
        """Nanoseconds."""
        return self._step.now

    @property
    def timers(self) -> Timers:
        """Deadlines of the machine."""
        return self._step.timers

    def emit(self, output: ClientOutput) -> None:
        """Ask for ``output``, after everything asked before."""
        self._step.outputs.append(output)

    def after(self, delay: int, action: Callable[[], None]) -> Timer:
        """Run ``action`` in ``delay`` nanoseconds."""
        return self.timers.at(self.now + delay, action)

    def new_connection_id(self) -> int:
        """A connection number that was never used."""
        self._step.connections += 1
        return self._step.connections


class Reply:
    """The one answer a request gets. A second one is a defect of the machine and raises ``RuntimeError``."""

    __slots__ = ("_step", "done", "request_id")

    def __init__(self, step: Step, request_id: int) -> None:
        self._step = step
        self.request_id = request_id
        self.done = False

    def ok(self, result: dict[str, Any]) -> None:
        """It happened."""
        self._answer({"id": self.request_id, "ok": result})

    def fail(self, failure: Failure) -> None:
        """It did not happen, or nobody knows (``failure.kind`` says which)."""
        self._answer({"id": self.request_id, "error": {"kind": failure.kind, "message": failure.message}})

    def _answer(self, message: dict[str, Any]) -> None:
        if self.done:
            raise RuntimeError(f"request {self.request_id} was answered twice: {message}")
        self.done = True
        self._step.outputs.append(Answer(message))
