"""Rate limits: how many items a caller may send per time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from limits import RateLimitItem
from limits.strategies import SlidingWindowCounterRateLimiter

from app.access.windows import WindowStorage
from app.errors import PayloadTooLarge, RateLimited

MARGIN_S = 0.001  # a retry at exactly the computed time would still be too early


class Rates:
    """Counts items by caller, only in this process.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._storage = WindowStorage(clock)
        self._limiter = SlidingWindowCounterRateLimiter(self._storage)

    def spend(self, caller: str, limits: Sequence[RateLimitItem], items: int, total: int) -> None:
        """Count all given items of a caller, or none.

        All limits apply. `total` are the items of the whole request, with those already counted.

        Raises:
            RateLimited: if the items exceed a limit now.
            PayloadTooLarge: if the whole request always exceeds a limit.
        """
        for limit in limits:
            if total > limit.amount:
                raise PayloadTooLarge(
                    f"{total} items at once exceed the rate limit of {limit}; "
                    f"send at most {limit.amount} at once"
                )
        # With several limits, all are tested before any is counted.
        fits = self._limiter.hit if len(limits) == 1 else self._limiter.test
        for limit in limits:
            if not fits(limit, caller, cost=items):
                wait_s = self._wait_s(limit, caller, items)
                raise RateLimited(f"the rate limit is {limit}; send fewer items or wait", wait_s)
        for limit in limits if len(limits) > 1 else ():
            self._limiter.hit(limit, caller, cost=items)

    def _wait_s(self, limit: RateLimitItem, caller: str, items: int) -> float:
        """Seconds until the items would fit, if no others arrived."""
        length_s = limit.get_expiry()
        before, before_s, now, _ = self._storage.get_sliding_window(limit.key_for(caller), length_s)
        room = limit.amount - items + 1  # they fit once the count is below this
        if now < room:  # they fit in this window, once enough of the last one has faded
            return before_s - length_s * (room - now) / before + MARGIN_S
        return before_s + length_s * (1 - room / now) + MARGIN_S
