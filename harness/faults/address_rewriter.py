"""Passes a broker's bytes on as they come, and holds back only the frames that name an address, to put ours in."""

from __future__ import annotations

from harness.wire.frame import decode, encode
from harness.wire.lookup import first_bytes_may_need_rewrite, rewrite_lookup

_SIZE_BYTES = 4


class AddressRewriter:
    """One direction of one connection. Feed it only bytes that a ``FrameDecoder`` has taken without ``WireError``.

    At most ten bytes of a frame wait for the rest of it, unless it may name an address (clause LOOKUP-04).
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._held = bytearray()
        self._passing = 0
        """Bytes still to come of a frame that is being passed on."""

    def feed(self, data: bytes) -> bytes:
        """What may be forwarded now."""
        out = bytearray()
        if self._passing:
            out += data[: self._passing]
            data, self._passing = data[self._passing :], max(0, self._passing - len(data))
        self._held += data
        at = 0
        while at < len(self._held):
            hold = first_bytes_may_need_rewrite(bytes(self._held[at : at + 16]))
            if hold is None:
                break
            size = _SIZE_BYTES + int.from_bytes(self._held[at : at + _SIZE_BYTES], "big")
            end = at + size
            if hold and end > len(self._held):
                break
            here = bytes(self._held[at:end])
            if hold:
                frame = decode(here)
                changed = rewrite_lookup(frame, self._url)
                out += here if changed is frame else encode(changed)
            else:
                out += here
                self._passing = size - len(here)
            at += min(size, len(here))
        del self._held[:at]
        return bytes(out)

    def flush(self) -> bytes:
        """What was held back, as it came: the stream has ended or is no stream of frames."""
        held = bytes(self._held)
        self._held.clear()
        return held
