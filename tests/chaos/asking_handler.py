"""Draws requests for the handlers: good ones, and such that make their code misbehave."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Sequence

from tests.chaos.asking import IN_TIME, POPULAR
from tests.chaos.asking_much import MuchAsker
from tests.chaos.relayed import DEADLY
from tests.chaos.request import JSON, MEDIA_TYPES, Form, Request
from tests.chaos.truth import HANDLER, STREAMER, Item, Mark

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
SIZES = (1, 3, 8, 40)  # of streams; the last is more than is made ahead of their reader
# For GOOD ones a model is called again and again, and a list has as much time as any request.
STREAMED = (*2 * ((Mark.ALONE, SIZES),), (Mark.LARGE, SIZES), (Mark.GOOD, SIZES[:-1]))
STREAMED_FORMS: tuple[Form, ...] = ("sse", "ndjson", "json")


class HandlerAsker(MuchAsker):
    """Draws the requests of one client; see `Asker`."""

    def relayed(self) -> Request:
        """One or several items, in this form or that, with more time or less."""
        many = self._rng.random() < 0.3
        size = self._rng.choice(MANY) if many else 1
        items = [self._relayed_item() for _ in range(size)]
        values = [each.values() for each in items]
        asked: object = {"inputs": values} if many else values[0]
        return self._asked(HANDLER, items, asked, many=many)

    def streamed(self) -> Request:
        """Items to be answered one by one; at most one of them, at any place, does harm."""
        mark, sizes = self._rng.choice(STREAMED)
        items = self._alike(mark, self._rng.choice(sizes))
        items[self._rng.randrange(len(items))] = self._relayed_item()
        return self._streamed(items, self._rng.choice(STREAMED_FORMS))

    def large_stream(self) -> Request:
        """A stream of more bytes than the buffers of sockets hold."""
        return self._streamed(self._alike(Mark.LARGE, SIZES[-1]), "sse")

    def _alike(self, mark: Mark, size: int) -> list[Item]:
        return [Item(self._numbers.fresh(), mark) for _ in range(size)]

    def _streamed(self, items: Sequence[Item], form: Form) -> Request:
        return self._asked(STREAMER, items, [each.values() for each in items], form=form)

    def _asked(
        self,
        handler: str,
        items: Sequence[Item],
        content: object,
        *,
        many: bool = False,
        form: Form = "json",
    ) -> Request:
        timeout_ms = None
        if any(each.mark in ENDLESS for each in items):
            timeout_ms = ENDLESS_MS
        elif self._rng.random() < 0.1:
            timeout_ms = self._rng.choice(SHORT_MS)
        headers = [("Content-Type", JSON)]
        if handler == STREAMER:
            headers.append(("Accept", MEDIA_TYPES[form]))
        if timeout_ms is not None:
            headers.append(("X-Torchlane-Timeout-Ms", str(timeout_ms)))
        body = json.dumps(content).encode()
        if self._rng.random() < 0.2:
            headers.append(("Content-Encoding", "gzip"))
            body = gzip.compress(body, 1)
        version, prefix = None, f"/models/{handler}"
        if self._rng.random() < 0.2:
            version = self._versions.newest(handler)
            prefix += f"/versions/{version}"
        return Request(
            self._id(),
            f"{prefix}/{'batch-predict' if many else 'predict'}",
            body,
            model=handler,
            version=version,
            items=items,
            many=many,
            form=form,
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
