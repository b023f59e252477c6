"""An adapter's end of the contract: requests from stdin, answers to a stdout nobody else can write to."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

from harness.clients.requests import AnyRequest, MalformedRequest, parse


class AdapterChannel:
    """Owns file descriptors 0 and 1 of this process.

    Descriptor 1 is pointed at stderr and the real stdout kept to ourselves: the C++ library logs to descriptor 1 while
    it starts and while it is torn down, whatever logger it was given, and one such line would corrupt the protocol.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()

    def requests(self) -> Iterator[AnyRequest]:
        """Requests in the order they were written, until stdin ends. What is none of them is answered here."""
        for line in sys.stdin.buffer:
            if not line.strip():
                continue
            try:
                request = parse(line)
            except MalformedRequest as error:
                self.fail(error.id, "malformed", str(error))
            else:
                yield request

    def answer(self, id: int, ok: dict[str, Any]) -> None:
        """Answer a request. Callable from any thread, the client's own among them."""
        self._write({"id": id, "ok": ok})

    def fail(self, id: int | None, kind: str, message: str) -> None:
        """Answer a request with an error kind of the contract."""
        self._write({"id": id, "error": {"kind": kind, "message": message}})

    def _write(self, message: dict[str, Any]) -> None:
        rest = memoryview(self._encoder.encode(message) + b"\n")
        with self._lock:
            try:
                while rest:
                    rest = rest[self._out.write(rest) :]
            except BrokenPipeError:
                # The driver has gone without closing stdin first; the end of stdin is about to end us in order.
                return
