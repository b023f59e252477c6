"""pytest plugin: ``pytest properties --system lite --client python --hypothesis-profile ci``.

Without options the families run in the simulated world (reference client against reference broker, virtual time).

The plugin is loaded in every pytest session of an environment that has Starquake, so nothing here touches what other
tests see: no Hypothesis profile is loaded or replaced, and neither Hypothesis nor the harness is imported in vain.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import hypothesis

    from harness.worlds.world import World

KNOWN_SEEN: pytest.StashKey[set[str]] = pytest.StashKey()
"""The known failures that came up in this session, for the summary at its end."""

PROFILES = {"smoke": (8, 8), "ci": (40, 14), "nightly": (400, 30)}
"""Profile -> (examples, steps) of one family."""

DEFAULT_PROFILE = "smoke"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("starquake", "protocol conformance of message brokers and their clients")
    group.addoption(
        "--system", default="simulated", help="system under test: simulated, reference, lite, pulsar://HOST:PORT"
    )
    group.addoption("--client", default="reference", help="client under test: reference, python")
    group.addoption(
        "--client-conf",
        default=os.environ.get("PULSAR_CLIENT_CONF"),
        help="Pulsar's client.conf: token and certificates of your cluster (default: $PULSAR_CLIENT_CONF)",
    )
    group.addoption("--known", default=None, help="known-failing list (default: the one of the system)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make Hypothesis accept the name of a profile of ours, for the families alone: other tests keep their settings.

    First, because Hypothesis looks the name up in the same hook. A profile of that name that somebody has registered
    (``ci`` is Hypothesis's own) stays what it is.
    """
    name = _profile_option(config)
    if name not in PROFILES:
        return
    from hypothesis import settings
    from hypothesis.errors import InvalidArgument

    try:
        settings.get_profile(name)
    except InvalidArgument:
        settings.register_profile(name, settings.get_profile(settings.get_current_profile_name()))


def _profile_option(config: pytest.Config) -> str | None:
    """``--hypothesis-profile``; None where it was not given, and without Hypothesis's own plugin."""
    name: str | None = config.getoption("--hypothesis-profile", None)
    return name


def family_profile(config: pytest.Config) -> str:
    """Whose plans the families carry out: smoke, ci or nightly; smoke's where another profile was asked for."""
    name = _profile_option(config)
    return name if name in PROFILES else DEFAULT_PROFILE


def family_settings(config: pytest.Config) -> hypothesis.settings:
    """How the families draw, whatever profile the session has.

    Of a profile that is not ours, the examples and steps count. The rest is not open: an example lasts as long as the
    brokers take, so no deadline; and what failed before is kept as a seed, not in Hypothesis's database.
    """
    from hypothesis import HealthCheck, Phase, settings

    asked = _profile_option(config)
    if asked is None or asked in PROFILES:
        examples, steps = PROFILES[family_profile(config)]
    else:
        foreign = settings.get_profile(asked)
        examples, steps = foreign.max_examples, foreign.stateful_step_count
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        # Smoke tries the same in every run, unless a seed is asked for, which Hypothesis would not look at then.
        derandomize=family_profile(config) == "smoke" and config.getoption("--hypothesis-seed", None) is None,
        # Nothing is stored to be used again, and explaining takes as many runs once more.
        phases=(Phase.generate, Phase.shrink),
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def only_the_message() -> Iterator[None]:
    """End the session with exit code 2 and one message, where what went wrong is for the user to mend."""
    try:
        yield
    except Exception as error:
        from harness.cli_guard import is_the_users
        from harness.verdict import EXIT_USAGE

        if not is_the_users(error):
            raise
        message = f"starquake: {error}"
    else:
        return
    pytest.exit(message, returncode=EXIT_USAGE)


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
    from harness.systems.access import access_for
    from harness.worlds.resolve import world_for

    with only_the_message():
        option = request.config.getoption
        system, conf = option("--system"), option("--client-conf")
        access = access_for([system], Path(conf) if conf else None)
        world = world_for(system, option("--client"), None, access=access)
    try:
        with only_the_message():
            world.start()
        yield world
    finally:
        world.stop()
