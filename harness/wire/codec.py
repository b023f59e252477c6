"""Compression of payloads (clauses COMP-01, COMP-02, META-05).

LZ4 is one block without the size in front, SNAPPY the raw format, ZLIB and ZSTD are complete streams. The size before
compression travels in the metadata, so a decompressor knows it and never makes more.
"""

from __future__ import annotations

import zlib
from typing import Final

import cramjam

from harness.wire.frame import WireError
from harness.wire.pulsar_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, CompressionType

#: Larger than anything the harness sends. A metadata field claims up to 4 GiB, and that must not be allocated.
MAX_UNCOMPRESSED_SIZE: Final = 256 * 1024 * 1024


def compress(kind: CompressionType, data: bytes) -> bytes:
    """``data`` as a client with that compression type would send it."""
    if kind == NONE:
        return data
    if kind == LZ4:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    if kind == ZLIB:
        return zlib.compress(data)
    if kind == ZSTD:
        return bytes(cramjam.zstd.compress(data))
    if kind == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    raise ValueError(f"no compression type {kind}")


def decompress(kind: CompressionType, data: bytes, uncompressed_size: int) -> bytes:
    """The ``uncompressed_size`` bytes that ``data`` stands for.

    Raises ``WireError``: ``bad_compression`` for data that cannot be decompressed into that much room,
    ``uncompressed_size`` when the result has another size or the size is beyond ``MAX_UNCOMPRESSED_SIZE``. With NONE
    the size is not looked at: some clients leave it 0, some set it.
    """
    if kind == NONE:
        return data
    if not 0 <= uncompressed_size <= MAX_UNCOMPRESSED_SIZE:
        raise WireError("uncompressed_size", f"{uncompressed_size} bytes, at most {MAX_UNCOMPRESSED_SIZE}")
    if kind == ZLIB:
        return _inflate(data, uncompressed_size)
    # One byte more than claimed shows a result that is too long.
    output = bytearray(uncompressed_size + 1)
    try:
        if kind == LZ4:
            size = cramjam.lz4.decompress_block_into(data, output, output_len=uncompressed_size)
        elif kind == ZSTD:
            size = cramjam.zstd.decompress_into(data, output)
        elif kind == SNAPPY:
            size = cramjam.snappy.decompress_raw_into(data, output)
        else:
            raise ValueError(f"no compression type {kind}")
    except cramjam.DecompressionError as error:
        raise WireError("bad_compression", str(error)) from None
    return _checked(memoryview(output)[:size], uncompressed_size)


def _inflate(data: bytes, uncompressed_size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        result = inflater.decompress(data, uncompressed_size + 1)
    except zlib.error as error:
        raise WireError("bad_compression", str(error)) from None
    if len(result) <= uncompressed_size and (not inflater.eof or inflater.unused_data):
        raise WireError("bad_compression", "the stream does not end where the data ends")
    return _checked(result, uncompressed_size)


def _checked(result: bytes | memoryview, uncompressed_size: int) -> bytes:
    if len(result) != uncompressed_size:
        raise WireError("uncompressed_size", f"{len(result)} bytes, but the metadata says {uncompressed_size}")
    return bytes(result)
