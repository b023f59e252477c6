"""Catalogue and invariants name the same clauses."""

from collections import defaultdict

import pytest

from harness.clauses.catalogue import CatalogueError, load
from harness.invariants.registry import all_invariants


def deciders() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for invariant in all_invariants():
        for clause in invariant.clauses:
            found[clause].add(invariant.name)
    return found


def test_every_clause_of_an_invariant_is_in_the_catalogue_and_decided_by_exactly_those_named():
    assert {clause.id: set(clause.decided_by) for clause in load()} == deciders()


def test_invariants_have_names_of_their_own():
    names = [invariant.name for invariant in all_invariants()]
    assert len(names) == len(set(names))


def test_texts_are_filled_in():
    for clause in load():
        assert clause.title, clause.id
        assert clause.source, clause.id
        assert clause.rule.endswith("."), clause.id
        assert clause.rule.count(". ") == 0, f"{clause.id}: one sentence"


def test_look_up_by_id():
    catalogue = load()
    assert "DEDUP-01" in catalogue
    assert catalogue["DEDUP-01"].binds == "broker"
    assert len(catalogue) == len(list(catalogue))


ENTRY = """
[[clause]]
id = "X-1"
family = "dedup"
title = "t"
rule = "r."
binds = "client"
source = "s"
decided_by = ["i"]
"""


def test_an_id_used_twice_is_refused(tmp_path):
    (tmp_path / "a.toml").write_text(ENTRY)
    (tmp_path / "b.toml").write_text(ENTRY)
    with pytest.raises(CatalogueError, match="X-1 is used twice"):
        load(tmp_path)


@pytest.mark.parametrize("broken", [ENTRY + 'colour = "red"\n', ENTRY.replace("client", "nobody"), "[[clause"])
def test_malformed_files_are_named(tmp_path, broken):
    (tmp_path / "bad.toml").write_text(broken)
    with pytest.raises(CatalogueError, match=r"bad\.toml"):
        load(tmp_path)
