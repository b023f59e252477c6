"""The list of known failures: read exactly, refused clearly."""

import pytest

from harness.clauses.catalogue import load
from harness.clients.resolve import ADAPTERS
from harness.fixture_files import known_failing_files
from harness.known_failing import check_names, listed_for, names_of, parse, read
from harness.usage_error import UsageError

GOOD = """
# a comment
lite | python | DEDUP-02 | hole | known | upstream issue 7 | and a bar
lite | *      | ACK-01   | *    | flaky 7/20 | a race in the dispatcher
"""


def test_entries_keep_fields_and_place() -> None:
    known, flaky = parse(GOOD, "list.txt")
    assert (known.system, known.client, known.clause, known.anomaly, known.status) == (
        "lite", "python", "DEDUP-02", "hole", "known",
    )  # fmt: skip
    assert known.reason == "upstream issue 7 | and a bar"
    assert known.place == "list.txt:3"
    assert (flaky.failed, flaky.tries, flaky.rate) == (7, 20, "7/20")


def test_coverage_of_wildcards_and_versions() -> None:
    known, flaky = parse(GOOD, "list.txt")
    assert known.covers("lite", "python", "DEDUP-02")
    assert known.covers("lite@0.2", "python@3.13", "DEDUP-02")
    assert not known.covers("lite", "java", "DEDUP-02")
    assert not known.covers("pulsar", "python", "DEDUP-02")
    assert flaky.covers("lite", "java@4", "ACK-01")
    assert known.allows("hole")
    assert not known.allows("reorder")
    assert flaky.allows("anything")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("lite | python | DEDUP-02 | hole | known", "5 fields where 6"),
        ("lite | python | DEDUP-02 | hole | known | ", "the reason is empty"),
        ("lite | | DEDUP-02 | hole | known | why", "the client is empty"),
        ("lite | python | DEDUP-* | hole | known | why", "whole field only"),
        ("lite | python | DEDUP-02 | hole | skip | why", "neither 'known' nor 'flaky"),
        ("lite | python | DEDUP-02 | hole | flaky | why", "neither 'known' nor 'flaky"),
        ("lite | python | DEDUP-02 | hole | flaky 0/20 | why", "not one of a flaky failure"),
        ("lite | python | DEDUP-02 | hole | flaky 21/20 | why", "not one of a flaky failure"),
    ],
)
def test_a_broken_line_is_named(line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        parse(f"# first\n{line}\n", "known.txt")
    assert str(raised.value).startswith("known.txt:2: ")


def test_the_same_failure_twice_is_refused() -> None:
    line = "lite | python | DEDUP-02 | hole | known | why\n"
    with pytest.raises(UsageError, match=r"known.txt:2: .*listed at known.txt:1"):
        parse(line * 2, "known.txt")


def test_entries_that_cannot_match_are_refused() -> None:
    entries = parse(GOOD, "list.txt")
    check_names(entries, ["DEDUP-02", "ACK-01"], ["python"])
    with pytest.raises(UsageError, match=r"list.txt:4: there is no clause 'ACK-01'"):
        check_names(entries, ["DEDUP-02"], ["python"])
    with pytest.raises(UsageError, match=r"list.txt:3: there is no client 'python'"):
        check_names(entries, ["DEDUP-02", "ACK-01"], ["reference"])


def test_a_release_line_may_be_named_and_what_is_none_may_not() -> None:
    for name in ("pulsar", "pulsar@2.10", "pulsar@2.10.5"):
        check_names(parse(f"{name} | * | ACK-01 | lost | known | why", "k"), ["ACK-01"], [])
    for name in ("pulsa@2.10", "pulsar@2", "pulsar@old", "python@3.13"):
        with pytest.raises(UsageError, match="there is no system"):
            check_names(parse(f"{name} | * | ACK-01 | lost | known | why", "k"), ["ACK-01"], [])


def test_a_missing_file_is_the_users_matter(tmp_path) -> None:
    with pytest.raises(UsageError, match="cannot read the known-failing list"):
        read(tmp_path / "none.txt")


def test_shipped_lists_name_what_there_is() -> None:
    clauses = [clause.id for clause in load()]
    files = known_failing_files()
    assert "lite" in files
    for product, path in files.items():
        entries = read(path)
        check_names(entries, clauses, list(ADAPTERS))
        for entry in entries:
            assert product in (entry.system, entry.client), "a file is called after what all of its entries are of"


def test_an_entry_of_a_product_speaks_of_it_however_it_is_reached() -> None:
    listed = {"lite": parse("lite | * | DEDUP-02 | hole | known | why", "k")}
    address = "pulsar://127.0.0.1:6650"
    (entry,) = listed_for(address, "lite", "python", listed)
    assert entry.covers(address, "python", "DEDUP-02")
    assert listed_for(address, address, "python", listed) == []
    assert listed_for("lite@0.2.0", "lite@0.2.0", "python", listed)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("pulsar@2.10.5", ["pulsar@2.10.5", "pulsar@2.10", "pulsar"]),
        ("pulsar@2.10", ["pulsar@2.10", "pulsar"]),
        ("pulsar", ["pulsar"]),
        ("lite", ["lite"]),
        ("python@3.13.0", ["python@3.13.0", "python@3.13", "python"]),
        ("mine@nightly", ["mine@nightly", "mine"]),
        ("pulsar://h:6650", ["pulsar://h:6650"]),
    ],
)
def test_a_version_goes_by_its_line_and_its_product_too(value: str, names: list[str]) -> None:
    assert names_of(value) == names


def test_lists_of_a_product_a_line_and_a_version_apply_together() -> None:
    lists = {
        name: parse(f"{name} | * | DEDUP-02 | {anomaly} | known | why", name)
        for name, anomaly in (("pulsar", "a"), ("pulsar@2.10", "b"), ("pulsar@2.10.5", "c"), ("pulsar@2.1", "d"))
    }

    def applied(system: str, product: str) -> list[str]:
        return [entry.anomaly for entry in listed_for(system, product, "python", lists)]

    assert applied("pulsar@2.10.5", "pulsar@2.10.5") == ["c", "b", "a"]
    assert applied("pulsar://127.0.0.1:6650", "pulsar@2.10.5") == ["c", "b", "a"]
    assert applied("pulsar@2.10.4", "pulsar@2.10.4") == ["b", "a"]
    assert applied("pulsar@4.0.7", "pulsar@4.0.7") == ["a"]
    assert applied("pulsar://127.0.0.1:6650", "pulsar") == ["a"]
    assert applied("lite", "lite") == []


def test_an_entry_of_one_version_in_the_list_of_all_speaks_of_that_one_only() -> None:
    listed = {"pulsar": parse("pulsar@2.8.0 | * | CONS-12 | never-dispatched | known | why", "k")}
    assert listed_for("pulsar@2.8.0", "pulsar@2.8.0", "python", listed)
    assert listed_for("pulsar@2.8.2", "pulsar@2.8.2", "python", listed) == []


def test_an_entry_of_a_client_speaks_of_it_on_any_system() -> None:
    listed = {"python": parse("* | python | DEDUP-02 | hole | known | why", "k")}
    assert listed_for("reference", "reference", "python", listed)
    assert listed_for("reference", "reference", "reference", listed) == []


def test_a_list_given_for_several_names_counts_once() -> None:
    entries = parse("* | python | DEDUP-02 | hole | known | why", "k")
    assert len(listed_for("lite", "lite", "python", {"lite": entries, "python": entries})) == 1


def test_an_entry_from_a_profile_on_is_due_there_and_later() -> None:
    (entry,) = parse("lite | python | DEDUP-02 | hole | known from ci | why", "k")
    assert [entry.due(profile) for profile in ("smoke", "ci", "nightly")] == [False, True, True]
    assert entry.covers("lite", "python", "DEDUP-02")
