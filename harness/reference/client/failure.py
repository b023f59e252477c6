"""Why something the client asked for did not happen, in the words of the adapter contract."""

from __future__ import annotations

from dataclasses import dataclass

from harness.wire.pulsar_pb2 import ServerError

# Asking again cannot help with these (clauses PROD-10, CONS-06).
_FINAL: frozenset[int] = frozenset(
    {
        ServerError.AuthenticationError,
        ServerError.AuthorizationError,
        ServerError.ConsumerBusy,
        ServerError.ChecksumError,
        ServerError.UnsupportedVersionError,
        ServerError.TopicNotFound,
        ServerError.SubscriptionNotFound,
        ServerError.TopicTerminatedError,
        ServerError.ProducerBusy,
        ServerError.InvalidTopicName,
        ServerError.IncompatibleSchema,
        ServerError.ConsumerAssignError,
        ServerError.NotAllowedError,
        ServerError.ProducerFenced,
    }
)


@dataclass(frozen=True, slots=True)
class Failure:
    """``kind`` and ``message`` are those of an adapter error; ``server_error`` is set when the broker said so."""

    kind: str
    message: str
    server_error: int | None = None
    final: bool = False

    @property
    def retriable(self) -> bool:
        """Whether another attempt may succeed without anybody changing the request."""
        return not self.final and self.server_error not in _FINAL


def server_error_name(error: int) -> str:
    """``PersistenceError``; ``ServerError 99`` for a number of a later revision (clause ERR-07)."""
    return ServerError.Name(error) if error in ServerError.values() else f"ServerError {error}"


def from_broker(error: int, message: str) -> Failure:
    """What an ERROR, SEND_ERROR, failed lookup or ACK_RESPONSE says."""
    name = server_error_name(error)
    return Failure("broker_error", f"{name}: {message}" if message else name, error)


DISCONNECTED = Failure("disconnected", "the connection was lost")
TIMED_OUT = Failure("timeout", "no answer within the operation timeout")
CLOSED = Failure("already_closed", "it was closed")
INTERRUPTED = Failure("interrupted", "closed while the outcome was open")
