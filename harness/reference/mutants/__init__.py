"""Deliberately broken reference brokers and clients: the proof that the invariants can fail.

Each mutant is small, overrides one method of one part, and is named after what it breaks.
"""
