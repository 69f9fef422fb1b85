"""What a server holds in an open loop, beginning with what it answers in a closed one.

A closed loop has few connections, which all ask again when their batch was answered: batches are
as large as they can be, and what a request costs beside the model is the least that it can be. A
server whose model costs next to nothing may hold half of that when requests come at any time and
from many connections, and multiples of the larger figure would say little of overload.
"""

from __future__ import annotations

from collections.abc import Callable

from loadtests.overload.loads import Load

LADDER = (1.0, 0.8, 0.64, 0.5, 0.4, 0.3, 0.2)  # of the closed loop's rate
HELD = 0.9  # answered in time, of what was to be


def capacity(closed_per_s: float, offer: Callable[[float], Load]) -> float | None:
    """Requests per second, which multiples are offered of.

    The closed loop's, where HELD of them are answered in time in an open loop too; else the most
    that were, of rates that go down until HELD of one is answered in time.

    Args:
        closed_per_s: answers in a closed loop.
        offer: what comes of this share of them in an open loop.

    Returns:
        None if not even the last rate is held.
    """
    most_per_s = 0.0
    for share in LADDER:
        load = offer(share)
        if load.goodput_per_s >= HELD * closed_per_s:
            return closed_per_s
        most_per_s = max(most_per_s, load.goodput_per_s)
        if load.goodput_per_s >= HELD * load.offered_per_s:
            return most_per_s
    return None
