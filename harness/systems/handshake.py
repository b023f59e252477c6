"""The first exchange of the binary protocol: CONNECT, CONNECTED. An open port alone proves nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from harness.systems.access import OPEN, Access
from harness.wire.frame import Frame, FrameDecoder, WireError, command_name, encode
from harness.wire.pulsar_pb2 import (
    BaseCommand,
    CommandConnect,
    CommandConnected,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    ServerError,
)

# The protocol version of Pulsar 2.10 and later: a broker answers with the lower of the two.
PROTOCOL_VERSION = 19

# X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL.
_WRONG_NAME = frozenset({62, 64})
_EXPIRED = 10
_OF_CERTIFICATES = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "HANDSHAKE_FAILURE", "UNKNOWN_CA")

WANTS_CERTIFICATE = (
    "It speaks TLS, and may want a certificate that it trusts: name tlsCertificateFilePath and tlsKeyFilePath in the"
    " client configuration (--client-conf FILE)."
)


class HandshakeFailed(Exception):
    """Nobody answered, or not as a Pulsar broker does. The message says which; ``mend`` what to do, where known."""

    def __init__(self, problem: str, mend: str = "") -> None:
        super().__init__(problem)
        self.mend = mend


class HandshakeRefused(HandshakeFailed):
    """A broker answered, and refused. ``error`` is its ServerError."""

    def __init__(self, problem: str, error: int) -> None:
        super().__init__(problem)
        self.error = error

    @property
    def of_access(self) -> bool:
        """Whether it refuses us, and not what we asked."""
        return self.error in (ServerError.AuthenticationError, ServerError.AuthorizationError)


async def handshake(host: str, port: int, timeout: float, access: Access = OPEN) -> CommandConnected:
    """Connect, say CONNECT, return the broker's CONNECTED, close. ``timeout`` in seconds for all of it."""
    (connected,) = await _converse(host, port, timeout, access, [_connect(access)])
    return connected.connected


async def find_owner(
    host: str, port: int, timeout: float, topic: str, access: Access = OPEN
) -> CommandLookupTopicResponse:
    """The answer to LOOKUP of a topic, which need not exist, on a connection of its own. Raises ``HandshakeFailed``."""
    lookup = CommandLookupTopic(topic=topic, request_id=1)
    question = BaseCommand(type=BaseCommand.LOOKUP, lookupTopic=lookup)
    _, found = await _converse(host, port, timeout, access, [_connect(access), question])
    answer = found.lookupTopicResponse
    if answer.HasField("error"):
        raise HandshakeRefused(f"the broker refuses: {answer.message}", answer.error)
    return answer


def _connect(access: Access) -> BaseCommand:
    connect = CommandConnect(client_version="starquake", protocol_version=PROTOCOL_VERSION)
    access.introduce(connect)
    return BaseCommand(type=BaseCommand.CONNECT, connect=connect)


async def _converse(
    host: str, port: int, timeout: float, access: Access, questions: Sequence[BaseCommand]
) -> list[BaseCommand]:
    """Ask one question after the other on a connection; the answers."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port, ssl=access.stream_context)
            try:
                answers = []
                for question in questions:
                    writer.write(encode(Frame(question)))
                    answers.append(await _answer(reader, question))
                return answers
            finally:
                writer.close()
    except TimeoutError as error:
        raise HandshakeFailed(f"no answer to CONNECT within {timeout:g} s") from error
    except ssl.SSLError as error:
        raise _without_tls(error, host) from error
    except ConnectionResetError as error:
        raise HandshakeFailed("the connection was reset without an answer to CONNECT") from error
    except OSError as error:
        raise HandshakeFailed(f"no connection: {error.strerror or error}") from error
    except UnicodeError as error:
        # What the resolver says of a name that cannot be encoded.
        raise HandshakeFailed(f"no connection: {host!r} is no host name ({error})") from error


async def _answer(reader: asyncio.StreamReader, question: BaseCommand) -> BaseCommand:
    asked = command_name(question)
    wanted = _ANSWERS[question.type]
    decoder = FrameDecoder()
    begin = b""
    while data := await reader.read(4096):
        begin = (begin + data)[:16]
        try:
            frames = decoder.feed(data)
        except WireError as error:
            raise HandshakeFailed(f"the answer is not of the Pulsar protocol: it begins {begin!r}") from error
        for frame in frames:
            if frame.command.type == wanted:
                return frame.command
            if frame.command.type == BaseCommand.ERROR:
                raise HandshakeRefused(f"the broker refuses: {frame.command.error.message}", frame.command.error.error)
            raise HandshakeFailed(f"the answer to {asked} was {command_name(frame.command)}")
    raise HandshakeFailed(f"the connection was closed without an answer to {asked}")


_ANSWERS = {
    BaseCommand.CONNECT: BaseCommand.CONNECTED,
    BaseCommand.LOOKUP: BaseCommand.LOOKUP_RESPONSE,
}


def _without_tls(error: ssl.SSLError, host: str) -> HandshakeFailed:
    """Why TLS was not agreed on, in words about certificates and ports."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message
        if error.verify_code in _WRONG_NAME:
            return HandshakeFailed(
                f"the broker's certificate is not for {host!r} ({said})",
                "Give the name that it is for, or set tlsEnableHostnameVerification=false in the client configuration.",
            )
        if error.verify_code == _EXPIRED:
            return HandshakeFailed(f"the broker's certificate is out of date ({said})", "The broker needs a new one.")
        return HandshakeFailed(
            f"the broker's certificate is not trusted ({said})",
            "Name the file of its authority's certificate as tlsTrustCertsFilePath in the client configuration"
            " (--client-conf FILE).",
        )
    reason = error.reason or str(error)
    if any(word in reason for word in _OF_CERTIFICATES):
        return HandshakeFailed(
            f"the broker refuses us in the TLS handshake ({reason})",
            WANTS_CERTIFICATE,
        )
    return HandshakeFailed(f"no TLS on this port ({reason})")
