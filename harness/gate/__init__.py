"""The gate: every family in every pair of system and client, judged, explained and compared with what is known."""
