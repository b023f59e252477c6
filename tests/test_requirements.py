"""The frozen requirement sets: complete, consistent, and what they let off for which version."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.clauses.catalogue import load as load_catalogue
from harness.clauses.requirements import (
    RequirementsError,
    RequirementSet,
    exempted,
    gaps,
    load,
    requirements_for,
    version_key,
)

SETS = {found.line: found for found in load()}
INSTALLABLE = (
    "2.8.0", "2.8.2", "2.9.1", "2.10.5", "2.11.0", "3.0.0", "3.0.7", "3.2.3", "3.3.2", "4.0.0", "4.0.7", "4.2.4",
)  # fmt: skip
BATCH = "acknowledgmentAtBatchIndexLevelEnabled"


def test_there_is_a_set_for_every_line_and_it_says_which_versions_it_was_frozen_for() -> None:
    assert list(SETS) == ["2.8", "2.9", "2.10", "2.11", "3.0", "3.2", "3.3", "4.0", "4.2"]
    assert sorted(version for found in SETS.values() for version in found.frozen_for) == sorted(INSTALLABLE)


@pytest.mark.parametrize("line", SETS)
def test_a_set_names_every_clause_of_the_catalogue_once_and_no_other(line: str) -> None:
    found = SETS[line]
    assert gaps(found, load_catalogue()) == []
    assert len(set(found.named)) == len(found.named) == len(load_catalogue())


@pytest.mark.parametrize("line", SETS)
def test_every_entry_says_where_it_was_read(line: str) -> None:
    for entry in (*SETS[line].exempt, *SETS[line].defects, *SETS[line].notes):
        assert any(mark in entry.source for mark in ("apache/pulsar", "PIP-", ".conf")), entry
        assert not entry.why.endswith("."), "it is quoted in the middle of a sentence"
        assert list(entry.clauses) == sorted(entry.clauses)


@pytest.mark.parametrize("line", SETS)
def test_a_defect_and_a_note_never_unbind(line: str) -> None:
    found = SETS[line]
    bound = {*found.broker, *found.client}
    for entry in (*found.defects, *found.notes):
        for clause in entry.clauses:
            everything_on = {exemption.setting: exemption.value for exemption in found.exempt}
            assert clause in bound or found.binding(clause, f"{line}.99", everything_on)[0], clause


def test_chunks_on_shared_subscriptions_are_promised_since_2_11() -> None:
    assert exempted("CHUNK-08", "pulsar@2.10.5", "", {}) == (
        "Pulsar 2.10: chunked messages were made for exclusive and failover subscriptions only; pieces stay together on"
        " shared ones since 2.11 (PIP-37, apache/pulsar#16202)"
    )
    assert exempted("CHUNK-08", "pulsar@2.11.0", "", {}) == ""


def test_a_setting_decides_and_its_default_where_nothing_is_known() -> None:
    said = exempted("C7", "pulsar@4.0.7", "", {})
    assert said.startswith(f"Pulsar 4.0: only with {BATCH}=true (default false): ")
    assert exempted("C7", "pulsar@4.0.7", "", {BATCH: "true"}) == ""
    assert exempted("C7", "pulsar@4.2.4", "", {}) == ""
    assert exempted("C7", "pulsar@4.2.4", "", {BATCH: "False"}).startswith("Pulsar 4.2: only with")


def test_a_defect_binds_and_is_told_until_it_is_fixed() -> None:
    old = SETS["2.10"]
    assert old.binding("DEDUP-08", "2.10.5", {}) == (True, "")
    (defect,) = old.defects_of("DEDUP-08", "2.10.5")
    assert (defect.fixed, defect.source) == ("2.10.6", "apache/pulsar#20948")
    assert old.defects_of("DEDUP-08", "2.10.6") == []
    assert SETS["4.2"].defects_of("K8", "4.2.4"), "no release mends it yet"
    assert old.defects_of("C2", "2.10.5") == []


def test_redelivery_counts_are_told_apart_and_bind_everywhere() -> None:
    (before,), (after,) = SETS["2.11"].notes_of("Q1"), SETS["3.0"].notes_of("Q1")
    assert "apache/pulsar#17060" in after.source
    assert before.why != after.why
    assert all(found.binding("Q1", found.line, {})[0] for found in SETS.values())


@pytest.mark.parametrize(
    ("product", "version", "line"),
    [
        ("pulsar@2.10.5", "2.10.5", "2.10"),
        ("pulsar@2.10.5", "", "2.10"),
        ("pulsar", "4.0.7", "4.0"),
        ("pulsar@3.1.0", "", "3.0"),
        ("pulsar@4.1.3", "", "4.0"),
        ("pulsar@5.0.1", "", "4.2"),
        ("pulsar@4.0.7-rc1", "", "4.0"),
        ("pulsar@2.7.5", "", None),
        ("pulsar", "Pulsar Server", None),
        ("lite", "0.2.0", None),
        ("lite@4.0.7", "4.0.7", None),
        ("reference", "4.0.7", None),
        ("simulated", "1", None),
        ("pulsar://127.0.0.1:6650", "4.0.7", None),
    ],
)
def test_the_newest_set_that_is_not_newer_counts(product: str, version: str, line: str | None) -> None:
    found = requirements_for(product, version)
    assert (None if found is None else found.line) == line
    if line is None:
        assert exempted("CHUNK-08", product, version, {}) == ""


def test_versions_compare_as_numbers() -> None:
    assert version_key("2.10") > version_key("2.9.1")
    assert version_key("v4.0.7-rc1") == (4, 0, 7)
    with pytest.raises(ValueError, match="no version"):
        version_key("latest")


TEXT = """
line = "2.10"
frozen_for = ["2.10.5"]
broker = ["C2"]
client = ["C1"]

[defaults]
dedup = "false"

[[exempt]]
clauses = ["C3"]
from = "2.10.3"
why = "the promise is younger"
source = "apache/pulsar#1"

[[exempt]]
clauses = ["C4"]
setting = "dedup"
value = "true"
why = "it is off"
source = "PIP-6"

[[defects]]
clauses = ["C2"]
fixed = "2.10.6"
why = "it is broken"
source = "apache/pulsar#2"
"""


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], RequirementSet]:
    def reading(text: str) -> RequirementSet:
        (tmp_path / "pulsar-2.10.toml").write_text(text)
        (only,) = load(tmp_path)
        return only

    return reading


def test_what_binds_from_a_patch_version_on(read: Callable[[str], RequirementSet]) -> None:
    found = read(TEXT)
    assert found.binding("C3", "2.10.2", {}) == (
        False,
        "Pulsar 2.10: only from 2.10.3 on: the promise is younger (apache/pulsar#1)",
    )
    assert found.binding("C3", "2.10.3", {}) == (True, "")
    assert found.binding("C3", "2.10.10", {}) == (True, "")
    assert found.binding("C99", "2.10.0", {}) == (True, ""), "nobody has said that it does not"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('broker = ["C2"]', 'broker = ["C2", "C2"]', "C2 is named 2 times"),
        ('broker = ["C2"]', 'broker = ["C2", "C3"]', "C3 is named 2 times"),
        ('client = ["C1"]', 'client = ["C2"]', "C2 is named 2 times"),
        ('line = "2.10"', 'line = "2.11"', "it is of the line 2.11"),
        ('["2.10.5"]', '["2.11.0"]', "2.11.0 is no version of 2.10"),
        ('from = "2.10.3"', 'from = "3.0"', "3.0 is no version of 2.10"),
        ('fixed = "2.10.6"', 'fixed = "soon"', "'soon' is no version"),
        ('source = "PIP-6"', 'source = ""', "C4: no source"),
        ('why = "it is off"', 'why = ""', "C4: no why"),
        ('value = "true"', "", "a setting needs a value"),
        ('setting = "dedup"', 'setting = "other"', "does not say how other is by default"),
        ('setting = "dedup"', 'from = "2.10.1"\nsetting = "dedup"', "choose one"),
        ('clauses = ["C2"]', 'clauses = ["C9"]', "C9 has a defect or a note and is not named"),
        ('line = "2.10"', 'line = "2.10"\ncolour = "red"', "unknown field"),
        ('source = "PIP-6"', 'source = "PIP-6"\nsince = "2.10.1"', "unknown field"),
        ('line = "2.10"', "line = ", "pulsar-2.10.toml"),
    ],
)
def test_a_set_that_contradicts_itself_is_refused(
    read: Callable[[str], RequirementSet], old: str, new: str, says: str
) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(RequirementsError, match=r"pulsar-2\.10\.toml: ") as raised:
        read(TEXT.replace(old, new))
    assert says in str(raised.value)


def test_a_missing_or_unknown_clause_or_one_at_the_wrong_door_is_told(read: Callable[[str], RequirementSet]) -> None:
    catalogue = load_catalogue()
    told = gaps(read(TEXT.replace('["C1"]', '["C1", "C5"]').replace('["C4"]', '["NOPE-1"]')), catalogue)
    assert "C4 is missing" in told
    assert "NOPE-1 is no clause" in told
    assert "C5 is listed as the client's and binds the broker" in told
    assert "C1 is listed as the broker's and binds the client alone" in gaps(
        read(TEXT.replace('["C1"]', "[]").replace('["C2"]\nclient', '["C2", "C1"]\nclient')), catalogue
    )
