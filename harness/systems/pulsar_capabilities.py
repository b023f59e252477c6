"""What a Pulsar broker can be asked to prove, by what is known of it."""

from __future__ import annotations

from collections.abc import Mapping

PLAIN = frozenset({"key_shared", "ack_receipt", "producer_fencing"})
"""What every Pulsar broker since 2.8 has without being configured for it, told to anybody who connects."""

ADMINISTERED = frozenset({"admin", "dedup", "dedup_switch", "cursor_view", "partitions"})
"""What its admin service adds: deduplication is off until a namespace is told otherwise."""

_SETTINGS = {
    "acknowledgmentAtBatchIndexLevelEnabled": "batch_index_ack",
    "delayedDeliveryEnabled": "delayed",
}


def capabilities(configuration: Mapping[str, str], *, admin: bool, process_faults: bool = False) -> frozenset[str]:
    """``configuration`` by Pulsar's names, empty when the broker does not tell it: what it does not say is not assumed.

    Batch index acknowledgement is on by default since 4.1 only (PIP-391).
    """
    configured = {known for name, known in _SETTINGS.items() if configuration.get(name, "").lower() == "true"}
    return PLAIN | (ADMINISTERED if admin else set()) | configured | ({"process_faults"} if process_faults else set())
