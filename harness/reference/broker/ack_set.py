"""Acknowledgement bit sets: bit i of the integer is 1 while message i of the batch is not acknowledged."""

from __future__ import annotations

from collections.abc import Iterable

_WORD = 1 << 64


def from_words(words: Iterable[int]) -> int:
    """Bits from the signed 64-bit words of ``MessageIdData.ack_set``. Words that were left off are zero."""
    return sum((word % _WORD) << (64 * place) for place, word in enumerate(words))


def to_words(bits: int) -> list[int]:
    """Signed 64-bit words, without zero words at the end."""
    words = []
    while bits:
        word = bits % _WORD
        words.append(word - _WORD if word >= _WORD >> 1 else word)
        bits >>= 64
    return words


def full(size: int) -> int:
    """Nothing acknowledged in a batch of ``size`` messages."""
    return (1 << size) - 1
