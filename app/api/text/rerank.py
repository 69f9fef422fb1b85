"""POST /rerank: texts in the order in which they answer a query, as TEI and infinity have it.

TEI's requests have `texts`, infinity's have `documents`; each is answered in its own form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from app.api.endpoints import Endpoint
from app.api.memo import Written
from app.api.outcomes import JSON_HEADERS, dumped
from app.api.text.body import TextCall, flag, texts_of
from app.api.text.scores import scores_of, wants_raw
from app.errors import InvalidInput
from app.types import Item, Outcome

TEXTS, DOCUMENTS = "texts", "documents"


class RerankCall(TextCall):
    """See `Call`."""

    __slots__ = ("_key", "_raw", "_texts", "_top")
    tasks = ("rerank",)

    def read(self, body: bytes, *, on_loop: bool) -> list[Item]:
        """See `Call`."""
        document = self.document
        query = document.get("query")
        if not isinstance(query, str):
            raise InvalidInput("'query' must be a string", [{"param": "query"}])
        self._key = DOCUMENTS if DOCUMENTS in document else TEXTS
        texts = texts_of(document, self._key)
        shows = flag(document, "return_documents" if self._key == DOCUMENTS else "return_text")
        self._texts = texts if shows else None
        self._raw = wants_raw(document, self.model)
        self._top = top_of(document)
        pairs = [[query, text] for text in texts]
        return self.items_of(pairs, lambda index: f"{self._key}[{index}]", on_loop=on_loop)

    def write(self, outcomes: Sequence[Outcome]) -> Written:
        """See `Call`."""
        found = scores_of(self.model, self.arrays_of(outcomes), raw=self._raw)
        scores = np.concatenate([each.reshape(-1) for each in found])
        order = np.argsort(-scores, kind="stable")[: self._top]
        is_tei = self._key == TEXTS
        name, text = ("score", "text") if is_tei else ("relevance_score", "document")
        ranks: list[dict[str, Any]] = []
        for index in order.tolist():
            rank = {"index": index, name: scores[index]}
            if self._texts is not None:
                rank[text] = self._texts[index]
            ranks.append(rank)
        if is_tei:
            return JSON_HEADERS, dumped(ranks)
        head = {"object": "rerank", "results": ranks, "model": str(self.model.id)}
        return JSON_HEADERS, dumped({**head, "usage": self.usage()})


def top_of(document: dict[str, Any]) -> int | None:
    """How many of the best are wanted; None: all.

    Raises:
        InvalidInput: it is no whole number of at least 1.
    """
    given = document.get("top_n")
    if given is not None and (type(given) is not int or given < 1):
        raise InvalidInput("'top_n' must be a whole number of at least 1", [{"param": "top_n"}])
    return given


ENDPOINTS = (Endpoint("/rerank", RerankCall, many=True),)
