"""The doctor sees what is there, and what is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness import doctor
from harness.doctor import Finding, examine, healthy


def named(findings: list[Finding], name: str) -> Finding:
    return next(finding for finding in findings if finding.name == name)


def test_this_machine_can_run_the_gate():
    findings = examine()
    assert healthy(findings), [finding for finding in findings if not finding.ok]
    assert len({finding.name for finding in findings}) == len(findings)
    assert all(finding.mend for finding in findings if not finding.ok)
    assert "0.2.0" in named(findings, "pulsar-lite").detail
    assert named(findings, "pulsar-client").detail == "3.13.0"


def test_nothing_on_path_and_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("JAVA_HOME", "MAVEN_HOME", "M2_HOME"):
        monkeypatch.delenv(variable, raising=False)
    findings = examine()
    for name in ("go", "node", "cargo"):
        assert not named(findings, name).ok
        assert named(findings, name).detail == "not found"
    for name in ("java", "maven"):
        assert not named(findings, name).ok
        assert "no " in named(findings, name).detail
        assert "apt-get install" in named(findings, name).mend
    assert named(findings, "installed Pulsars").detail.startswith("none; ")
    assert "PyPI" in named(findings, "toxiproxy").detail
    assert healthy(findings), "all of these are optional"


def test_programs_that_do_not_run_are_not_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("node", "go", "toxiproxy-server"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    findings = examine()
    assert not named(findings, "node").ok
    assert not named(findings, "go").ok
    assert "not there yet" in named(findings, "toxiproxy").detail


def test_a_cache_that_cannot_be_made_is_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A file in the place of the directory: works as root too, who may write anywhere.
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))
    finding = doctor.cache_writable()
    assert not finding.ok
    assert not healthy([finding])
    assert "XDG_CACHE_HOME" in finding.mend


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "FREE_DISK_BYTES", 2**63)
    assert not doctor.free_disk().ok


def test_a_client_library_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pulsar.py").write_text("raise ImportError('wrong platform')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert not doctor.pulsar_client().ok
