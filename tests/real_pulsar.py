"""For tests that need a real Pulsar: the newest LTS, from the user's cache, installed there when it is missing."""

from __future__ import annotations

import asyncio
import functools
import os

import pytest

from harness.setup_error import SetupError
from harness.systems.pulsar.install import ensure_installed
from harness.systems.pulsar.installation import Installation, find
from harness.systems.pulsar.jdk import find_java
from harness.systems.pulsar.maven import find_maven
from harness.systems.pulsar.version import NEWEST_LTS, PulsarVersion


def real_pulsar_or_skip(version: PulsarVersion = NEWEST_LTS) -> Installation:
    """Installed and verified. To be called outside of an event loop; takes half a minute the first time of all.

    Where the machine has no Java, or no Maven to install with, the test is skipped with what to do; under ``CI=true``
    nothing is.
    """
    lacking = _lacking(version)
    if lacking and os.environ.get("CI") != "true":
        pytest.skip(lacking)
    return _installed(version)


@functools.cache
def _lacking(version: PulsarVersion) -> str:
    try:
        find_java(version)
        if find(version) is None:
            find_maven()
    except SetupError as error:
        return str(error)
    return ""


@functools.cache
def _installed(version: PulsarVersion) -> Installation:
    return asyncio.run(ensure_installed(version))
