"""How often a failure reproduces, with the interval that a handful of tries really supports."""

from __future__ import annotations

from math import sqrt

import msgspec

_Z95 = 1.959963984540054


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``failed`` of ``tries`` showed the anomaly."""

    failed: int
    tries: int

    def __post_init__(self) -> None:
        if not 0 <= self.failed <= self.tries:
            raise ValueError(f"{self.failed} of {self.tries} is not a rate")

    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson score interval; (0, 1) without any try.

        Wilson and not the normal approximation, because the usual case is 10 of 10, where the latter has no width.
        """
        if self.tries == 0:
            return 0.0, 1.0
        n, share = self.tries, self.failed / self.tries
        scale = 1 + _Z95**2 / n
        centre = (share + _Z95**2 / (2 * n)) / scale
        half = _Z95 * sqrt(share * (1 - share) / n + _Z95**2 / (4 * n * n)) / scale
        return max(0.0, centre - half), min(1.0, centre + half)

    def __str__(self) -> str:
        low, high = self.interval()
        return f"{self.failed} of {self.tries} (95 % interval {low:.0%} to {high:.0%})"
