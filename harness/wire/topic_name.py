"""Names of topics (clauses LOOKUP-12, LOOKUP-13)."""

from __future__ import annotations

import re
from typing import Final

_PARTITION: Final = re.compile(r"-partition-(0|[1-9][0-9]{0,8})\Z")


def complete(name: str) -> str:
    """``persistent://tenant/namespace/name`` for any of the short forms; other names come back as they are.

    Short forms are ``x`` (in ``public/default``) and ``tenant/namespace/x``.
    """
    if not name or "://" in name:
        return name
    slashes = name.count("/")
    if slashes == 0:
        return f"persistent://public/default/{name}"
    return f"persistent://{name}" if slashes == 2 else name


def partition(name: str) -> int | None:
    """Number in the suffix ``-partition-3``; None without such a suffix."""
    match = _PARTITION.search(name)
    return int(match[1]) if match else None
