"""pytest plugin: ``pytest properties --system lite --client python --hypothesis-profile ci``.

Without options the families run in the simulated world (reference client against reference broker, virtual time).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import HealthCheck

if TYPE_CHECKING:
    from harness.worlds.world import World

KNOWN_SEEN: pytest.StashKey[set[str]] = pytest.StashKey()
"""The known failures that came up in this session, for the summary at its end."""

PROFILES = {"smoke": (8, 8), "ci": (40, 14), "nightly": (400, 30)}
"""Profile -> (examples, steps) of one family."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("starquake", "protocol conformance of message brokers and their clients")
    group.addoption(
        "--system", default="simulated", help="system under test: simulated, reference, lite, pulsar://HOST:PORT"
    )
    group.addoption("--client", default="reference", help="client under test: reference, python")
    group.addoption("--known", default=None, help="known-failing list (default: the one of the system)")


def pytest_configure(config: pytest.Config) -> None:
    for name, (examples, steps) in PROFILES.items():
        hypothesis.settings.register_profile(
            name,
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
    # pytest's own --hypothesis-profile, loaded after this, wins.
    hypothesis.settings.load_profile("smoke")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Known failures turn no test red, but nobody shall take them for passes."""
    seen = config.stash.get(KNOWN_SEEN, set())
    if seen:
        terminalreporter.section("known failures that came up")
        for line in sorted(seen):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def starquake_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The world named by ``--system`` and ``--client``, started once for the session."""
    from harness.worlds.resolve import world_for

    world = world_for(request.config.getoption("--system"), request.config.getoption("--client"), None)
    world.start()
    try:
        yield world
    finally:
        world.stop()
