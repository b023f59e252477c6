"""The shrinker: how small, how sensible, and that it obeys oracle and clock."""

import msgspec
from fake_world import failing_plan

from harness.shrink import from_steps, repaired, shrink
from harness.worlds.plan import Fault, Operation, Plan, ScheduledFault


def loses_a_send(plan: Plan) -> bool:
    steps = plan.steps()
    cuts = [place for place, step in enumerate(steps) if isinstance(step, Fault) and step.kind == "cut"]
    return any(isinstance(step, Operation) and step.verb == "send" for step in steps[cuts[0] :]) if cuts else False


def test_it_finds_the_three_steps_that_matter_and_drops_their_parameters() -> None:
    shrunk = shrink(failing_plan(), loses_a_send, lambda: False)
    assert shrunk.complete
    steps = shrunk.plan.steps()
    assert len(steps) == 3
    assert {step.verb if isinstance(step, Operation) else step.kind for step in steps} == {"producer", "cut", "send"}
    assert all(step.params == {} and step.wait for step in steps if isinstance(step, Operation))
    assert shrunk.plan.topic_options == {}


def test_every_plan_it_tries_is_sensible_and_new() -> None:
    seen: list[bytes] = []

    def oracle(plan: Plan) -> bool:
        assert repaired(plan.steps()) == plan.steps()
        seen.append(msgspec.json.encode(plan))
        return loses_a_send(plan)

    shrink(failing_plan(), oracle, lambda: False)
    assert len(seen) == len(set(seen))


def test_numbers_shrink_to_the_least_that_fails() -> None:
    plan = Plan(
        operations=[Operation(verb="consumer", handle="c"), Operation(verb="consume", handle="c", params={"count": 90})]
    )

    def oracle(plan: Plan) -> bool:
        return any(operation.params.get("count", 1) >= 17 for operation in plan.operations)

    assert shrink(plan, oracle, lambda: False).plan.operations[-1].params == {"count": 17}


def test_out_of_time_keeps_the_best_so_far() -> None:
    tries = 0

    def counted(plan: Plan) -> bool:
        nonlocal tries
        tries += 1
        return loses_a_send(plan)

    shrunk = shrink(failing_plan(), counted, lambda: tries >= 3)
    assert not shrunk.complete
    assert shrunk.tried == tries == 3
    assert loses_a_send(shrunk.plan)


def test_a_plan_nothing_smaller_of_which_fails_stays() -> None:
    shrunk = shrink(failing_plan(), lambda _: False, lambda: False)
    assert shrunk.plan == failing_plan()
    assert shrunk.complete


def test_steps_and_plan_are_two_views_of_one_thing() -> None:
    plan = failing_plan()
    assert from_steps(plan.steps(), plan.topic_options) == plan


def test_repair_takes_what_lost_its_ground() -> None:
    toxic = Fault(kind="toxic", toxic="latency", stream="upstream")
    untoxic = Fault(kind="untoxic", toxic="latency", stream="upstream")
    send = Operation(verb="send", handle="p0")
    settle = Operation(verb="settle")
    assert repaired([send, untoxic, settle, Fault(kind="restore")]) == [settle]
    producer = Operation(verb="producer", handle="p0")
    kept = [producer, toxic, send, untoxic, Fault(kind="refuse"), Fault(kind="restore")]
    assert repaired(kept) == kept
    assert ScheduledFault(before=1, fault=toxic) in from_steps(kept, {}).schedule
