"""The one error of stored histories: always a matter of the directory, said with what to do about it."""

from __future__ import annotations


class HistoryError(Exception):
    """A history cannot be written or read: no run directory, damaged Parquet, another schema version, a full disk."""
