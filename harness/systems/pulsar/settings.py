"""How a standalone broker is configured and started, as data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.systems.broker_process import SETTINGS, Settings
from harness.systems.pulsar.ports import HOST, Ports
from harness.systems.pulsar.version import PulsarVersion

DEFAULT_MAX_MESSAGE_SIZE = 5 * 1024 * 1024
FRAME_PADDING = 10 * 1024
"""What a broker allows around the largest message."""

MAIN_CLASS = "org.apache.pulsar.PulsarStandaloneStarter"

DEFAULTS: dict[str, str] = {
    "clusterName": "standalone",
    "numIOThreads": "2",
    "numHttpServerThreads": "8",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerCacheSizeMB": "64",
    "loadBalancerEnabled": "false",
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
    "brokerDeleteInactiveTopicsEnabled": "false",
    # A new namespace is cheap without them, and every session gets one.
    "systemTopicEnabled": "false",
    "topicLevelPoliciesEnabled": "false",
    # A session's namespace goes away with whatever is still connected to it.
    "forceDeleteNamespaceAllowed": "true",
    "forceDeleteTopicAllowed": "true",
    # Off by default before 4.1 (PIP-391): the clauses about batch indexes could never be decided there.
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "delayedDeliveryEnabled": "true",
    # Plans of some tens of messages are to cross from one ledger into the next.
    "managedLedgerMaxEntriesPerLedger": "32",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    # A full ledger that no subscription needs would be deleted: what was confirmed could not be read back at the end.
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    # Room for a process that is stopped on purpose, without a long wait for the dead session after a kill.
    "zooKeeperSessionTimeoutMillis": "5000",
    "metadataStoreSessionTimeoutMillis": "5000",
    "zookeeperSessionExpiredPolicy": "reconnect",
    # The bookie reads the same file. Its default ports and network come from the host name.
    "allowLoopback": "true",
    "listeningInterface": "lo",
    # Without it the port that is given on the command line is not used from 2.11 on.
    "allowEphemeralPorts": "true",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "dbStorage_writeCacheMaxSizeMb": "32",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "dbStorage_rocksDB_blockCacheSize": "8388608",
    "flushInterval": "60000",
    "journalMaxGroupWaitMSec": "1",
    # A write is in the kernel's hands before it is confirmed: that outlives the process, not the machine.
    "journalSyncData": "false",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.99",
    "gcWaitTime": "300000",
}
"""What every version is given, besides ports. All else is the version's own default."""

OPENED_PACKAGES = (
    *(
        f"java.base/{package}"
        for package in (
            "sun.net",
            "java.io",
            "java.util.zip",
            "java.nio",
            "jdk.internal.misc",
            "jdk.internal.ref",
            "jdk.internal.platform",
            "java.lang",
            "java.util",
        )
    ),
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
"""What the broker reaches into by reflection."""

JVM_FLAGS = (
    "-Xms64m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    # One thread collects and one compiler compiles: a broker that lives for seconds gains nothing from more.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:ErrorFile=java-error.log",
    "-Xshare:auto",
    "-Dio.netty.leakDetectionLevel=disabled",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dpulsar.allocator.exit_on_oom=true",
)

# Root causes come first and few frames are kept: what a person is shown of a broker that died is the end of this log.
LOG4J = """\
<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="error">
  <Appenders>
    <Console name="console" target="SYSTEM_OUT">
      <PatternLayout pattern="%d{HH:mm:ss.SSS} %-5p %c{1}: %m%n%notEmpty{%rEx{12}%n}" alwaysWriteExceptions="false"/>
    </Console>
  </Appenders>
  <Loggers>
    <Logger name="org.apache.bookkeeper.net" level="error"/>
    <Logger name="org.apache.bookkeeper.client.TopologyAwareEnsemblePlacementPolicy" level="error"/>
    <Root level="warn"><AppenderRef ref="console"/></Root>
  </Loggers>
</Configuration>
"""

# Of the web server's parts, which log by other means.
JAVA_LOGGING = ".level=SEVERE\n"


def configured(settings: Settings) -> dict[str, str]:
    """The broker's configuration by Pulsar's names, without ports. ``settings`` by the names of ``SETTINGS``.

    Raises ``ValueError`` for a setting that there is not, or of another type.
    """
    for name, value in settings.items():
        if type(value) is not SETTINGS.get(name):
            raise ValueError(f"no setting {name} = {value!r}; there are {_there_are()}")
    largest = int(settings.get("max_message_size", DEFAULT_MAX_MESSAGE_SIZE))
    chosen = {
        **DEFAULTS,
        "maxMessageSize": str(largest),
        # The bookie's: at its default of 5 MiB a message of 5 MiB is refused, and asked for again for ever. Never
        # below the default either, because what was stored under an earlier limit still has to be read.
        "nettyMaxFrameSizeBytes": str(max(largest, DEFAULT_MAX_MESSAGE_SIZE) + FRAME_PADDING),
    }
    for name, key in _KEYS.items():
        if name in settings:
            chosen[key] = _text(settings[name])
    return chosen


_KEYS = {
    "ledger_max_entries": "managedLedgerMaxEntriesPerLedger",
    "ledger_max_megabytes": "managedLedgerMaxSizePerLedgerMbytes",
    "ledger_max_minutes": "managedLedgerMaxLedgerRolloverTimeMinutes",
    "dedup": "brokerDeduplicationEnabled",
}


def standalone_conf(ports: Ports, settings: Settings) -> str:
    """The text of ``standalone.conf``, which broker and bookie both read."""
    placed = {
        "bindAddress": HOST,
        "advertisedAddress": HOST,
        "brokerServicePort": str(ports.broker),
        "webServicePort": str(ports.web),
    }
    return "".join(f"{key}={value}\n" for key, value in {**placed, **configured(settings)}.items())


def java_command(
    java: Path, classpath: str, version: PulsarVersion, ports: Ports, directory: Path, sharing: tuple[str, ...]
) -> list[str]:
    """The command line. ``directory`` holds what ``standalone.write_files`` put there, and the data.

    ``sharing``: the flags that use or make an archive of loaded classes.
    """
    if version.metadata_store == "zookeeper":
        # Its port is the one that is open on every interface: it binds without a host, whatever it is told.
        metadata = ["--zookeeper-dir", str(directory / "zookeeper"), "--zookeeper-port", str(ports.zookeeper)]
    else:
        metadata = ["--metadata-dir", str(directory / "metadata")]
    return [
        str(java),
        *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED_PACKAGES),
        *JVM_FLAGS,
        *sharing,
        # Native libraries are unpacked there; a killed broker would leave them in everybody's /tmp.
        f"-Djava.io.tmpdir={directory / 'tmp'}",
        f"-Dlog4j2.configurationFile={directory / 'log4j2.xml'}",
        f"-Djava.util.logging.config.file={directory / 'logging.properties'}",
        "-cp",
        classpath,
        MAIN_CLASS,
        *("-c", str(directory / "standalone.conf")),
        "-nss",
        "-nfw",
        *metadata,
        *("--bookkeeper-dir", str(directory / "bookkeeper")),
        *("--bookkeeper-port", str(ports.bookie)),
        *("-a", HOST),
    ]


def _there_are() -> str:
    return ", ".join(f"{name} ({kind.__name__})" for name, kind in SETTINGS.items())


def _text(value: int | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def merged(earlier: Mapping[str, int | bool | str], later: Settings | None) -> dict[str, int | bool | str]:
    """Settings after a change: what ``later`` does not name stays."""
    return {**earlier, **(later or {})}
