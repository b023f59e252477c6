"""What the harness asks of a client under test, and what each way of refusing means for the record.

The words are those of ``docs/adapter-contract.md``; a client is a child process or the reference client in-process.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

CONTRACT_VERSION = 1

FAIL_KINDS: frozenset[str] = frozenset(
    {"unsupported", "invalid", "already_closed", "queue_full", "too_big", "not_connected", "no_such_handle"}
)
"""Error kinds that promise: nothing was asked of the broker, nothing may be stored."""

UNKNOWN_KINDS: frozenset[str] = frozenset({"timeout", "disconnected", "broker_error", "interrupted", "other"})
"""Error kinds after which the call may or may not have had its effect."""

MALFORMED = "malformed"
"""The answer to a request outside the contract: a fault of whoever asked, so neither *fail* nor *unknown*."""

CAPABILITIES: frozenset[str] = frozenset(
    {
        "explicit_sequence_id",
        "initial_sequence_id",
        "last_sequence_id",
        "batching",
        "chunking",
        "compression_lz4",
        "compression_zlib",
        "compression_zstd",
        "compression_snappy",
        "shared",
        "failover",
        "key_shared",
        "cumulative_ack",
        "nack",
        "ack_timeout",
        "dead_letter",
        "batch_index_ack",
        "ack_receipt",
        "chunk_expiry",
        "seek_message",
        "seek_time",
        "highest_sequence_id",
        "batch_split_on_repeated_id",
    }
)
"""Every capability the contract knows. A clause that needs one a client lacks is ``n/a``."""


class ClientError(Exception):
    """A call of the client under test ended in an error it told us about, or ran out of the driver's patience.

    ``kind`` is one of ``FAIL_KINDS`` or ``UNKNOWN_KINDS``; ``message`` is the client's own words, for people.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message

    @property
    def phase(self) -> Literal["fail", "unknown"]:
        """The phase with which a history completes the call. Anything not proved harmless is ``unknown``."""
        return "fail" if self.kind in FAIL_KINDS else "unknown"


class AdapterError(Exception):
    """The adapter itself failed. The run's verdict is *error*; the system under test is never blamed."""


class AdapterDied(AdapterError):
    """The adapter process is gone, or never came up. The message carries its exit status and last stderr lines."""


class AdapterEnded(AdapterDied):
    """The adapter process ended by itself, or was killed by somebody else: a fresh one can take over."""


class AdapterGarbage(AdapterError):
    """The adapter wrote something that is not of the contract. The message shows the line."""


class AdapterRefused(AdapterError):
    """The adapter answered ``malformed``: the harness sent a request that is not of the contract."""


class UnknownClient(ValueError):
    """No client of that name. The message lists those that exist."""


class Client(Protocol):
    """A client under test. ``name``, ``version`` and ``capabilities`` are known once ``start`` has returned."""

    @property
    def name(self) -> str:
        """Short name of the client library, as its adapter says it (``python``)."""

    @property
    def version(self) -> str:
        """Version of the library under test, not of the adapter."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Which of ``CAPABILITIES`` the client declares."""

    async def start(self) -> None:
        """Bring the client up. Raises ``AdapterError``."""

    async def request(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Carry out one operation of the contract (``op`` and its parameters; the ``id`` is ours to add).

        Returns the ``ok`` object. Waits at most ``timeout`` seconds, then raises ``ClientError("timeout", ...)``; the
        call may still take effect afterwards. Calls may overlap. Raises ``ClientError`` for what the client reports
        and ``AdapterError`` for what is our own trouble.
        """

    async def stop(self) -> None:
        """Close everything and free the process. Safe to call twice, and after a failed ``start``."""

    def alive(self) -> bool:
        """Whether requests can still be answered."""
