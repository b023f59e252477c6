"""The Java that runs a broker: found, asked, and refused with what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.setup_error import SetupError
from harness.systems.pulsar.jdk import find_java
from harness.systems.pulsar.maven import failure, find_maven
from harness.systems.pulsar.version import PulsarVersion
from tests.fake_maven import Machine

OLD, NEW = PulsarVersion(2, 10, 5), PulsarVersion(4, 0, 7)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    it = Machine(tmp_path)
    it.bin.mkdir()
    monkeypatch.setenv("PATH", f"{it.bin}{os.pathsep}/nowhere")
    for variable in ("JAVA_HOME", "MAVEN_HOME", "M2_HOME"):
        monkeypatch.delenv(variable, raising=False)
    return it


def test_java_home_comes_before_path(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    machine.java("17.0.15")
    found = find_java(NEW)
    assert (found.source, found.feature, found.version, found.architecture) == ("PATH", 17, "17.0.15", "amd64")
    assert found.makes_archives
    home = machine.java("21.0.2", home="other")
    monkeypatch.setenv("JAVA_HOME", str(home))
    chosen = find_java(NEW)
    assert (chosen.source, chosen.feature, chosen.home) == ("JAVA_HOME", 21, home)
    assert chosen.fingerprint != found.fingerprint


def test_no_java_says_what_to_install(machine: Machine):
    with pytest.raises(SetupError, match="no Java: JAVA_HOME is not set") as caught:
        find_java()
    assert "apt-get install openjdk-17-jre-headless" in caught.value.mend


@pytest.mark.parametrize("there", ["nothing", "a directory", "a file that cannot be executed"])
def test_a_wrong_java_home_is_told_though_path_has_a_java(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, there: str, tmp_path: Path
):
    machine.java()
    java = tmp_path / "gone" / "bin" / "java"
    if there == "a directory":
        java.mkdir(parents=True)
    elif there != "nothing":
        java.parent.mkdir(parents=True)
        java.write_text("")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(SetupError, match=r"JAVA_HOME is .*gone, but there is no .*/bin/java") as caught:
        find_java()
    assert "unset it" in caught.value.mend


def test_a_java_that_does_not_run(machine: Machine):
    (machine.bin / "java").write_text("#!/bin/sh\necho no shared library libjli.so\nexit 127\n")
    (machine.bin / "java").chmod(0o755)
    with pytest.raises(SetupError, match=r"does not run: no shared library libjli\.so"):
        find_java()


def test_a_program_that_is_no_java(machine: Machine):
    (machine.bin / "java").write_text("#!/bin/sh\necho hello\n")
    (machine.bin / "java").chmod(0o755)
    with pytest.raises(SetupError, match="does not say which Java it is"):
        find_java()


@pytest.mark.parametrize(
    ("java", "pulsar", "needed"),
    [("11.0.20", NEW, 17), ("1.8.0_392", OLD, 11), ("16.0.1", PulsarVersion(2, 11, 0), 17)],
)
def test_a_java_too_old_for_the_version(machine: Machine, java: str, pulsar: PulsarVersion, needed: int):
    machine.java(java)
    with pytest.raises(SetupError, match=rf"pulsar@{pulsar} needs Java {needed} or newer; .* is {java}") as caught:
        find_java(pulsar)
    assert "set JAVA_HOME" in caught.value.mend


@pytest.mark.parametrize(("java", "pulsar"), [("11.0.20", OLD), ("17.0.1", NEW), ("25", NEW), ("25", OLD)])
def test_a_java_that_fits(machine: Machine, java: str, pulsar: PulsarVersion):
    machine.java(java)
    assert find_java(pulsar).makes_archives == (java != "11.0.20")


def test_a_java_that_is_replaced_is_asked_again(machine: Machine):
    machine.java("17.0.1")
    assert find_java().version == "17.0.1"
    path = machine.java("17.0.2") / "bin" / "java"
    os.utime(path, ns=(1, 1))
    assert find_java().version == "17.0.2"


# --- Maven ------------------------------------------------------------------------------------------------------------


def test_no_maven_says_what_to_install(machine: Machine):
    with pytest.raises(SetupError, match="no Maven") as caught:
        find_maven()
    assert "apt-get install maven" in caught.value.mend


@pytest.mark.parametrize("variable", ["MAVEN_HOME", "M2_HOME"])
def test_the_maven_of_the_environment(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str):
    machine.maven()
    assert find_maven() == machine.bin / "mvn"
    monkeypatch.setenv(variable, str(tmp_path / "gone"))
    with pytest.raises(SetupError, match=f"{variable} is .*gone, but there is no"):
        find_maven()
    monkeypatch.setenv(variable, str(tmp_path))
    assert find_maven() == tmp_path / "bin" / "mvn"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "[ERROR] Failed to execute goal on project resolve: Could not resolve dependencies for project x: Could not"
            " find artifact org.apache.pulsar:pulsar-broker:jar:4.0.6 in central (https://repo.example) -> [Help 1]",
            r"does not have org\.apache\.pulsar:pulsar-broker:jar:4\.0\.6\n",
        ),
        (
            "[ERROR] org.apache.pulsar:pulsar:pom:9.9.9 was not found in https://repo.example during a previous"
            " attempt. This failure was cached in the local repository",
            r"does not have org\.apache\.pulsar:pulsar:pom:9\.9\.9\n",
        ),
        (
            "[ERROR] Could not transfer artifact a:b:pom:1 from/to central (https://repo.example): Connect refused",
            "cannot reach its registry: Could not transfer artifact a:b:pom:1 .* Connect refused",
        ),
        ("[ERROR] ~/.m2/x.jar.part: No space left on device", "no space left on device"),
        ("[FATAL] Non-parseable settings ~/.m2/settings.xml: only whitespace allowed", "Non-parseable settings"),
        ("Error: Could not find or load main class org.codehaus", "exit code 1.*\n.*Could not find or load main"),
    ],
)
def test_what_a_failed_maven_says_in_a_few_words(line: str, told: str):
    noise = [f"[INFO] Downloaded from central: https://repo.example/{number}.jar" for number in range(150)]
    closing = ["[ERROR] ", "[ERROR] To see the full stack trace of the errors, re-run Maven with the -e switch."]
    with pytest.raises(SetupError, match=told) as caught:
        raise failure([*noise, line, *closing], 1)
    assert len(str(caught.value).splitlines()) < 10
    assert "-e switch" not in str(caught.value)
