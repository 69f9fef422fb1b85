"""infinity_client. Argument: the server's address."""

from __future__ import annotations

import sys
from typing import Any

from infinity_client import Client
from infinity_client.api.default import classify, embeddings, rerank
from infinity_client.models import ClassifyInput, OpenAIEmbeddingInputText, RerankInput

from tests.clients.checking import run_checks

TEXTS = ["dog", "cat", "a new cat", "london"]


def check_embeddings(url: str) -> None:
    with Client(base_url=url) as client:
        plain = OpenAIEmbeddingInputText(model="embed", input_=["cat", "a dog"])
        found: Any = embeddings.sync(client=client, body=plain)
        assert [each.index for each in found.data] == [0, 1]
        assert [len(each.embedding) for each in found.data] == [4, 4]
        assert found.usage.total_tokens == 7
        default = OpenAIEmbeddingInputText(input_="cat")
        alone: Any = embeddings.sync(client=client, body=default)
        assert alone.data[0].embedding == found.data[0].embedding


def check_rerank(url: str) -> None:
    with Client(base_url=url) as client:
        body = RerankInput(
            query="cat", documents=TEXTS, model="rerank", return_documents=True, top_n=3
        )
        found: Any = rerank.sync(client=client, body=body)
    scores = [each.relevance_score for each in found.results]
    assert scores == sorted(scores, reverse=True)
    assert [TEXTS[each.index] for each in found.results] == [e.document for e in found.results]
    assert (len(scores), found.model) == (3, "rerank/1")


def check_classify(url: str) -> None:
    with Client(base_url=url) as client:
        body = ClassifyInput(input_=["cat", "london"], model="classify")
        found: Any = classify.sync(client=client, body=body)
    assert [len(each) for each in found.data] == [3, 3]
    assert abs(sum(each.score for each in found.data[0]) - 1) < 1e-5
    assert {each.label for each in found.data[0]} == {"animal", "place", "other"}


if __name__ == "__main__":
    run_checks(globals(), *sys.argv[1:])
