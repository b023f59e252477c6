"""JSON Web Tokens signed with a secret (HS256), as ``pulsar tokens create`` makes them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

SECRET = b"a secret of this test run only, 40 bytes"


def token_for(role: str, *, expires: int | None = None, secret: bytes = SECRET) -> str:
    """``expires``: seconds since 1970."""
    claims: dict[str, Any] = {"sub": role} if expires is None else {"sub": role, "exp": expires}
    signed = ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": "HS256"}, claims))
    return f"{signed}.{_encoded(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
