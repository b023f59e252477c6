"""What the reference client is told once, when it is made. All times are nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

MILLISECOND = 1_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings shared by everything a machine creates; what the contract can say per handle is said there.

    Defaults are those of a stock client (clauses OPT-01, ACK-IND-01, BACK-01).
    """

    operation_timeout: int = 30 * SECOND
    connect_timeout: int = 10 * SECOND
    keep_alive: int = 30 * SECOND
    backoff_initial: int = 100 * MILLISECOND
    backoff_maximum: int = 60 * SECOND
    max_redirects: int = 20
    ack_group_size: int = 1000
    redeliver_group_size: int = 1000
    ack_receipt: bool = False
    client_version: str = "Starquake-reference"
    protocol_version: int = 19
    auth_method: str = "none"
    auth_data: str | None = field(default=None, repr=False)
