"""Which folds an event can concern at all, by its layer and kind, so that the others are not asked about every event.

Found by asking the invariant itself about events that have every column and events that have none
(``Invariant.key``, ``Invariant.broadcast``: their answers may depend on nothing else).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from harness.history.event import Event, Layer
from harness.invariants.core import Invariant

FULL: dict[str, Any] = {
    "topic": "persistent://public/default/t",
    "subscription": "s",
    "producer": "p",
    "consumer": "c",
    "actor": "a",
    "connection": "client-1",
}


@lru_cache(maxsize=4096)
def may_have_key(invariant: Invariant[Any], layer: str, kind: str) -> bool:
    """Whether an event of this layer and kind can have a key."""
    return any(invariant.key(event) is not None for event in _probes(layer, kind))


@lru_cache(maxsize=4096)
def may_broadcast(invariant: Invariant[Any], layer: str, kind: str) -> bool:
    """Whether an event of this layer and kind can be a broadcast."""
    return any(invariant.broadcast(event) for event in _probes(layer, kind))


@lru_cache(maxsize=4096)
def _probes(layer: str, kind: str) -> list[Event]:
    named = cast(Layer, layer)
    return [
        Event(layer=named, kind=kind, **columns)
        for columns in (FULL, {}, *({key: value for key, value in FULL.items() if key != gone} for gone in FULL))
    ]
