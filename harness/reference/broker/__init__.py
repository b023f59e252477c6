"""The reference broker: an executable statement of how a broker of generation 4.0 behaves, without I/O or clock."""
