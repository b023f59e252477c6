"""The toxics of Toxiproxy 2.12: which attributes each takes, and within what range.

The server ignores an attribute it does not know and refuses a float with an answer that names nothing, so a misspelt
fault would silently be no fault at all. All times are milliseconds, sizes bytes, ``rate`` is kB/s of 1000 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from harness.faults.toxiproxy_error import ToxiproxyError

Stream = Literal["upstream", "downstream"]
STREAMS: tuple[str, ...] = get_args(Stream)

_MOST = 2**31 - 1
_Range = tuple[int, int]

TOXICS: Mapping[str, Mapping[str, _Range]] = {
    "latency": {"latency": (0, _MOST), "jitter": (0, _MOST)},
    "bandwidth": {"rate": (0, _MOST)},
    "slow_close": {"delay": (0, _MOST)},
    "timeout": {"timeout": (0, _MOST)},
    "slicer": {"average_size": (1, _MOST), "size_variation": (0, _MOST), "delay": (0, _MOST)},
    "limit_data": {"bytes": (0, _MOST)},
    "reset_peer": {"timeout": (0, _MOST)},
}
"""Lowest and highest value of each attribute. ``slicer.delay`` is in microseconds. ``bandwidth.rate`` 0 stalls."""


class BadToxic(ToxiproxyError):
    """A toxic, stream or attribute that Toxiproxy does not have, or a value outside its range."""


def checked(kind: str, stream: str, attributes: Mapping[str, Any]) -> dict[str, int]:
    """All attributes of the toxic, those not given as 0, as the server takes them. Raises ``BadToxic``."""
    known = TOXICS.get(kind)
    if known is None:
        raise BadToxic(f"no toxic {kind!r}; there are {', '.join(TOXICS)}")
    if stream not in STREAMS:
        raise BadToxic(f"{kind}: stream {stream!r} is neither upstream nor downstream")
    for name, value in attributes.items():
        if name not in known:
            raise BadToxic(f"{kind} has no attribute {name!r}; it has {', '.join(known)}")
        low, high = known[name]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise BadToxic(f"{kind}.{name} must be an integer from {low} to {high}, not {value!r}")
    complete = {name: attributes.get(name, 0) for name in known}
    # With a variation of the average or more, the server's arithmetic yields slices without bytes, or panics.
    if kind == "slicer" and complete["size_variation"] >= complete["average_size"]:
        raise BadToxic("slicer: size_variation must be smaller than average_size, which must be given")
    return complete
