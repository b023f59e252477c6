"""What the state machines of all families share: rules build a plan and carry it out step by step.

Draws depend only on what was asked before, never on what came back: a rule looks at the handles the plan made and at
how many messages it sent, not at receipts or deliveries. The outcome is judged on the history, in ``teardown``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from harness.worlds.plan import Fault, Operation, Plan, ScheduledFault
from harness.worlds.world import Outcome, Session, World

Conclude = Callable[[Plan, Outcome], None]

Toxic = tuple[str, dict[str, Any]]


def _toxic(kind: str, **attributes: st.SearchStrategy[int]) -> st.SearchStrategy[Toxic]:
    return st.tuples(st.just(kind), st.fixed_dictionaries(attributes))


# No lambdas in strategies and preconditions: Hypothesis parses the source of each to describe it, and families are
# drawn in several threads (see `bind`).
SOFT_TOXICS = st.one_of(
    _toxic("latency", latency=st.integers(1, 60), jitter=st.just(0)),
    _toxic("bandwidth", rate=st.integers(200, 20_000)),
    _toxic("slicer", average_size=st.integers(1, 400), size_variation=st.just(0), delay=st.just(0)),
    _toxic("slow_close", delay=st.integers(1, 50)),
)
"""Toxics under which everything still arrives, only late or in pieces."""

HARD_TOXICS = st.one_of(
    _toxic("limit_data", bytes=st.integers(0, 4_000)),
    _toxic("timeout", timeout=st.just(0)),
    _toxic("reset_peer", timeout=st.integers(0, 20)),
)
"""Toxics that lose data and end connections."""

STREAMS = st.sampled_from(["upstream", "downstream"])


class FamilyMachine(RuleBasedStateMachine):
    """Base of the families. ``world`` and ``conclude`` are bound by :func:`bind` before Hypothesis makes instances."""

    family: ClassVar[str]
    world: ClassVar[World]
    conclude: ClassVar[Conclude]

    def __init__(self) -> None:
        super().__init__()
        self.plan = Plan()
        self.session: Session | None = None
        self.sent = 0
        self.softened = False

    # --- what rules use ------------------------------------------------------------------------------------------

    def begin(self, **topic_options: Any) -> None:
        """Open the session; called by each family's initialize rule, which draws the topic's options."""
        self.plan.topic_options = topic_options
        self.session = self.world.open(self.plan)

    def do(self, verb: Any, handle: str, *, client: Any = "a", wait: Any = True, **params: Any) -> None:
        """Append an operation to the plan and carry it out."""
        operation = Operation(verb=verb, handle=handle, client=client, params=params, wait=wait)
        self.plan.operations.append(operation)
        if verb == "send":
            self.sent += 1
        assert self.session is not None
        self.session.perform(operation)

    def inject(self, kind: Any, *, client: str = "a", toxic: str = "", stream: Any = "", **attributes: Any) -> None:
        """Append a fault to the schedule at this place and carry it out."""
        fault = Fault(kind=kind, client=client, toxic=toxic, stream=stream, attributes=attributes)
        self.plan.schedule.append(ScheduledFault(before=len(self.plan.operations), fault=fault))
        assert self.session is not None
        self.session.perform(fault)

    def teardown(self) -> None:
        if self.session is not None:
            outcome = self.session.finish()
            type(self).conclude(self.plan, outcome)

    # --- faults every family meets -------------------------------------------------------------------------------

    @rule()
    def cut(self) -> None:
        self.inject("cut")

    @rule(toxic=SOFT_TOXICS, stream=STREAMS)
    def soften(self, toxic: Toxic, stream: str) -> None:
        kind, attributes = toxic
        self.softened = True
        self.inject("toxic", toxic=kind, stream=stream, **attributes)

    @rule(ms=st.integers(1, 40))
    def outage(self, ms: int) -> None:
        """Refuse connections for a moment, with traffic going on in the meantime."""
        self.inject("refuse")
        self.busy()
        self.do("settle", "", ms=ms)
        self.inject("restore")

    @rule(toxic=HARD_TOXICS, stream=STREAMS, ms=st.integers(1, 60))
    def harm(self, toxic: Toxic, stream: str, ms: int) -> None:
        """A toxic that loses data, with traffic under it, taken away again."""
        kind, attributes = toxic
        self.inject("toxic", toxic=kind, stream=stream, **attributes)
        self.busy()
        self.do("settle", "", ms=ms)
        self.inject("untoxic", toxic=kind, stream=stream)

    def produce(self, handle: str, **options: Any) -> None:
        """A new producer with one message acknowledged.

        Clients on the C++ core count anew when they reconnect before their first receipt (PROD-05); drawn at random,
        that one defect would hide the others. Plans in ``fixtures/plans/ci`` aim at it.
        """
        self.do("producer", handle, topic=0, **options)
        self.do("send", handle, tag="first", size=20)

    def busy(self) -> None:
        """A little traffic that nobody waits for, in the way of this family."""


def bind(machine: type[FamilyMachine], world: World, conclude: Conclude) -> type[FamilyMachine]:
    """The machine class for one world and one way to conclude; Hypothesis makes an instance for each example."""
    bound = type(machine.__name__, (machine,), {"world": world, "conclude": staticmethod(conclude)})
    # Hypothesis wants the source of the class. Finding it parses the module, and parsing in several threads at once
    # breaks in CPython before 3.11.9 and 3.12.3 (gh-106905: "AST constructor recursion depth mismatch"); where a class
    # has no source its name serves.
    bound.__module__ = f"{machine.__module__} bound to {world.system.name} and {world.client.name}"
    return bound
