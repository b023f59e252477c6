"""A real Apache Pulsar: fetched once with Maven, started as a standalone on 127.0.0.1."""
