"""Versions, and the lists of jars they are pinned to."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.setup_error import SetupError
from harness.systems.pulsar import lock as locks
from harness.systems.pulsar.lock import LockError, parse, pinned, pinned_versions, read
from harness.systems.pulsar.version import MEASURED, NEWEST_LTS, PulsarVersion
from harness.systems.system import UnknownSystem
from tests.fake_maven import fake_lock

SOME = fake_lock(NEWEST_LTS, "org.apache.pulsar:pulsar-broker:4.0.7", "io.netty:epoll:1.0:linux-x86_64")


# --- versions ---------------------------------------------------------------------------------------------------------


def test_versions_are_ordered_as_released():
    assert list(MEASURED) == sorted(MEASURED)
    assert PulsarVersion.parse("2.10.5") > PulsarVersion.parse("2.9.1")
    assert str(PulsarVersion.parse("2.10.5")) == "2.10.5"


@pytest.mark.parametrize(
    "text", ["", "4", "4.0", "v4.0.7", "4.0.7-candidate-1", "4.0.7.1", "4.0.x", "04.0.7", "4.0.7\n", "٤.0.7", "latest"]
)
def test_what_is_no_version_says_what_one_looks_like(text: str):
    with pytest.raises(UnknownSystem, match=r"no version of Pulsar; it should look like pulsar@4\.0\.7"):
        PulsarVersion.parse(text)


def test_a_version_that_is_too_old():
    with pytest.raises(UnknownSystem, match=r"pulsar@2\.7\.5 is too old: versions from 2\.8\.0 on"):
        PulsarVersion.parse("2.7.5")


@pytest.mark.parametrize(("text", "store", "java"), [("2.8.0", "zookeeper", 11), ("2.10.5", "zookeeper", 11),
                                                      ("2.11.0", "rocksdb", 17), ("4.2.4", "rocksdb", 17)])  # fmt: skip
def test_what_a_version_needs(text: str, store: str, java: int):
    version = PulsarVersion.parse(text)
    assert (version.metadata_store, version.minimum_java) == (store, java)


# --- the committed locks ----------------------------------------------------------------------------------------------


def test_every_measured_version_is_pinned_and_no_other():
    assert pinned_versions() == list(MEASURED)


@pytest.mark.parametrize("version", MEASURED, ids=str)
def test_a_committed_lock_has_what_a_broker_needs_and_nothing_foreign(version: PulsarVersion):
    lock = pinned(version)
    assert lock is not None
    assert lock.version == version
    assert lock.text() == (locks.lock_directory() / f"{version}.lock").read_text()
    names = [f"{jar.group}:{jar.artifact}" for jar in lock.jars]
    broker = next(jar for jar in lock.jars if jar.artifact == "pulsar-broker")
    assert broker.version == str(version)
    # Token authentication, TLS (Bouncy Castle's provider and netty's OpenSSL) and the metadata store.
    for needed in ("io.jsonwebtoken:jjwt-impl", "io.netty:netty-tcnative-boringssl-static", "org.rocksdb:rocksdbjni"):
        assert needed in names
    assert any(name.startswith("org.bouncycastle:bcprov-jdk") for name in names)
    assert not [jar.coordinate for jar in lock.jars if jar.classifier.startswith(("osx", "windows"))]
    assert not [name for name in names if name.startswith(("io.kubernetes:", "io.grpc:", "org.conscrypt:"))]
    assert len({(jar.group, jar.artifact, jar.classifier) for jar in lock.jars}) == len(lock.jars), (
        "one version of each"
    )
    assert 80e6 < lock.size < 180e6


# --- the format -------------------------------------------------------------------------------------------------------


def test_a_lock_is_read_as_it_was_written(tmp_path: Path):
    path = tmp_path / "some.lock"
    path.write_text(SOME.text())
    assert read(path) == SOME
    assert [jar.file for jar in SOME.jars] == [
        "org.apache.pulsar.pulsar-broker-4.0.7.jar",
        "io.netty.epoll-1.0-linux-x86_64.jar",
    ]


LINES = SOME.text().splitlines()


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "line 1 should be like"),
        (["<html>"], "line 1 should be like"),
        (LINES[:-1], "line 1 speaks of 2 jars of 68 bytes, but there are 1"),
        ([*LINES[:2], *reversed(LINES[2:]), LINES[2]], "there are 3"),
        ([*LINES[:3], LINES[3][:-20]], "there are 2|line 4 is not"),
        ([*LINES[:3], LINES[3].replace("io.netty", "../../etc")], "line 4 is not 'sha256 size group"),
        ([*LINES[:3], LINES[3][1:]], "line 4 is not 'sha256 size group"),
        ([*LINES[:3], LINES[3].replace(" ", " -", 1)], "line 4 is not 'sha256 size group"),
        ([LINES[0].replace("68", "74"), LINES[1], LINES[2], LINES[2]], "a jar is listed twice"),
        ([LINES[0].replace("4.0.7", "four"), *LINES[1:]], "no version of Pulsar"),
    ],
)
def test_a_lock_that_is_damaged_is_refused(tmp_path: Path, lines: list[str], told: str):
    path = tmp_path / "some.lock"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(LockError, match=told) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path):
    (tmp_path / "some.lock").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LockError, match=r"some\.lock"):
        read(tmp_path / "some.lock")


def test_a_damaged_file_of_ours_says_install_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locks, "lock_directory", lambda: tmp_path)
    assert pinned(NEWEST_LTS) is None
    (tmp_path / "4.0.7.lock").write_text("\n".join(LINES[:-1]))
    with pytest.raises(SetupError, match="a file of Starquake itself is damaged"):
        pinned(NEWEST_LTS)
    (tmp_path / "4.0.7.lock").write_text(fake_lock(MEASURED[0], "a:b:1").text())
    with pytest.raises(SetupError, match=r"is about pulsar@2\.8\.0"):
        pinned(NEWEST_LTS)


def test_none_but_complete_text_is_parsed():
    assert parse(SOME.text()) == SOME
    with pytest.raises(LockError):
        parse(SOME.text()[:-2].rpartition(" ")[0])
