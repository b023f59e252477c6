"""Which events break the event contract, so that what is concluded with their help would be the recorder's fault.

Only columns are asked for that every recorder can fill, whatever client and broker do. The names of a frame whose
producer or consumer the tap has not met are missing by right, and so is a number of a frame that was -1 on the wire:
that is a breach to be judged, not damage.
"""

from __future__ import annotations

from harness.history.event import Event

_PRODUCER = ("op", "topic", "producer")
_CONSUMER = ("op", "topic", "subscription", "consumer")
_API: dict[str, tuple[str, ...]] = {
    "producer": _PRODUCER,
    "send": _PRODUCER,
    "flush": _PRODUCER,
    "consumer": _CONSUMER,
    "receive": _CONSUMER,
    "ack": _CONSUMER,
    "ack_cumulative": _CONSUMER,
    "nack": _CONSUMER,
    "seek": ("op", "subscription", "consumer"),
    "unsubscribe": ("op",),
    "close": ("op",),
}


def damaged(event: Event) -> bool:
    """Whether a column that ``docs/history.md`` asks of each event of this layer and kind is missing."""
    if event.layer == "api":
        wanted = _API.get(event.kind, ())
        # The payload is what joins a send to its frames and to what is received.
        if event.kind == "send" and event.phase == "invoke" and event.payload_digest is None:
            return True
    elif event.layer in ("tap.client", "tap.broker"):
        if event.kind == "SEND_RECEIPT" and (event.ledger_id is None) != (event.entry_id is None):
            return True
        wanted = ("connection", "permits") if event.kind == "FLOW" else ("connection",)
    else:
        wanted = ("topic",) if event.layer == "log" else ()
    return any(getattr(event, column) is None for column in wanted)
