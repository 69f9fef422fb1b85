"""Skips most requests that are not sampled, before any other work on them."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence

NEVER = 1 << 60
# The traceparent of a parent that is not sampled: valid, of version 00, without the flag.
NOT_SAMPLED = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]")


class SamplingGate:
    """Decides which requests may be sampled. For the others this is the whole cost of tracing.

    A ratio sampler samples a request if a part of its trace's random id is below a bound, so the
    gaps between sampled requests are distributed as if each was chosen by chance. The gate draws
    the length of each gap, and an id below the bound is drawn later for the sampled requests.

    Args:
        parent_fields: the headers that may contain a caller's trace, in lower case.
        ratio: the sampled share of requests without these headers; None if the sampler decides.
        leaves_out: whether requests are skipped whose parent is not sampled.
    """

    __slots__ = ("_leaves_out", "_left", "_parent_fields", "_ratio")

    def __init__(
        self, parent_fields: Sequence[bytes], ratio: float | None, *, leaves_out: bool
    ) -> None:
        self._parent_fields = list(parent_fields)
        self._ratio = ratio
        self._leaves_out = leaves_out and b"traceparent" in parent_fields
        self._left = self._between()

    def may_want(self, fields: Mapping[bytes, bytes]) -> bool:
        """Whether a request with these headers may be sampled."""
        for field in self._parent_fields:
            if field in fields:
                given = fields.get(b"traceparent", b"")
                return not (self._leaves_out and NOT_SAMPLED.fullmatch(given))
        if self._left:
            self._left -= 1
            return False
        self._left = self._between()
        return True

    def _between(self) -> int:
        """Number of requests without a parent to skip before the next sampled one."""
        if self._ratio is None or self._ratio >= 1.0:
            return 0
        if self._ratio == 0.0:
            return NEVER
        return int(math.log(1.0 - random.random()) / math.log1p(-self._ratio))  # nosec B311
