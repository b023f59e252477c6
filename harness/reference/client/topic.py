"""Names of topics."""

from __future__ import annotations

_DOMAINS = ("persistent", "non-persistent")


def complete_topic(name: str) -> str:
    """``t`` -> ``persistent://public/default/t``; a complete name stays as it is.

    Raises ``ValueError`` for what is no topic name (clause PROD-01).
    """
    domain, separator, path = name.partition("://")
    if not separator:
        domain, path = "persistent", name
        pieces = name.split("/")
        if len(pieces) == 1:
            path = f"public/default/{name}"
        elif len(pieces) != 3:
            raise ValueError(f"a short topic name is topic or tenant/namespace/topic: {name!r}")
    pieces = path.split("/", 2)
    if domain not in _DOMAINS or len(pieces) != 3 or not all(piece.strip() for piece in pieces):
        raise ValueError(f"not a topic name: {name!r}")
    return f"{domain}://{path}"
