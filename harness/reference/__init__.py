"""How a client and a broker should behave: machines without I/O, time is an argument."""
