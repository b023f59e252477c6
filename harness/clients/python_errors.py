"""What each error of pulsar-client 3.13.0 proves about the call that met it, as a kind of the adapter contract.

Two columns, because the same error means less when it comes late. *At once*: raised, or handed to the callback, before
the call returned to us, so no frame had been written for it. *Later*: the call was already in the client's hands; the
client fails what is pending with ``AlreadyClosed`` or ``NotConnected`` too, and a pending send may have been stored.
"""

from __future__ import annotations

from typing import NamedTuple

import pulsar


class Meaning(NamedTuple):
    """Contract kinds of one error."""

    at_once: str
    later: str


def _always(kind: str) -> Meaning:
    return Meaning(kind, kind)


MEANING: dict[str, Meaning] = {
    # Refusals without effect: of the client by its own configuration or buffers, or of a topic name by either side.
    "InvalidConfiguration": _always("invalid"),
    "InvalidMessage": _always("invalid"),
    "InvalidTopicName": _always("invalid"),
    "InvalidUrl": _always("invalid"),
    "CryptoError": _always("invalid"),
    "CumulativeAcknowledgementNotAllowedError": _always("invalid"),
    "OperationNotSupported": _always("unsupported"),
    "MessageTooBig": _always("too_big"),
    "ProducerQueueIsFull": _always("queue_full"),
    "MemoryBufferIsFull": _always("queue_full"),
    "ProducerNotInitialized": _always("already_closed"),
    "ConsumerNotInitialized": _always("already_closed"),
    # Local when at once; also what pending calls are failed with.
    "AlreadyClosed": Meaning("already_closed", "interrupted"),
    "NotConnected": Meaning("not_connected", "disconnected"),
    "ConnectError": _always("disconnected"),
    "ReadError": _always("disconnected"),
    "Timeout": _always("timeout"),
    "Interrupted": _always("interrupted"),
    # Answers of the broker: the call reached it.
    "AuthenticationError": _always("broker_error"),
    "AuthorizationError": _always("broker_error"),
    "BrokerMetadataError": _always("broker_error"),
    "BrokerPersistenceError": _always("broker_error"),
    "ChecksumError": _always("broker_error"),
    "ConsumerAssignError": _always("broker_error"),
    "ConsumerBusy": _always("broker_error"),
    "ConsumerNotFound": _always("broker_error"),
    "IncompatibleSchema": _always("broker_error"),
    "InvalidTxnStatusError": _always("broker_error"),
    "NotAllowedError": _always("broker_error"),
    "ProducerBlockedQuotaExceededError": _always("broker_error"),
    "ProducerBlockedQuotaExceededException": _always("broker_error"),
    "ProducerBusy": _always("broker_error"),
    "ProducerFenced": _always("broker_error"),
    "ServiceUnitNotReady": _always("broker_error"),
    "SubscriptionNotFound": _always("broker_error"),
    "TooManyLookupRequestException": _always("broker_error"),
    "TopicNotFound": _always("broker_error"),
    "TopicTerminated": _always("broker_error"),
    "TransactionConflict": _always("broker_error"),
    "TransactionCoordinatorNotFoundError": _always("broker_error"),
    "TransactionNotFound": _always("broker_error"),
    "UnsupportedVersionError": _always("broker_error"),
    # Raised for more than one reason.
    "ErrorGettingAuthenticationData": _always("other"),
    "LookupError": _always("other"),
    "UnknownError": _always("other"),
}

_DISCONNECTED = 46
"""The C++ library's ResultDisconnected follows Interrupted (45), but the binding gives it no name and no exception."""


def of_exception(error: Exception, *, at_once: bool) -> tuple[str, str]:
    """Kind and message of what a call raised.

    ``ValueError`` and ``TypeError`` come from the binding's own argument checks, before anything is done.
    """
    name = type(error).__name__
    message = f"{name}: {error}"
    if isinstance(error, pulsar.PulsarException):
        meaning = MEANING.get(name)
        if meaning is None:
            return ("disconnected" if "Disconnected" in str(error) else "other"), message
        return (meaning.at_once if at_once else meaning.later), message
    if isinstance(error, ValueError | TypeError):
        return "invalid", message
    return "other", message


def of_result(result: object, *, at_once: bool) -> tuple[str, str]:
    """Kind and message of the result code a callback was given (never for ``Ok``)."""
    name = str(getattr(result, "name", ""))
    meaning = MEANING.get(name)
    if meaning is not None:
        return (meaning.at_once if at_once else meaning.later), name
    code = int(result)  # type: ignore[call-overload]  # an enum of the untyped extension module
    return ("disconnected" if code == _DISCONNECTED else "other"), f"result {code} of the C++ library, without a name"
