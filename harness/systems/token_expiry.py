"""When a token ends, as it says itself: nothing is verified, it is only told to the person whose token was refused."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime


def expired_at(token: str) -> datetime | None:
    """The time in the ``exp`` of a JSON Web Token (RFC 7519, 4.1.4); None when it names none, or is no such token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return datetime.fromtimestamp(float(claims["exp"]), UTC)
    except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return None
