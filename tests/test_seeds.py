"""Seed files: stable ids, exact refusals, and what a rate is worth."""

import json

import pytest
from fake_world import FakeWorld, failing_plan, passing_plan

from harness.seeds.rate import Rate
from harness.seeds.replay import attempt
from harness.seeds.seed import Expectation, Seed, decode, encode, fingerprint, make_seed, read, stored, write
from harness.usage_error import UsageError

EXPECT = Expectation(clause="KEPT-01", anomaly="lost-send")


def seed_of(**changes: object) -> Seed:
    made = {
        "protocol": "pulsar",
        "system": "lite",
        "client": "python",
        "versions": {"lite": "0.2"},
        "rate": Rate(9, 10),
    }
    return make_seed(EXPECT, failing_plan(), **{**made, **changes})


def test_a_seed_survives_its_file(tmp_path) -> None:
    seed = seed_of(note="why")
    path = write(seed, tmp_path / "seeds")
    assert path.name == f"{seed.id}.json"
    assert read(path) == seed
    assert read(path).plan() == failing_plan()
    assert stored(tmp_path / "seeds") == [(path, seed)]


def test_the_id_is_of_anomaly_and_steps_only() -> None:
    assert seed_of().id == seed_of(system="reference", rate=Rate(0, 0), note="x").id
    assert len(seed_of().id) == 12
    assert fingerprint(EXPECT, failing_plan()) != fingerprint(EXPECT, passing_plan())
    assert fingerprint(EXPECT, failing_plan()) != fingerprint(Expectation("KEPT-01", "other"), failing_plan())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "seed format 2; this version reads format 1 only"),
        ({"format": "1"}, "seed format '1'"),
        ({"operations": [{"verb": "explode"}]}, r"not a seed of format 1: .*explode.*\$.operations\[0\].verb"),
        ({"surprise": 1}, "surprise"),
        ({"rate": {"failed": 3, "tries": 2}}, "3 of 2 is not a rate"),
        ({"schedule": [{"before": 99, "fault": {"kind": "cut"}}]}, "before operation 99"),
        ({"expect": {"clause": "KEPT-02", "anomaly": "lost-send"}}, "is not that of its contents"),
    ],
)
def test_a_changed_seed_is_refused(change: dict, says: str) -> None:
    data = json.dumps({**json.loads(encode(seed_of())), **change}).encode()
    with pytest.raises(UsageError, match=says) as raised:
        decode(data, "s.json")
    assert str(raised.value).startswith("s.json")


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'"x"', b"{}", b"\xff\xfe", b"null"])
def test_what_is_no_seed_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"s\.json is not"):
        decode(data, "s.json")


def test_wilson_interval() -> None:
    low, high = Rate(10, 10).interval()
    assert (round(low, 3), round(high, 3)) == (0.722, 1.0)
    low, high = Rate(7, 20).interval()
    assert (round(low, 3), round(high, 3)) == (0.181, 0.567)
    assert Rate(0, 0).interval() == (0.0, 1.0)
    assert str(Rate(7, 20)) == "7 of 20 (95 % interval 18% to 57%)"


def test_attempt_counts_failures_and_sets_harness_errors_apart() -> None:
    every_other = FakeWorld(loses=lambda run: run % 2 == 0)
    runs = attempt(every_other, failing_plan(), EXPECT, 10)
    assert runs.rate == Rate(5, 10)
    assert runs.sighting is not None
    assert [event.kind for event in runs.sighting.witness] == ["cut", "send", "SEND"]
    broken = attempt(FakeWorld(error="adapter died"), failing_plan(), EXPECT, 3)
    assert (broken.rate, broken.errors, broken.sighting) == (Rate(0, 0), ["adapter died"] * 3, None)
