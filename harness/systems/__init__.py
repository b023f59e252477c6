"""Brokers under test and how each is run."""
