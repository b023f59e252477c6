"""What the state machines of all families share: rules build a plan and carry it out step by step.

Draws depend only on what was asked before, never on what came back: a rule looks at the handles the plan made and at
how many messages it sent, not at receipts or deliveries. The outcome is judged on the history, in ``teardown``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

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

RESTLESS_ONE_IN = 40
"""Examples of which one restarts the broker, under wall time: it costs seconds, and nobody else can go on meanwhile."""

DISRUPTION = st.sampled_from(range(RESTLESS_ONE_IN))
"""Drawn at the start of each example, see ``FamilyMachine.begin``."""

CALM_BELOW = {True: RESTLESS_ONE_IN - RESTLESS_ONE_IN // 5, False: RESTLESS_ONE_IN - 1}
"""From which draw on an example restarts the broker; by whether the world is quick with it."""


def may_disrupt(machine: FamilyMachine) -> bool:
    """Whether the example has the broker for itself."""
    return machine.restless


def has_admin(machine: FamilyMachine) -> bool:
    """Whether the system has an admin service that could be told anything."""
    return "admin" in machine.world.system.capabilities


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
        self.restless = False

    # --- what rules use ------------------------------------------------------------------------------------------

    def begin(self, disruption: int, **topic_options: Any) -> None:
        """Open the session; called by each family's initialize rule, which draws the topic's options.

        ``disruption`` is drawn from ``DISRUPTION``: some examples have the broker for themselves, and restart it. In a
        world of one lane, which has no wall time, a restart costs nothing.
        """
        self.plan.topic_options = topic_options
        able = "process_faults" in self.world.system.capabilities
        self.restless = able and disruption >= CALM_BELOW[self.world.lanes == 1]
        self.session = self.world.open(self.plan, alone=self.restless)

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

    # --- faults of the broker itself -----------------------------------------------------------------------------

    @precondition(may_disrupt)
    @rule(kind=st.sampled_from(["broker_kill", "broker_kill", "broker_stop"]), settle=st.sampled_from([0, 0, 300]))
    def restart(self, kind: str, settle: int) -> None:
        """Down and up again, with traffic under way and in the meantime."""
        self.busy()
        if settle:
            self.do("settle", "", ms=settle)
        self.inject(kind)
        self.busy()
        self.inject("broker_start")

    @precondition(may_disrupt)
    @rule(ms=st.sampled_from([200, 1_500]))
    def pause(self, ms: int) -> None:
        self.busy()
        self.inject("broker_pause", ms=ms)
        self.busy()
        self.do("settle", "", ms=ms + 100)

    @precondition(has_admin)
    @rule(kind=st.sampled_from(["unload", "unload", "unload_namespace"]))
    def unload(self, kind: str) -> None:
        self.busy()
        self.inject(kind)
        self.busy()

    @precondition(has_admin)
    @rule()
    def observe(self) -> None:
        self.do("observe", "")

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
