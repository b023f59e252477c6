"""The rules that are decided from both sides: what the admin service tells against what the frames showed."""

from __future__ import annotations

from typing import Any

from harness.invariants.admin_accounts import AdminAccounts
from harness.invariants.admin_storage import AdminStorage
from harness.invariants.core import Invariant

INVARIANTS: tuple[Invariant[Any], ...] = (AdminAccounts(), AdminStorage())
