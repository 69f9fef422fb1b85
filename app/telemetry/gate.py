"""Leaves out most requests that are not sampled, before anything else is done about them."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence

NEVER = 1 << 60
# What a parent that is not sampled says: valid, of version 00, without the flag.
NOT_SAMPLED = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]")


class SamplingGate:
    """Says which requests may be sampled. Of the others this is all that tracing costs.

    A sampler by ratio takes a request if a part of its trace's random id is below a bound: as many
    are left out between two as if each was chosen by chance. So that number is drawn, and the id
    below the bound later, for those that are taken.

    Args:
        parent_fields: the headers that may name a caller's trace, in lower case.
        ratio: the share that is taken of requests without these; None: the sampler says.
        leaves_out: a request whose parent is not sampled is not either.
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
        """How many requests without a parent are left out before the next one."""
        if self._ratio is None or self._ratio >= 1.0:
            return 0
        if self._ratio == 0.0:
            return NEVER
        return int(math.log(1.0 - random.random()) / math.log1p(-self._ratio))  # nosec B311
