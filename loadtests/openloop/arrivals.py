"""Draws the arrivals of requests before a trial, so that no answer can delay a request."""

from __future__ import annotations

from typing import Literal

import numpy as np

from models.tensors import Array

ArrivalKind = Literal["poisson", "uniform"]


def schedule(kind: ArrivalKind, rate_per_s: float, seconds: float, seed: int) -> Array:
    """Draw arrival times with a constant mean rate.

    Args:
        kind: `poisson`: independent users, exponential gaps; `uniform`: equal gaps.
        rate_per_s: the mean rate.
        seconds: how long.
        seed: of the random gaps.

    Returns:
        ascending seconds from the start, float64 of shape (n,), all below `seconds`.

    Raises:
        ValueError: if the rate or the time is not above zero.
    """
    if not (rate_per_s > 0 and seconds > 0):
        raise ValueError(f"no schedule at {rate_per_s:g} requests/s for {seconds:g} s")
    if kind == "uniform":
        return np.arange(round(rate_per_s * seconds), dtype=np.float64) / rate_per_s
    rng = np.random.default_rng(seed)
    # Given their number, the arrivals of a Poisson process are independent and uniform.
    number = rng.poisson(rate_per_s * seconds)
    return np.sort(rng.random(number)) * seconds
