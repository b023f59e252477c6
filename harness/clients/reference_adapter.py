"""The reference client as an adapter process: ``python -m harness.clients.reference_adapter [--ack-receipt]``.

The same machine as in-process, so that what holds for a child process can be tested on a client that we know.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any, BinaryIO

import msgspec

from harness.clients.client import MALFORMED
from harness.clients.reference import MachinePump
from harness.reference.client.config import ClientConfig
from harness.reference.client.machine import ClientMachine

#: Longest line that is read: a payload of tens of megabytes in base64.
MAX_LINE = 128 * 1024 * 1024


async def serve(config: ClientConfig, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer the lines of ``requests`` on ``answers`` until they end; then close every client."""

    def write(message: dict[str, Any]) -> None:
        answers.write(msgspec.json.encode(message) + b"\n")
        answers.flush()

    clients: list[str] = []
    closing: dict[int, asyncio.Future[None]] = {}

    def answered(message: dict[str, Any]) -> None:
        done = closing.pop(message["id"], None) if isinstance(message["id"], int) else None
        if done is None:
            write(message)
        elif not done.done():
            done.set_result(None)

    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), requests)
    pump = MachinePump(ClientMachine(config), answered)
    while line := await reader.readline():
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            write({"id": None, "error": {"kind": MALFORMED, "message": str(error)}})
            continue
        if isinstance(message, dict) and message.get("op") == "client" and isinstance(message.get("client"), str):
            clients.append(message["client"])
        pump.request(message)
    # The contract's ids are the driver's; negative ones cannot meet them.
    for number, client in enumerate(dict.fromkeys(clients), start=1):
        closing[-number] = loop.create_future()
        pump.request({"id": -number, "op": "close", "client": client})
    if closing:
        await asyncio.wait(list(closing.values()), timeout=config.operation_timeout / 1e9)
    await pump.stop()


def main() -> None:
    """Serve standard input and output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ack-receipt", action="store_true", help="ask the broker to confirm acknowledgements")
    config = ClientConfig(ack_receipt=parser.parse_args().ack_receipt)
    asyncio.run(serve(config, sys.stdin.buffer, sys.stdout.buffer))


if __name__ == "__main__":
    main()
