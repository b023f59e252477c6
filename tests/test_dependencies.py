"""ARCHITECTURE.md says who imports whom; what it says is true."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SMALL = {
    "__version__",
    "cache_directory",
    "fixture_files",
    "mortal_directory",
    "processes",
    "program_answer",
    "reaper",
    "regular_file",
    "setup_error",
    "usage_error",
}
"""Single modules about this machine and its user, which know nothing of Pulsar: all but the pure parts may use them."""
PURE = ("harness/wire", "harness/history", "harness/invariants", "harness/reference/broker", "harness/reference/client")


def imported_parts(folder: str) -> set[str]:
    """Parts (folders or modules right under ``harness``, or ``properties``) that the modules of a folder import."""
    parts: set[str] = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                package, _, rest = name.partition(".")
                if package == "harness":
                    parts.add(rest.partition(".")[0])
                elif package == "properties":
                    parts.add(package)
    return parts - {Path(folder).parts[1]} if "/" in folder else parts


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("harness/wire", set()),
        ("harness/history", set()),
        ("harness/invariants", {"history"}),
        ("harness/faults", {"wire", "history"}),
        ("harness/reference/broker", {"wire"}),
        ("harness/reference/client", {"wire", "clients"}),
        ("harness/clients", {"wire", "reference"}),
        ("harness/systems", {"wire", "reference"}),
        (
            "harness/worlds",
            {"wire", "history", "invariants", "faults", "reference", "clients", "systems"},
        ),
        ("harness/seeds", {"history", "invariants", "faults", "clients", "worlds"}),
    ],
)
def test_a_part_imports_only_what_the_architecture_says(folder: str, allowed: set[str]):
    found = imported_parts(folder)
    assert found - (set() if folder in PURE else SMALL) <= allowed
    assert allowed <= found, "what is no longer used is no longer allowed"


def test_the_contract_is_all_that_the_reference_client_knows_of_clients():
    modules = {
        f"{node.module}.{alias.name}".split(".")[2]
        for path in (ROOT / "harness/reference/client").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("harness.clients.")
        for alias in node.names
    }
    assert modules == {"client", "requests"}
