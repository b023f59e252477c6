"""Where things that are built once are kept between runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_directory() -> Path:
    """Starquake's directory in the user's cache (``XDG_CACHE_HOME`` respected). It need not exist yet."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path must be ignored.
    if os.path.isabs(chosen):
        base = Path(chosen)
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "starquake"
