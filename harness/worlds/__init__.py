"""Worlds carry a plan out and record what happened: simulated (virtual time) and real (wall time)."""
