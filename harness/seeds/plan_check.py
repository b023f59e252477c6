"""Whether a plan from a file can be carried out as it says, before anything is started for it.

A driver ignores what it does not know or breaks on it in the middle; either would be told as if the system had been
tried. Handles that nobody creates are allowed: shrinking leaves such steps, and the driver records that it skips them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from harness.clients.requests import AnyRequest
from harness.faults.toxics import TOXICS, BadToxic, checked
from harness.worlds.audit import SUBSCRIPTION
from harness.worlds.fault_attributes import LARGEST_MESSAGE, MOST_PARTITIONS, TYPES, BadAttributes, attributes_of
from harness.worlds.plan import Fault, Operation, Plan, Verb

CLIENTS = ("a", "b")
LONGEST_WAIT_MS = 24 * 3600 * 1000
MOST_MESSAGES = 100_000
_LARGEST = 2**63 - 1
_AUDITORS = f"{SUBSCRIPTION} is the auditor's, without which nothing could be read back"

_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_WAIT_MS)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_MESSAGES)]


class BadPlan(ValueError):
    """The message names the step and what is wrong with it."""


class _Params(msgspec.Struct, forbid_unknown_fields=True):
    """None at all."""


class _Producer(_Params):
    topic: int | str = 0
    name: str = ""


class _Consumer(_Params):
    topic: int | str = 0
    subscription: str = "s"
    type: str = "exclusive"


class _Send(_Params):
    tag: int | str = ""
    size: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_MESSAGE)] = 0
    compressible: bool = False


class _Receive(_Params):
    timeout_ms: _Milliseconds = 0


class _Consume(_Params):
    then: Literal["ack", "ack_cumulative", "nack", "hold"] = "ack"
    count: _Count = 1
    timeout_ms: _Milliseconds = 0


class _Message(_Params):
    message: _Count = 0


class _Seek(_Params):
    message: _Count = 0
    position: Literal["earliest", "latest"] = "earliest"
    publish_time: int = 0


class _Settle(_Params):
    ms: _Milliseconds = 0


_OWN: dict[Verb, type[_Params]] = {
    "producer": _Producer,
    "consumer": _Consumer,
    "send": _Send,
    "flush": _Params,
    "receive": _Receive,
    "consume": _Consume,
    "ack": _Message,
    "ack_cumulative": _Message,
    "nack": _Message,
    "seek": _Seek,
    "unsubscribe": _Params,
    "close": _Params,
    "settle": _Settle,
    "observe": _Params,
}
"""What the driver itself reads; everything else of these verbs goes into the request of the adapter contract."""

_REQUESTS: dict[Verb, dict[str, Any]] = {
    "producer": {"client": "", "producer": "", "topic": "", "name": ""},
    "consumer": {"client": "", "consumer": "", "topic": "", "subscription": "", "name": "", "type": "exclusive"},
    "send": {"producer": "", "payload": ""},
}


def check_plan(plan: Plan) -> None:
    """Raises ``BadPlan`` for the first step that cannot be carried out."""
    for number, operation in enumerate(plan.operations, start=1):
        place = f"operation {number} ({operation.verb} {operation.handle})"
        if operation.client not in CLIENTS:
            raise BadPlan(f"{place}: there is no client {operation.client!r}; there are {', '.join(CLIENTS)}")
        _check_params(operation, place)
    for number, entry in enumerate(plan.schedule, start=1):
        _check_fault(entry.fault, f"fault {number} ({entry.fault.kind})")
    for name, value in plan.topic_options.items():
        _check_topic_option(name, value)


def _check_topic_option(name: str, value: Any) -> None:
    if name == "dedup" and isinstance(value, bool):
        return
    if (
        name == "partitions"
        and isinstance(value, int)
        and not isinstance(value, bool)
        and 1 <= value <= MOST_PARTITIONS
    ):
        return
    raise BadPlan(
        f"topic_options may hold dedup (true or false) and partitions (1 to {MOST_PARTITIONS}), not {name}: {value!r}"
    )


def _check_params(operation: Operation, place: str) -> None:
    own = _OWN[operation.verb]
    request = _REQUESTS.get(operation.verb)
    mine = {name: value for name, value in operation.params.items() if request is None or name in own.__struct_fields__}
    theirs = {name: value for name, value in operation.params.items() if name not in mine}
    if problem := next(_too_large(operation.params), ""):
        raise BadPlan(f"{place}: {problem}")
    if operation.verb == "consumer" and mine.get("subscription") == SUBSCRIPTION:
        raise BadPlan(f"{place}: {_AUDITORS}")
    try:
        msgspec.convert(mine, own)
        if request is not None:
            kind = {"type": mine["type"]} if "type" in mine else {}
            policy = theirs.get("dead_letter")
            if isinstance(policy, dict):
                # Without a topic the driver names the default one.
                theirs["dead_letter"] = {"topic": "", **policy}
            msgspec.convert({**request, **kind, **theirs, "op": operation.verb, "id": 1}, AnyRequest)
    except msgspec.ValidationError as error:
        raise BadPlan(f"{place}: {error}") from error


def _too_large(value: Any) -> Iterator[str]:
    """What is wrong with the numbers somewhere in a value: all that is sent has at most 64 bits."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _too_large(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _too_large(inner)
    elif isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        yield f"the number {value} has more than 64 bits"


def _check_fault(fault: Fault, place: str) -> None:
    if fault.client not in CLIENTS:
        raise BadPlan(f"{place}: there is no client {fault.client!r}; there are {', '.join(CLIENTS)}")
    if fault.frame is not None:
        raise BadPlan(f"{place}: this version places no faults on frames")
    try:
        if fault.kind == "toxic":
            checked(fault.toxic, fault.stream, fault.attributes)
        elif fault.kind == "untoxic" and (fault.toxic not in TOXICS or not fault.stream):
            raise BadPlan(f"{place}: names the toxic {fault.toxic!r} and the stream {fault.stream!r}; both are needed")
        elif fault.kind in TYPES:
            _check_attributes(fault, place)
    except BadToxic as error:
        raise BadPlan(f"{place}: {error}") from error


def _check_attributes(fault: Fault, place: str) -> None:
    """Those of a fault that reaches the broker itself."""
    if fault.toxic or fault.stream:
        raise BadPlan(f"{place}: a toxic and a stream belong to the kinds toxic and untoxic only")
    try:
        attributes_of(fault)
    except BadAttributes as error:
        raise BadPlan(f"{place}: {error}") from error
    if fault.kind == "delete_subscription" and fault.attributes["subscription"] == SUBSCRIPTION:
        raise BadPlan(f"{place}: {_AUDITORS}")
