"""Invariants: one file a family, each a keyed fold over a history. The contract is in ``core``."""
