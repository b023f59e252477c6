"""Starquake: protocol conformance and fault injection for Apache Pulsar."""

__version__ = "0.1.0"
