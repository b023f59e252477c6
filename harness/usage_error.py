"""Something the person at the keyboard can mend: a wrong name, a broken file, a directory that cannot be written."""

from __future__ import annotations


class UsageError(Exception):
    """Ends a command with exit code 2. The message is one complete sentence that names what to change."""
