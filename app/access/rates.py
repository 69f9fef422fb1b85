"""How many items a caller may ask for in a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from limits import RateLimitItem
from limits.strategies import SlidingWindowCounterRateLimiter

from app.access.windows import WindowStorage
from app.errors import PayloadTooLarge, RateLimited

MARGIN_S = 0.001  # at the very moment they would not fit yet


class Rates:
    """Counts items by caller; of this process alone.

    Args:
        clock: seconds, ever growing.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._storage = WindowStorage(clock)
        self._limiter = SlidingWindowCounterRateLimiter(self._storage)

    def spend(self, caller: str, limits: Sequence[RateLimitItem], items: int, total: int) -> None:
        """Count so many items of a caller, or none.

        Args:
            caller: whose.
            limits: all of them hold.
            items: to be counted now.
            total: of the request, of which some may have been counted already.

        Raises:
            RateLimited: if they do not fit now.
            PayloadTooLarge: if they never will.
        """
        for limit in limits:
            if total > limit.amount:
                raise PayloadTooLarge(
                    f"{total} items at once are more than a rate limit of {limit} ever lets "
                    f"through; send at most {limit.amount} at once"
                )
        # With several all are asked before one is counted.
        fits = self._limiter.hit if len(limits) == 1 else self._limiter.test
        for limit in limits:
            if not fits(limit, caller, cost=items):
                wait_s = self._wait_s(limit, caller, items)
                raise RateLimited(f"the rate limit is {limit}; send fewer or wait", wait_s)
        for limit in limits if len(limits) > 1 else ():
            self._limiter.hit(limit, caller, cost=items)

    def _wait_s(self, limit: RateLimitItem, caller: str, items: int) -> float:
        """Until so many items would fit, if nothing else came."""
        length_s = limit.get_expiry()
        before, before_s, now, _ = self._storage.get_sliding_window(limit.key_for(caller), length_s)
        room = limit.amount - items + 1  # they fit once less than this counts
        if now < room:  # in this window, when enough of the last one has faded
            return before_s - length_s * (room - now) / before + MARGIN_S
        return before_s + length_s * (1 - room / now) + MARGIN_S
