"""The poms that Maven is given: exactly these jars, or whatever a version needs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.systems.pulsar.lock import Jar
from harness.systems.pulsar.version import PulsarVersion

DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"

# What a standalone on 127.0.0.1 does without: other metadata stores, Kubernetes, offloaders.
UNUSED = (
    "com.amazonaws:*",
    "com.google.api.grpc:*",
    "com.google.auth:*",
    "com.google.http-client:*",
    "com.squareup.okhttp3:*",
    "com.squareup.okio:*",
    "io.etcd:*",
    "io.grpc:*",
    "io.kubernetes:*",
    "io.reactivex.rxjava3:*",
    "io.streamnative.oxia:*",
    "io.vertx:*",
    "net.bytebuddy:*",
    "org.apache.distributedlog:*",
    "org.apache.pulsar:jetcd-core-shaded",
    "org.conscrypt:*",
    "org.jetbrains.kotlin:*",
)

_HEAD = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>starquake</groupId>
  <artifactId>{name}</artifactId>
  <version>1</version>
"""


def resolving(version: PulsarVersion) -> str:
    """A project that depends on the broker. Without the imported BOM the parent's pins are lost: Maven then mixes
    versions, and on 3.0.7 reads poms for minutes.
    """
    exclusions = "".join(
        f"\n        <exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion>"
        for group, artifact in (unused.split(":") for unused in UNUSED)
    )
    return f"""\
{_HEAD.format(name="resolve")}  <packaging>pom</packaging>
  <dependencyManagement>
    <dependencies>
      <dependency>
        <groupId>org.apache.pulsar</groupId>
        <artifactId>pulsar</artifactId>
        <version>{version}</version>
        <type>pom</type>
        <scope>import</scope>
      </dependency>
    </dependencies>
  </dependencyManagement>
  <dependencies>
    <dependency>
      <groupId>org.apache.pulsar</groupId>
      <artifactId>pulsar-broker</artifactId>
      <version>{version}</version>
      <exclusions>{exclusions}
      </exclusions>
    </dependency>
  </dependencies>
</project>
"""


def exact(name: str, jars: Sequence[Jar]) -> str:
    """A module that depends on exactly these jars, and on nothing that they depend on."""
    dependencies = "".join(
        f"""
    <dependency>
      <groupId>{jar.group}</groupId>
      <artifactId>{jar.artifact}</artifactId>
      <version>{jar.version}</version>{_classified(jar.classifier)}
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""
        for jar in jars
    )
    return f"""\
{_HEAD.format(name=name)}  <packaging>pom</packaging>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""


def together(modules: Sequence[str]) -> str:
    """A project of modules that have nothing to do with each other."""
    names = "".join(f"<module>{name}</module>" for name in modules)
    return f"{_HEAD.format(name='fetch')}  <packaging>pom</packaging>\n  <modules>{names}</modules>\n</project>\n"


def _classified(classifier: str) -> str:
    return f"<classifier>{classifier}</classifier>" if classifier else ""
