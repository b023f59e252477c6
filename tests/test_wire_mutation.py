"""Damaged frames raise nothing but WireError; ``benchmarks/wire_mutation.py`` does the same a million times."""

from __future__ import annotations

import random

from benchmarks.wire_mutation import corpus, examine, mutate, run
from harness.faults.session_tracker import SessionTracker


def test_mutated_frames_raise_nothing_but_wire_errors() -> None:
    outcomes = run(4000, seed=20)
    assert sum(outcomes.values()) == 4000
    # The mutations must reach every layer, or the sentence above says little.
    assert {"read", "partial", "frame_too_large", "size_mismatch", "bad_command", "bad_metadata"} <= set(outcomes)


def test_the_same_seed_gives_the_same_mutations() -> None:
    originals = corpus()
    first, second = random.Random(3), random.Random(3)
    assert [mutate(raw, first) for raw in originals] == [mutate(raw, second) for raw in originals]


def test_the_originals_can_all_be_read() -> None:
    tracker = SessionTracker("client-0", "tap.client")
    assert {examine(raw, tracker) for raw in corpus()} == {"read"}
