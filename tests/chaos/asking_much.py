"""Draws what costs a client little: cheap requests by the hundred, and large answers."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.asking import POPULAR, Asker
from tests.chaos.request import JSON, Form, Request, in_chunks
from tests.chaos.truth import DEFAULT_MODEL, Item

FLOOD = range(100, 400)  # requests that are written at once
LARGE_ITEMS = (1, 8, 32)  # the last is more than the buffers of sockets hold
LARGE_FORMS: tuple[Form, ...] = ("json", "octets", "npy", "v2", "v2-binary")
CHUNKED = (("Content-Type", JSON), ("Transfer-Encoding", "chunked"))
PADDING_BYTES = 300  # of a body in chunks of one byte
LARGE = "wide"


class MuchAsker(Asker):
    """Draws the requests of one client; see `Asker`."""

    def cheap(self) -> list[tuple[Request, bytes]]:
        """Some hundreds of requests of one kind, and how each is sent."""
        kinds = (self._no_model, self._no_path, self._no_body, self._cached, self._other_method)
        draw = self._rng.choice((*kinds, self._tiny_chunks, self._tiny_chunks_refused, None))
        drawn = [(draw or self._rng.choice(kinds))() for _ in range(self._rng.choice(FLOOD))]
        return [(each, in_chunks(each, 1) if _is_chunked(each) else each.bytes) for each in drawn]

    def large(self) -> Request:
        """One whose answer is large; it is rejected if too much of others is unread."""
        return self._large(self._rng.choice(LARGE_FORMS))

    def large_by_grpc(self) -> Request:
        """The same, for an infer call."""
        return self._large("v2-binary")

    def _large(self, form: Form) -> Request:
        items = [Item(self._numbers.fresh()) for _ in range(self._rng.choice(LARGE_ITEMS))]
        refusals = frozenset({"overloaded"})
        return self._good(items, many=True, form=form, model=LARGE, refusals=refusals)

    def _cached(self) -> Request:
        """One that the cache answers, if there is a cache."""
        item = Item(self._rng.choice(POPULAR))
        return self._good([item], many=False, form="json", model=DEFAULT_MODEL)

    def _no_body(self) -> Request:
        return self._bad("invalid_input", body=b"")

    def _tiny_chunks(self) -> Request:
        asked = self._cached()
        padded = asked.body + b" " * PADDING_BYTES
        return replace(asked, body=padded, headers=CHUNKED)

    def _tiny_chunks_refused(self) -> Request:
        body = b" " * PADDING_BYTES
        if self._rng.random() < 0.5:
            return self._bad("invalid_input", body=body, headers=CHUNKED)
        return self._bad("model_not_found", "/models/nobody/predict", body=body, headers=CHUNKED)


def _is_chunked(request: Request) -> bool:
    return request.headers is CHUNKED
