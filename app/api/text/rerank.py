"""POST /rerank: texts ranked by how well they answer a query, as in TEI and infinity.

TEI's requests have `texts`, infinity's have `documents`; each is answered in its own form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from app.api.endpoints import Endpoint
from app.api.text.body import TextCall
from app.api.text.fields import field, flag, one_of
from app.api.text.scores import scores_of, wants_raw
from app.errors import InvalidInput
from app.types import Item, Outcome

TEXTS, DOCUMENTS = "texts", "documents"


class RerankCall(TextCall):
    """See `Call`."""

    __slots__ = ("_key", "_raw", "_texts", "_top")
    tasks = ("rerank",)

    def read_document(self, document: dict[str, Any]) -> list[Item]:
        query = document.get("query")
        if not isinstance(query, str):
            raise InvalidInput("'query' must be a string", [{"param": "query"}])
        key = self._key = one_of(document, TEXTS, DOCUMENTS)
        texts = self.texts_of(document, key)
        shows = flag(document, "return_documents" if key == DOCUMENTS else "return_text")
        self._texts = texts if shows else None
        self._raw = wants_raw(document, self.model)
        self._top: int | None = field(document, "top_n", "a whole number of at least 1", _is_count)
        pairs = [[query, text] for text in texts]
        return self.items_of(document, pairs, lambda index: f"{key}[{index}]")

    def document_of(
        self, outcomes: Sequence[Outcome], collect: Callable[[Iterator[object]], object] = list
    ) -> object:
        """See `TextCall`; the places are ranked, so that they are made at once."""
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
        return ranks if is_tei else self.listed("rerank", "results", ranks)


def _is_count(given: object) -> bool:
    return type(given) is int and given >= 1


ENDPOINTS = (Endpoint("/rerank", RerankCall, many=True),)
