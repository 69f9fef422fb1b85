"""What a server holds in an open loop, beginning with what it answers in a closed one.

A closed loop has few connections, which all ask again when their batch was answered: batches are
as large as they can be, and what a request costs beside the model is the least that it can be. A
server whose model costs next to nothing may hold half of that when requests come at any time and
from many connections, and multiples of the larger figure would say little of overload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadtests.overload.loads import Load

LADDER = (1.0, 0.8, 0.64, 0.5, 0.4, 0.3, 0.2)  # of the closed loop's rate
HELD = 0.9  # answered in time, of what was to be


class NotHeld(Exception):
    """No rate was held, or one was not what was to be offered: there is no capacity to speak of."""


def capacity(closed_per_s: float, offer: Callable[[float], Load]) -> tuple[float, Sequence[Load]]:
    """Requests per second, which multiples are offered of.

    The closed loop's, where HELD of them are answered in time in an open loop too; else the most
    that were, of rates that go down until HELD of one is answered in time.

    Args:
        closed_per_s: answers in a closed loop.
        offer: what comes of this share of them in an open loop.

    Returns:
        the capacity, and what was tried.

    Raises:
        NotHeld: if not even the last rate is held, or the generator did not hold one that was.
    """
    tried: list[Load] = []
    for share in LADDER:
        tried.append(load := offer(share))
        best = max(tried, key=lambda each: each.goodput_per_s)
        at_once = load.goodput_per_s >= HELD * closed_per_s
        if at_once or load.goodput_per_s >= HELD * load.offered_per_s:
            if best.doubt is not None:
                raise NotHeld(f"what it answers most of could not be offered: {best.doubt}")
            return closed_per_s if at_once else best.goodput_per_s, tried
    raise NotHeld(f"not even {LADDER[-1]:.0%} of a closed loop's {closed_per_s:,.0f}/s was held")
