"""Hypothesis state machines, one a family, generic over system and client; and the pytest plugin that runs them."""
