"""Draws requests for the handler: good ones, and such that make its code misbehave."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Sequence

from tests.chaos.asking import IN_TIME, POPULAR
from tests.chaos.asking_much import MuchAsker
from tests.chaos.relayed import DEADLY
from tests.chaos.request import JSON, Request
from tests.chaos.truth import HANDLER, Item, Mark

ACTS = {
    Mark.RAISES: 4,
    Mark.LATE: 2,
    Mark.LINGERS: 1,
    Mark.PAUSES: 2,
    Mark.PRINTS: 2,
    Mark.FORKS: 1,
    Mark.LARGE: 3,
    Mark.BYTES: 5,
}
ACTING, ENDING = 0.2, 0.1  # shares of the items
# Without end, but for the time of their request.
ENDLESS = frozenset({Mark.LATE, Mark.LINGERS, Mark.LOOPS, Mark.BLOCKS, Mark.STAYS})
ENDLESS_MS = 700
SHORT_MS = (5, 20, 50, 200)
LATE = IN_TIME | {"handler_timeout"}
MANY = range(1, 9)


class HandlerAsker(MuchAsker):
    """Draws the requests of one client; see `Asker`."""

    def relayed(self) -> Request:
        """One or several items, in this form or that, with more time or less."""
        many = self._rng.random() < 0.3
        size = self._rng.choice(MANY) if many else 1
        return self._relayed([self._relayed_item() for _ in range(size)], many=many)

    def _relayed(self, items: Sequence[Item], *, many: bool) -> Request:
        timeout_ms = None
        if any(each.mark in ENDLESS for each in items):
            timeout_ms = ENDLESS_MS
        elif self._rng.random() < 0.1:
            timeout_ms = self._rng.choice(SHORT_MS)
        headers = [("Content-Type", JSON)]
        if timeout_ms is not None:
            headers.append(("X-Torchlane-Timeout-Ms", str(timeout_ms)))
        values = [each.values() for each in items]
        body = json.dumps({"inputs": values} if many else values[0]).encode()
        if self._rng.random() < 0.2:
            headers.append(("Content-Encoding", "gzip"))
            body = gzip.compress(body, 1)
        version, prefix = None, f"/models/{HANDLER}"
        if self._rng.random() < 0.2:
            version = self._versions.newest(HANDLER)
            prefix += f"/versions/{version}"
        return Request(
            self._id(),
            f"{prefix}/{'batch-predict' if many else 'predict'}",
            body,
            model=HANDLER,
            version=version,
            items=items,
            many=many,
            headers=headers,
            refusals=LATE if timeout_ms is not None else frozenset({"overloaded"}),
        )

    def _relayed_item(self) -> Item:
        draw = self._rng.random()
        if draw < ENDING and self._numbers.may_end(time.monotonic()):
            return Item(self._numbers.fresh(), self._rng.choice(sorted(DEADLY)))
        if draw < ACTING:
            mark = self._rng.choices(tuple(ACTS), tuple(ACTS.values()))[0]
            return Item(self._numbers.fresh(), mark)
        return Item(self._rng.choice(POPULAR)) if draw < 2 * ACTING else self._item()
