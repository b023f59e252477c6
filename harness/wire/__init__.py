"""What the bytes of the binary protocol mean: frames, metadata, batches, chunks, codecs and message ids. No I/O."""
