"""Access to a broker that somebody else runs: what client.conf may say, and what a broker that asks is told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from harness.clients.requests import AnyRequest
from harness.faults.session_tracker import SessionTracker
from harness.reference.client.config import ClientConfig
from harness.reference.client.machine import ClientMachine
from harness.reference.outputs import Write
from harness.setup_error import SetupError
from harness.systems.access import OPEN, Access, access_for, read_client_conf
from harness.systems.external import ExternalSystem
from harness.systems.pulsar_capabilities import PLAIN, capabilities
from harness.systems.token_expiry import expired_at
from harness.usage_error import UsageError
from harness.wire import pulsar_pb2 as pb
from harness.wire.frame import Frame, FrameDecoder, decode, encode
from harness.worlds.audit import AuditError, Auditor
from harness.worlds.driver import Ask, Driver
from harness.worlds.plan import Operation
from tests.certificates import Certificates, make_certificates
from tests.tokens import token_for

TOKEN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
TLS = "org.apache.pulsar.client.impl.auth.AuthenticationTls"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


# --- client.conf ---


@pytest.fixture
def conf(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: str) -> Path:
        path = tmp_path / "client.conf"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def test_a_conf_as_pulsar_ships_it_asks_for_nothing(conf):
    access = read_client_conf(
        conf(
            "# Configuration for pulsar-client and pulsar-admin CLI tools",
            "",
            "webServiceUrl=http://localhost:8080/",
            "brokerServiceUrl=pulsar://localhost:6650/",
            "authPlugin=",
            "authParams=",
            "tlsAllowInsecureConnection=false",
            "tlsEnableHostnameVerification=false",
            "tlsTrustCertsFilePath=",
            "useKeyStoreTls=false",
            "tlsTrustStoreType=JKS",
        )
    )
    assert access == Access(tls_hostname_verification=False)
    assert (access.client_auth, access.stream_context) == (None, None)


@pytest.mark.parametrize("plugin", [TOKEN, "token"])
def test_tokens_in_every_way_pulsar_takes_them(conf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin: str):
    (tmp_path / "my token").write_text("a.b.c\n")
    monkeypatch.setenv("MINE", "a.b.c")
    for params in ("token:a.b.c", f"file://{tmp_path}/my%20token", "env:MINE", '{"token":"a.b.c"}', "a.b.c"):
        access = read_client_conf(conf(f"authPlugin = {plugin}", f"  authParams={params}  "))
        assert (access.method, access.token) == ("token", "a.b.c"), params
        assert access.client_auth == {"method": "token", "data": "a.b.c"}
        assert "a.b.c" not in repr(access)


def test_certificates(conf, certificates: Certificates):
    own, key = certificates.client, certificates.client_key
    for lines in (
        ("authPlugin=tls", f"tlsCertificateFilePath={own}", f"tlsKeyFilePath={key}"),
        (f"authPlugin={TLS}", f"authParams=tlsCertFile:{own},tlsKeyFile:{key}"),
    ):
        access = read_client_conf(conf(*lines, f"tlsTrustCertsFilePath={certificates.authority}"))
        assert (access.tls_certificate, access.tls_key, access.token) == (own, key, None)
        assert access.client_auth == {"method": "tls"}
        assert access.context.check_hostname
        assert access.over_tls().stream_context is not None
    open_to_all = read_client_conf(conf("tlsAllowInsecureConnection=true"))
    assert (open_to_all.context.verify_mode, open_to_all.context.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            ["authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationAthenz"],
            "line 1: authPlugin: .*there are token",
        ),
        (["", "authPlugin=token"], "authParams: no token; give token:TOKEN, file:///PATH or env:VARIABLE"),
        (["authPlugin=token", "authParams=file:///no/such"], "line 2: authParams: cannot read /no/such: No such file"),
        (["authPlugin=token", "authParams=env:NO_SUCH_VARIABLE"], "'NO_SUCH_VARIABLE' is not set"),
        (["authPlugin=token", "authParams=token:se cret"], "line 2: authParams: what is given is no token"),
        (["authPlugin=token", "authParams=token:secr\u00e9t"], "what is given is no token"),
        (["authPlugin=tls"], "line 1: authPlugin: TLS authentication needs tlsCertificateFilePath"),
        (["authPlugin=tls", "authParams=secret"], "line 2: authParams: it should look like tlsCertFile:/PATH"),
        (
            ["# x", "tlsTrustCertsFilePath=/no/such"],
            "line 2: tlsTrustCertsFilePath: cannot read /no/such: No such file",
        ),
        (["tlsTrustCertsFilePath=/"], "line 1: tlsTrustCertsFilePath: cannot read /: Is a directory"),
        (["tlsTrustCertsFilePath={conf}"], "line 1: tlsTrustCertsFilePath: no usable PEM file"),
        (["tlsCertificateFilePath={conf}"], "line 1: tlsCertificateFilePath: no usable PEM file"),
        (["tlsAllowInsecureConnection=ja"], "line 1: tlsAllowInsecureConnection: 'ja' is neither true nor false"),
        (["useKeyStoreTls=true"], "line 1: useKeyStoreTls: key stores are Java's"),
        (["what is this"], "line 1: no 'key=value'"),
    ],
)
def test_a_conf_that_cannot_be_used_is_told_with_its_line(conf, tmp_path: Path, lines: list[str], says: str):
    path = conf(*(line.replace("{conf}", str(tmp_path / "client.conf")) for line in lines))
    with pytest.raises(UsageError, match=says) as error:
        read_client_conf(path)
    assert str(path) in str(error.value)
    assert "secr" not in str(error.value)


def test_an_encrypted_key_is_not_asked_for_at_the_terminal(conf, tmp_path: Path, certificates: Certificates):
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(certificates.client_key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
    with pytest.raises(UsageError, match="no usable PEM file"):
        read_client_conf(conf(f"tlsCertificateFilePath={certificates.client}", f"tlsKeyFilePath={locked}"))


def test_files_that_are_none(tmp_path: Path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="it is not text"):
        read_client_conf(tmp_path / "binary")
    with pytest.raises(UsageError, match=r"cannot read the client configuration .*No such file"):
        read_client_conf(tmp_path / "nowhere")


def test_only_for_systems_that_somebody_else_runs_is_the_file_read(tmp_path: Path):
    missing = tmp_path / "nowhere"
    assert access_for(["lite", "pulsar@4.0.7", "mutant:x"], missing) is OPEN
    assert access_for(["pulsar://h"], None) is OPEN
    for system in ("pulsar://h", "pulsar+ssl://h"):
        with pytest.raises(UsageError):
            access_for(["lite", system], missing)


def test_when_a_token_ends():
    assert expired_at(token_for("a", expires=1_700_000_000)) == datetime.fromtimestamp(1_700_000_000, UTC)
    for token in (token_for("a"), "a.b.c", "a", "", "..", "a.e30.c", "a.bnVsbA.c", "a.eyJleHAiOiAxZTk5OX0.c"):
        assert expired_at(token) is None


def test_capabilities_are_what_is_known():
    assert capabilities({}, admin=False) == PLAIN
    on = capabilities({"acknowledgmentAtBatchIndexLevelEnabled": "true", "delayedDeliveryEnabled": "True"}, admin=True)
    assert on - capabilities({}, admin=True) == {"batch_index_ack", "delayed"}
    assert on == capabilities({"acknowledgmentAtBatchIndexLevelEnabled": "true", "delayedDeliveryEnabled": "true",
                               "brokerDeduplicationEnabled": "false"}, admin=True)  # fmt: skip
    assert capabilities({}, admin=False, process_faults=True) == PLAIN | {"process_faults"}


# --- CONNECT ---


def connects(outputs: list[object]) -> list[pb.CommandConnect]:
    return [decode(output.data).command.connect for output in outputs if isinstance(output, Write)]


@pytest.mark.parametrize(
    ("auth", "method", "data"),
    [
        (None, "none", b""),
        ({"method": "token", "data": "a.b.c"}, "token", b"a.b.c"),
        ({"method": "tls"}, "tls", b""),
    ],
)
def test_the_reference_client_says_who_it_is_in_connect(auth: dict[str, str] | None, method: str, data: bytes):
    machine = ClientMachine(ClientConfig())
    asked = {"id": 1, "op": "client", "client": "a", "url": "pulsar://h:1"}
    machine.request(asked if auth is None else {**asked, "auth": auth}, 0)
    topic = "persistent://public/default/t"
    machine.request({"id": 2, "op": "producer", "client": "a", "producer": "p", "topic": topic, "name": "n"}, 0)
    (connect,) = connects(machine.connected(1, 1))
    assert (connect.auth_method_name, connect.auth_data) == (method, data)


@pytest.mark.parametrize(
    "auth", [{"method": "token"}, {"method": "tls", "data": "secret"}, {"method": "basic", "data": "secret"}, {}]
)
def test_auth_that_is_none_is_malformed_and_not_repeated(auth: dict[str, str]):
    asked = {"id": 1, "op": "client", "client": "a", "url": "pulsar://h:1", "auth": auth}
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert(asked, AnyRequest)
    assert "secret" not in str(error.value)


def test_requests_and_settings_do_not_show_it():
    asked = {"id": 1, "op": "client", "client": "a", "url": "x", "auth": {"method": "token", "data": "secret"}}
    assert "secret" not in repr(msgspec.convert(asked, AnyRequest))
    assert "secret" not in repr(ClientConfig(auth_method="token", auth_data="secret"))


def test_what_passes_is_recorded_without_it():
    tracker = SessionTracker("client-1", "tap.client")
    connect = pb.CommandConnect(
        client_version="v", auth_method_name="token", auth_data=b"secret", original_auth_data="secret"
    )
    lookup = pb.CommandLookupTopic(topic="t", request_id=1, original_auth_data="secret")
    partitions = pb.CommandPartitionedTopicMetadata(topic="t", request_id=2, original_auth_data="secret")
    answer = pb.CommandAuthResponse(response=pb.AuthData(auth_method_name="token", auth_data=b"secret"))
    for command in (
        pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=connect),
        pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=lookup),
        pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA, partitionMetadata=partitions),
        pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE, authResponse=answer),
    ):
        columns = tracker.frame(decode(encode(Frame(command))), "to_broker")
        assert "secret" not in str(columns)
        assert "client_version" in columns["extra"] or command.type != pb.BaseCommand.CONNECT


# --- a broker that asks ---


class Doorkeeper:
    """As much of a broker as looks at who comes. ``reads`` is what it was told, ``topics`` what was looked up."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.topics: list[str] = []
        self.closed_to: set[str] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                for frame in decoder.feed(data):
                    writer.write(encode(Frame(self.answer(frame.command))))
        writer.close()

    def answer(self, command: pb.BaseCommand) -> pb.BaseCommand:
        if command.type == pb.BaseCommand.CONNECT:
            connect = command.connect
            if (connect.auth_method_name, connect.auth_data) != ("token", self.token.encode()):
                error = pb.CommandError(request_id=0, error=pb.AuthenticationError, message="Failed to authenticate")
                return pb.BaseCommand(type=pb.BaseCommand.ERROR, error=error)
            connected = pb.CommandConnected(server_version="Pulsar Server4.0.7", protocol_version=19)
            return pb.BaseCommand(type=pb.BaseCommand.CONNECTED, connected=connected)
        assert command.type == pb.BaseCommand.LOOKUP
        topic = command.lookupTopic.topic
        self.topics.append(topic)
        found = pb.CommandLookupTopicResponse(request_id=command.lookupTopic.request_id)
        if topic in self.closed_to:
            found.response = pb.CommandLookupTopicResponse.Failed
            found.error = pb.AuthorizationError
            found.message = "Client is not authorized to Lookup"
        else:
            found.response = pb.CommandLookupTopicResponse.Connect
            found.brokerServiceUrl = "pulsar://elsewhere:6650"
        return pb.BaseCommand(type=pb.BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=found)


@contextlib.asynccontextmanager
async def door(keeper: Doorkeeper, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    server = await asyncio.start_server(keeper.serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_in_with_the_token_through_tls(certificates: Certificates):
    keeper = Doorkeeper("a.b.c")
    access = Access(method="token", token="a.b.c", tls_trust_certs=certificates.authority)
    async with door(keeper, certificates.serving()) as port:
        system = ExternalSystem(f"pulsar+ssl://127.0.0.1:{port}", access)
        await system.start()
        assert (system.product, system.access.tls, system.access.token) == ("pulsar@4.0.7", True, "a.b.c")
        assert keeper.topics, "whether it may use the namespace is asked, too"


@pytest.mark.parametrize(
    ("access", "closed", "mend"),
    [
        (OPEN, False, "name Pulsar's client.conf"),
        (Access(method="token", token="x.y.z"), False, "signed with this broker's key"),
        (
            Access(method="token", token=token_for("a", expires=0)),
            False,
            "The token expired on 1970-01-01 at 00:00 UTC",
        ),
        (Access(method="tls"), False, "trust our certificate"),
        (Access(method="token", token="a.b.c"), True, "may its role produce to and consume from public/default"),
    ],
)
async def test_a_refusal_says_what_to_do(access: Access, closed: bool, mend: str):
    keeper = Doorkeeper("a.b.c")
    if closed:
        keeper.closed_to.add("persistent://public/default/starquake-access")
    async with door(keeper) as port:
        with pytest.raises(SetupError, match=r"no way into the broker at pulsar://.*the broker refuses") as error:
            await ExternalSystem(f"pulsar://127.0.0.1:{port}", access).start()
    assert mend in str(error.value)
    assert access.token is None or access.token not in str(error.value)


async def test_a_broker_that_wants_a_certificate_of_ours(certificates: Certificates):
    keeper = Doorkeeper("a.b.c")
    trusting = Access(method="token", token="a.b.c", tls_trust_certs=certificates.authority)
    showing = Access(
        method="token",
        token="a.b.c",
        tls_trust_certs=certificates.authority,
        tls_certificate=certificates.client,
        tls_key=certificates.client_key,
    )
    async with door(keeper, certificates.serving(wants_certificate=True)) as port:
        with pytest.raises(SetupError, match=r"may want a certificate that it trusts: name tlsCertificateFilePath"):
            await ExternalSystem(f"pulsar+ssl://127.0.0.1:{port}", trusting).start()
        await ExternalSystem(f"pulsar+ssl://127.0.0.1:{port}", showing).start()


async def test_a_broker_that_says_that_it_wants_one(certificates: Certificates):
    """As brokers do; asyncio's servers only close, and what Python's close with something unread is a reset."""

    def turn_away(listener: socket.socket) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = certificates.serving(wants_certificate=True).wrap_bio(incoming, outgoing, server_side=True)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(10)
            refused = False
            while not refused:
                try:
                    tls.do_handshake()
                except ssl.SSLWantReadError:
                    connection.sendall(outgoing.read())
                    incoming.write(connection.recv(4096))
                except ssl.SSLError:
                    refused = True
            connection.sendall(outgoing.read())
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass

    trusting = Access(method="token", token="a.b.c", tls_trust_certs=certificates.authority)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        turning_away = asyncio.create_task(asyncio.to_thread(turn_away, listener))
        with pytest.raises(SetupError, match=r"(?s)refuses us in the TLS handshake.*name tlsCertificateFilePath"):
            await ExternalSystem(f"pulsar+ssl://127.0.0.1:{port}", trusting).start()
        await turning_away


async def test_the_auditor_says_who_it_is_through_tls(certificates: Certificates):
    class Nothing:
        def record(self, **columns: object) -> object:
            return columns

    keeper = Doorkeeper("a.b.c")
    access = Access(tls=True, method="token", token="a.b.c", tls_trust_certs=certificates.authority)
    async with door(keeper, certificates.serving()) as port:
        system = ExternalSystem(f"pulsar+ssl://127.0.0.1:{port}", access)
        address = await system.start()
        auditor = Auditor(address, Nothing(), system.access)
        await auditor.open()
        await auditor.close()
        stranger = Auditor(address, Nothing(), Access(tls=True, tls_trust_certs=certificates.stranger))
        with pytest.raises(AuditError, match="cannot connect to pulsar\\+ssl://"):
            await stranger.open()


async def test_an_admin_service_that_is_not_there(certificates: Certificates):
    keeper = Doorkeeper("a.b.c")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = free.getsockname()[1]
        async with door(keeper) as port:
            system = ExternalSystem(
                f"pulsar://127.0.0.1:{port},http://127.0.0.1:{nobody}", Access(method="token", token="a.b.c")
            )
            with pytest.raises(SetupError, match=f"no admin service at http://127.0.0.1:{nobody}"):
                await system.start()
            assert (system.admin, system.alive()) == (None, False)


def test_every_client_of_a_plan_is_told_who_it_is_and_the_history_is_not():
    recorded: list[object] = []

    class Keeps:
        def record(self, **columns: object) -> object:
            recorded.append(columns)
            return columns

    driver = Driver(Keeps(), "run", {"a": "pulsar://h:1"}, None, auth={"method": "token", "data": "secret"})
    script = driver.script(Operation(verb="producer", handle="p0"))
    first = next(script)
    assert isinstance(first, Ask)
    assert first.message["auth"] == {"method": "token", "data": "secret"}
    assert "secret" not in str(recorded)
