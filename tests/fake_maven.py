"""A Java and a Maven of our own: small programs that answer as the real ones do, and bring jars out of nothing."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.systems.pulsar.lock import Jar, Lock
from harness.systems.pulsar.version import PulsarVersion

# Prints what `java -XshowSettings:properties -version` prints, and lives in HOME/bin.
JAVA = """#!{python}
import os, sys
home = os.path.dirname(os.path.dirname(os.path.realpath(sys.argv[0])))
print(f'''Property settings:
    java.home = {{home}}
    java.version = {version}
    os.arch = amd64

openjdk version "{version}"
OpenJDK Runtime Environment (build {version}+1)''', file=sys.stderr)
"""

# Brings the jars that the poms of its directory ask for: the content of a jar is its coordinate. Asked to resolve, it
# brings those that RESOLVED names. What it was asked is counted in the file CALLS.
MAVEN = """#!{python}
import os, pathlib, re, sys, time
import xml.etree.ElementTree as xml

with open({calls!r}, "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("-D"))
mood = pathlib.Path({mood!r})
mood = mood.read_text() if mood.exists() else ""
if mood.startswith("says"):
    print(mood.removeprefix("says "))
    sys.exit(1)
assert os.path.exists(os.path.join(os.environ["JAVA_HOME"], "bin", "java"))
target = pathlib.Path(given["outputDirectory"])
target.mkdir(parents=True, exist_ok=True)
space = "{{http://maven.apache.org/POM/4.0.0}}"
wanted = []
for pom in sorted(pathlib.Path().rglob("pom.xml")):
    root = xml.parse(pom).getroot()
    for one in root.findall(f"{{space}}dependencies/{{space}}dependency"):
        named = [one.findtext(space + name) or "" for name in ("groupId", "artifactId", "version", "classifier")]
        wanted.append(named)
if "outputFile" in given:
    wanted = [(line.split(":") + [""])[:4] for line in {resolved!r}]
    lines = ["", "The following files have been resolved:"]
    for group, artifact, version, classifier in wanted:
        kind = "jar:" + classifier if classifier else "jar"
        lines.append(f"   {{group}}:{{artifact}}:{{kind}}:{{version}}:compile -- module x")
    pathlib.Path(given["outputFile"]).write_text("\\n".join(lines))
time.sleep(0.2)
for number, (group, artifact, version, classifier) in enumerate(wanted):
    tail = f"-{{classifier}}" if classifier else ""
    name = f"{{artifact}}-{{version}}{{tail}}.jar"
    content = ":".join(filter(None, (group, artifact, version, classifier)))
    if mood == "spoils" and number == 1:
        content = content.upper()
    if mood == "forgets" and number == 1:
        continue
    (target / f"{{group}}.{{name}}").write_text(content)
    print(f"[INFO] Downloaded from central: https://repo.example/{{name}} (1 kB at 1 kB/s)", flush=True)
    if mood == "hangs" and number == 1:
        time.sleep(600)
print("[INFO] BUILD SUCCESS")
"""


@dataclass(frozen=True)
class Machine:
    """A directory of programs for PATH. ``resolved``: coordinates that its Maven finds for a version without a lock."""

    root: Path

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def java(self, version: str = "17.0.15", home: str = "jdk") -> Path:
        """A Java; its home. The one called ``jdk`` is on PATH."""
        path = self.root / home / "bin" / "java"
        _program(path, JAVA.format(python=sys.executable, version=version))
        if home == "jdk":
            self.bin.mkdir(exist_ok=True)
            (self.bin / "java").unlink(missing_ok=True)
            (self.bin / "java").symlink_to(path)
        return path.parent.parent

    def maven(self, resolved: tuple[str, ...] = ()) -> None:
        text = MAVEN.format(
            python=sys.executable, calls=str(self.root / "calls"), mood=str(self.root / "mood"), resolved=list(resolved)
        )
        _program(self.bin / "mvn", text)

    def mood(self, mood: str) -> None:
        """What its Maven does from now on: ``spoils``, ``forgets``, ``hangs`` at a jar; ``says X`` and fails."""
        (self.root / "mood").write_text(mood)

    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def kept(self) -> list[str]:
        """What is where versions are installed."""
        place = self.cache / "starquake" / "pulsar"
        return sorted(path.name for path in place.iterdir()) if place.exists() else []


def fake_lock(version: PulsarVersion, *coordinates: str) -> Lock:
    """A lock of jars as the fake Maven brings them."""
    jars = []
    for coordinate in coordinates:
        group, artifact, number, classifier = (*coordinate.split(":"), "")[:4]
        content = coordinate.encode()
        digest = hashlib.sha256(content).hexdigest()
        jars.append(Jar(group, artifact, number, classifier, len(content), digest))
    return Lock(version, tuple(jars))


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
