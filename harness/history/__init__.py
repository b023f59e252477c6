"""Histories: the event schema, the recorder that writes it and the Parquet directory it lives in."""
