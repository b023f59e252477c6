"""The bit set of a batch on the wire: words of 64 bits, lowest first; a set bit is a member NOT yet acknowledged."""

from __future__ import annotations

from collections.abc import Iterable

_WORD_BITS = 64


def to_words(unacked: Iterable[int], size: int) -> list[int]:
    """Signed words for a batch of ``size``; trailing zero words are kept so that the length tells the size."""
    words = [0] * -(-size // _WORD_BITS)
    for index in unacked:
        words[index // _WORD_BITS] |= 1 << (index % _WORD_BITS)
    return [word - (1 << _WORD_BITS) if word >> (_WORD_BITS - 1) else word for word in words]


def from_words(words: Iterable[int], size: int) -> set[int]:
    """Members of a batch of ``size`` that are not acknowledged; no words at all means none is."""
    bits = 0
    given = False
    for place, word in enumerate(words):
        given = True
        bits |= (word % (1 << _WORD_BITS)) << (place * _WORD_BITS)
    return {index for index in range(size) if bits >> index & 1} if given else set(range(size))
