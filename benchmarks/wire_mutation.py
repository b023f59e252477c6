"""Mutated frames raise nothing but ``WireError``: ``python -m benchmarks.wire_mutation --frames 1000000 --seed 1``.

Starts from the captured frames in ``fixtures/golden``, damages them at random, and gives them to everything that reads
frames: decoder, payload, batch, tracker, address rewriting and encoder. Any other exception ends the run with exit
code 1 and the frame in hex.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import crc32c

from harness.faults.session_tracker import SessionTracker
from harness.wire.frame import FrameDecoder, WireError, encode
from harness.wire.lookup import first_bytes_may_need_rewrite, rewrite_lookup
from harness.wire.message import application_payload, batch_members
from harness.wire.message_id import Position
from harness.wire.pulsar_pb2 import BaseCommand, BrokerEntryMetadata
from tests.golden_capture import CAPTURES, frames

_INTERESTING = (b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\x0e\x01", b"\x0e\x02", b"\xff\xff\xff\xff", b"\x00" * 4)


def corpus(largest: int = 4096) -> list[bytes]:
    """Captured frames of at most ``largest`` bytes, each once; the same list every time.

    Frames with a message come several times, since there is most to injure in them: as they were captured, and with
    broker entry metadata and a checksum, neither of which the captured broker writes.
    """
    found: dict[bytes, None] = {}
    with_message: dict[bytes, None] = {}
    for name in CAPTURES:
        for _, _, frame in frames(name):
            if frame.raw is None or len(frame.raw) > largest:
                continue
            found[frame.raw] = None
            if frame.metadata is not None:
                with_message[frame.raw] = None
                broker_metadata = BrokerEntryMetadata(broker_timestamp=1_700_000_000_000, index=7)
                with_message[encode(replace(frame, broker_metadata=broker_metadata))] = None
    return [*found, *with_message, *with_message]


def mutate(raw: bytes, choose: random.Random) -> bytes:
    """``raw`` with one to four injuries; half of the results get sizes and checksum that fit again, to reach deeper."""
    data = bytearray(raw)
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(len(data) + 1)
        injury = choose.randrange(5)
        if injury == 0 and at < len(data):
            data[at] ^= 1 << choose.randrange(8)
        elif injury == 1:
            piece = choose.choice(_INTERESTING)
            data[at : at + len(piece)] = piece
        elif injury == 2:
            data[at:at] = choose.randbytes(choose.randint(1, 8))
        elif injury == 3:
            del data[at : at + choose.randint(1, 8)]
        else:
            source = choose.randrange(len(data) + 1)
            data[at:at] = data[source : source + choose.randint(1, 16)]
    return _refitted(data, raw) if choose.random() < 0.5 else bytes(data)


def _refitted(data: bytearray, original: bytes) -> bytes:
    if len(data) < 8:
        return bytes(data)
    data[0:4] = (len(data) - 4).to_bytes(4, "big")
    if int.from_bytes(original[4:8], "big") == len(original) - 8:
        data[4:8] = (len(data) - 8).to_bytes(4, "big")
    magic = 8 + int.from_bytes(data[4:8], "big")
    if data[magic : magic + 2] == b"\x0e\x01":
        data[magic + 2 : magic + 6] = crc32c.crc32c(bytes(data[magic + 6 :])).to_bytes(4, "big")
    return bytes(data)


def examine(data: bytes, tracker: SessionTracker) -> str:
    """Reads ``data`` in every way there is. Returns ``read``, ``partial`` or the kind of wire error."""
    first_bytes_may_need_rewrite(data[:10])
    decoder = FrameDecoder()
    try:
        decoded = decoder.feed(data)
    except WireError as error:
        decoded = list(error.frames)
        json.dumps(tracker.wire_error(error, "to_broker"))
        outcome: str = error.kind
    else:
        outcome = "partial" if decoder.buffered else "read"
    for frame in decoded:
        json.dumps(tracker.frame(frame, "to_broker"))
        json.dumps(tracker.frame(frame, "to_client"))
        rewritten = rewrite_lookup(frame, "pulsar://127.0.0.1:1")
        if frame.command.type in (BaseCommand.SEND, BaseCommand.MESSAGE):
            try:
                application_payload(frame)
                batch_members(frame)
            except WireError:
                pass
        if frame.command.HasField("send_receipt"):
            Position.read(frame.command.send_receipt.message_id)
        if frame.metadata is not None or not frame.payload:
            encode(rewritten)
    return outcome


def run(count: int, seed: int) -> Counter[str]:
    """Outcomes of ``count`` mutated frames; the first unexpected exception leaves with the frame in a note."""
    choose = random.Random(seed)
    originals = corpus()
    outcomes: Counter[str] = Counter()
    tracker = SessionTracker("client-0", "tap.client")
    for number in range(count):
        if number % 1000 == 0:
            tracker = SessionTracker("client-0", "tap.client")
        data = mutate(choose.choice(originals), choose)
        try:
            outcomes[examine(data, tracker)] += 1
        except Exception as error:
            error.add_note(f"frame {number} of seed {seed}: {data.hex()}")
            raise
    return outcomes


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    outcomes = run(options.frames, options.seed)
    seconds = time.perf_counter() - began
    print(f"{options.frames} mutated frames, seed {options.seed}: nothing but WireError was raised")
    print(f"{seconds:.1f} s, {options.frames / seconds:,.0f} frames/s")
    for outcome, number in outcomes.most_common():
        print(f"{number:>9}  {outcome}")


if __name__ == "__main__":
    main(sys.argv[1:])
