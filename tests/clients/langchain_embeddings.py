"""langchain-openai's embeddings, unchanged but for the base URL. Argument: the address."""

from __future__ import annotations

import sys
from typing import Any

from langchain_openai import OpenAIEmbeddings

from tests.clients.checking import run_checks


def embeddings(url: str, **named: Any) -> Any:
    """Those of the model `embed`; texts are sent as they are, not as tokens of OpenAI's models."""
    return OpenAIEmbeddings(
        model="embed",
        base_url=f"{url}/v1",
        api_key="none",
        check_embedding_ctx_length=False,
        **named,
    )


def check_documents_and_a_query(url: str) -> None:
    made = embeddings(url)
    found = made.embed_documents(["cat", "a dog", "cat"])
    assert len(found) == 3
    assert found[0] == found[2] == made.embed_query("cat")
    assert found[0] != found[1]


async def check_the_same_as_coroutines(url: str) -> None:
    made = embeddings(url, dimensions=2)
    (found,) = await made.aembed_documents(["cat"])
    assert found == await made.aembed_query("cat")
    assert len(found) == 2


if __name__ == "__main__":
    run_checks(globals(), *sys.argv[1:])
