"""A real Pulsar with TLS, tokens and roles: how it is reached, what refusals say, and where no token may be."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from harness.clients.resolve import resolve as resolve_client
from harness.history.parquet import read_history
from harness.setup_error import SetupError
from harness.systems.access import read_client_conf
from harness.systems.external import ExternalSystem
from harness.systems.pulsar.jdk import find_java
from harness.systems.pulsar.version import NEWEST_LTS
from harness.systems.system import Address
from harness.worlds.plan import Fault, Operation, Plan, ScheduledFault
from harness.worlds.real import RealWorld
from harness.worlds.world import run_plan
from tests.certificates import make_certificates
from tests.real_pulsar import real_pulsar_or_skip
from tests.secured_pulsar import TLS_PLUGIN, TOKEN_PLUGIN, SecuredPulsar
from tests.tokens import token_for


@pytest.fixture(scope="module")
def pulsar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredPulsar]:
    installation = real_pulsar_or_skip()
    place = tmp_path_factory.mktemp("secured")
    broker = SecuredPulsar(installation, find_java(NEWEST_LTS), place / "broker", make_certificates(place))
    with asyncio.Runner() as runner:
        try:
            runner.run(broker.start())
            yield broker
        finally:
            runner.run(broker.kill())


class Confs:
    """Files as Pulsar's ``client.conf``; ``None`` for a setting leaves it out."""

    def __init__(self, pulsar: SecuredPulsar, place: Path) -> None:
        self._usual = {
            "webServiceUrl": "http://localhost:8080/",
            "brokerServiceUrl": "pulsar://localhost:6650/",
            "authPlugin": TOKEN_PLUGIN,
            "authParams": f"token:{pulsar.admin_token}",
            "tlsAllowInsecureConnection": "false",
            "tlsEnableHostnameVerification": "true",
            "tlsTrustCertsFilePath": str(pulsar.certificates.authority),
        }
        self._place = place

    def __call__(self, **settings: object) -> Path:
        path = self._place / "client.conf"
        lines = {**self._usual, **settings}
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items() if value is not None))
        return path


@pytest.fixture
def conf(pulsar: SecuredPulsar, tmp_path: Path) -> Confs:
    return Confs(pulsar, tmp_path)


def reached(spec: str, conf: Path) -> tuple[ExternalSystem, Address, frozenset[str], dict[str, str]]:
    """What is known of the system once it was reached; it is left again."""

    async def there_and_back() -> tuple[Address, frozenset[str], dict[str, str]]:
        address = await system.start()
        try:
            return address, system.capabilities, system.configuration
        finally:
            await system.stop()

    system = ExternalSystem(spec, read_client_conf(conf))
    return system, *asyncio.run(there_and_back())


def refusal(spec: str, conf: Path) -> str:
    with pytest.raises(SetupError) as refused:
        reached(spec, conf)
    return str(refused.value)


# --- ways in ---


def test_through_tls_with_a_token_and_the_admin_service(pulsar: SecuredPulsar, conf: Confs):
    system, address, capabilities, settings = reached(f"{pulsar.secure},{pulsar.secure_admin}", conf())
    assert (address.tls, address.service_url) == (True, pulsar.secure)
    assert (system.product, system.alive()) == (f"pulsar@{NEWEST_LTS}", False)
    assert capabilities >= {"admin", "dedup", "dedup_switch", "cursor_view", "partitions", "batch_index_ack", "delayed"}
    assert "process_faults" not in capabilities
    assert settings["maxMessageSize"] == "5242880"
    assert not any("Auth" in name or "secret" in name.lower() for name in settings)


def test_with_a_token_in_the_clear(pulsar: SecuredPulsar, conf: Confs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN", pulsar.admin_token)
    _, address, capabilities, _ = reached(pulsar.plain, conf(authParams="env:MY_TOKEN"))
    assert not address.tls
    assert capabilities == {"key_shared", "ack_receipt", "producer_fencing"}


def test_with_a_certificate_of_ours(pulsar: SecuredPulsar, conf: Confs):
    own = f"tlsCertFile:{pulsar.certificates.client},tlsKeyFile:{pulsar.certificates.client_key}"
    _, _, capabilities, _ = reached(
        f"{pulsar.secure},{pulsar.secure_admin}", conf(authPlugin=TLS_PLUGIN, authParams=own)
    )
    assert "admin" in capabilities


def test_whom_nobody_verifies_is_reached_by_any_name(pulsar: SecuredPulsar, conf: Confs):
    elsewhere = pulsar.secure.replace("127.0.0.1", "localhost")
    reached(elsewhere, conf(tlsEnableHostnameVerification="false"))
    reached(elsewhere, conf(tlsTrustCertsFilePath=None, tlsAllowInsecureConnection="true"))


# --- no way in ---


def test_roles_without_rights(pulsar: SecuredPulsar, conf: Confs):
    visitor = conf(authParams=f"token:{token_for('visitor')}")
    told = refusal(pulsar.secure, visitor)
    assert "no way into the broker" in told
    assert "the broker refuses: Client is not authorized to Lookup" in told
    assert "may its role produce to and consume from public/default?" in told
    grant(pulsar, "visitor")
    reached(pulsar.secure, visitor)
    told = refusal(f"{pulsar.secure},{pulsar.secure_admin}", visitor)
    assert f"admin refused at {pulsar.secure_admin}: PUT namespaces/public/starquake-" in told
    assert "Unauthorized to validateTenantOperation" in told
    assert "give the token of that tenant's admin role" in told


def grant(pulsar: SecuredPulsar, role: str) -> None:
    answer = httpx.post(
        f"{pulsar.secure_admin}/admin/v2/namespaces/public/default/permissions/{role}",
        json=["produce", "consume"],
        headers={"Authorization": f"Bearer {pulsar.admin_token}"},
        verify=pulsar.certificates.trusting(),
        trust_env=False,
    )
    assert answer.is_success, answer.text


def test_tokens_that_are_none(pulsar: SecuredPulsar, conf: Confs):
    for token, mend in (
        (token_for("admin", expires=int(time.time()) - 60), r"The token expired on "),
        (token_for("admin", secret=b"somebody else's secret of 32 bytes"), "signed with this broker's key"),
        ("nonsense", "signed with this broker's key"),
    ):
        told = refusal(pulsar.secure, conf(authParams=f"token:{token}"))
        assert "no way into the broker" in told
        assert "the broker refuses: Failed to authenticate" in told
        assert mend in told
        assert token not in told
    assert "name Pulsar's client.conf" in refusal(pulsar.secure, conf(authPlugin=None, authParams=None))


def test_certificates_that_do_not_fit(pulsar: SecuredPulsar, conf: Confs):
    told = refusal(pulsar.secure, conf(tlsTrustCertsFilePath=pulsar.certificates.stranger))
    assert "the broker's certificate is not trusted" in told
    assert "tlsTrustCertsFilePath" in told
    told = refusal(pulsar.secure.replace("127.0.0.1", "localhost"), conf())
    assert "the broker's certificate is not for 'localhost'" in told
    assert "tlsEnableHostnameVerification=false" in told


def test_ports_that_are_something_else(pulsar: SecuredPulsar, conf: Confs):
    usual = conf()
    plain, secure = pulsar.ports.broker, pulsar.tls_port
    web, web_tls = pulsar.ports.web, pulsar.web_tls_port
    for spec, mend in (
        (f"pulsar+ssl://127.0.0.1:{plain}", f"without TLS; give it as pulsar://127.0.0.1:{plain}."),
        (f"pulsar://127.0.0.1:{secure}", f"This is a TLS port; give it as pulsar+ssl://127.0.0.1:{secure}."),
        (f"pulsar+ssl://127.0.0.1:{web_tls}", "This is an HTTPS port; give the port of the binary protocol with TLS"),
        (f"pulsar://127.0.0.1:{web_tls}", "This is an HTTPS port"),
        (f"pulsar+ssl://127.0.0.1:{web}", "This is an HTTP port; give the port of the binary protocol (6651)"),
        (f"{pulsar.secure},http://127.0.0.1:{web_tls}", "Check the URL (port 8080, or 8443 with https)"),
        (f"{pulsar.secure},https://127.0.0.1:{web}", "no admin service at "),
        (f"{pulsar.secure},https://127.0.0.1:1", "no admin service at "),
    ):
        assert mend in refusal(spec, usual), spec


# --- a run, and where no token may be ---

PLAN = Plan(
    operations=[
        Operation(verb="consumer", handle="c0", params={"type": "shared"}),
        Operation(verb="producer", handle="p0"),
        *(Operation(verb="send", handle="p0", params={"tag": f"m{n}"}, wait=n != 3) for n in range(6)),
        Operation(verb="flush", handle="p0"),
        Operation(verb="consume", handle="c0", params={"count": 6, "timeout_ms": 3_000}),
    ],
    schedule=[ScheduledFault(before=6, fault=Fault(kind="cut"))],
    topic_options={"dedup": True},
)


@pytest.mark.parametrize("method", ["token", "tls"])
@pytest.mark.parametrize("client", ["reference", "python"])
def test_a_plan_through_tls(pulsar: SecuredPulsar, conf: Confs, tmp_path: Path, client: str, method: str):
    own = f"tlsCertFile:{pulsar.certificates.client},tlsKeyFile:{pulsar.certificates.client_key}"
    way = conf() if method == "token" else conf(authPlugin=TLS_PLUGIN, authParams=own)
    world = RealWorld(
        ExternalSystem(f"{pulsar.secure},{pulsar.secure_admin}", read_client_conf(way)),
        resolve_client(client, log=tmp_path / "client.log"),
        history_dir=tmp_path / "runs",
    )
    world.lanes = 2
    world.start()
    try:
        outcome = run_plan(world, PLAN)
        running = "\n".join(" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True))
    finally:
        world.stop()
    assert outcome.error is None
    assert outcome.judgement.anomalies == []
    taps = [event for event in outcome.history if event.layer in ("tap.client", "tap.broker")]
    assert {event.layer for event in taps if event.kind == "CONNECT"} == {"tap.client", "tap.broker"}
    confirmed = {event.payload_digest for event in outcome.history if (event.kind, event.phase) == ("send", "ok")}
    stored = {event.payload_digest for event in outcome.history if (event.layer, event.kind) == ("log", "ENTRY")}
    assert len(stored) == 6
    assert confirmed <= stored
    assert {event.extra["complete"] for event in outcome.history if event.kind == "LOG_END"} == {True}
    # The secret part of a token says enough; the whole of it may be cut somewhere.
    secret = pulsar.admin_token.rsplit(".", 1)[1]
    assert outcome.directory is not None
    assert secret not in repr(outcome)
    assert secret not in running
    assert all(secret not in str(event) for event in read_history(outcome.directory))
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "client.conf"]
    assert {"run.json", "client.log"} <= {path.name for path in kept}
    assert all(secret.encode() not in path.read_bytes() for path in kept)


def test_the_gate_says_why_it_is_not_let_in_and_shows_no_token(pulsar: SecuredPulsar, conf: Confs, tmp_path: Path):
    token = token_for("admin", expires=int(time.time()) - 60)
    command = [sys.executable, "-m", "harness", "gate", "--system", pulsar.secure, "--client", "reference"]
    ran = subprocess.run(
        [*command, "--client-conf", str(conf(authParams=f"token:{token}")), "--report", str(tmp_path / "report")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2
    assert "could not be run: no way into the broker" in ran.stderr
    assert "The token expired on " in ran.stderr
    assert "Traceback" not in ran.stderr
    written = "".join(path.read_text() for path in (tmp_path / "report").rglob("*") if path.is_file())
    assert token not in ran.stdout + ran.stderr + written
