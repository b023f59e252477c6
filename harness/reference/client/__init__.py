"""The reference client: how a Pulsar client should behave, as a machine without I/O.

``machine.ClientMachine`` is the whole; every other file is one concept it is made of. ``parts.ClientParts`` names the
ones that can be replaced.
"""
