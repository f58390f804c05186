"""A limit on how often something is done."""

from __future__ import annotations

_ROUNDING = 1e-6  # of a token: rounding errors must not cause waits that are too short to measure


class TokenBucket:
    """Tokens that are added at *rate* a second, up to *burst*. For one thread."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate = rate
        self._burst = self._tokens = float(burst)
        self._counted_at = now

    def delay(self, now: float) -> float:
        """Returns the seconds until there is a token."""
        self._tokens = min(self._burst, self._tokens + (now - self._counted_at) * self._rate)
        self._counted_at = now
        return (1 - self._tokens) / self._rate if self._tokens < 1 - _ROUNDING else 0.0

    def take(self) -> None:
        """Takes a token."""
        self._tokens -= 1

    def is_full(self, now: float) -> bool:
        """Reports whether no token has been taken lately."""
        self.delay(now)
        return self._tokens >= self._burst
