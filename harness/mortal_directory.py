"""Temporary directories that never outlive the harness."""

from __future__ import annotations

import os
import tempfile

from harness.processes import inherit, not_inherited
from harness.reaper import OURS


class MortalDirectory(tempfile.TemporaryDirectory[str]):
    """Goes away with ``cleanup``, and with the harness however that ends: a broker leaves hundreds of megabytes.

    ``what``: a word for its name. Raises ``OSError`` when it cannot be made.
    """

    def __init__(self, what: str, *, ignore_cleanup_errors: bool = False) -> None:
        super().__init__(prefix=f"{OURS}{what}-", ignore_cleanup_errors=ignore_cleanup_errors)
        inherit(self.name)

    def cleanup(self) -> None:
        super().cleanup()
        # Whatever could not be removed now can be when the last child has ended.
        if not os.path.exists(self.name):
            not_inherited(self.name)
