"""OpenAI's client, unchanged but for its base URL. Arguments: the address, a key."""

from __future__ import annotations

import sys
from typing import Any

import openai

from tests.clients.checking import run_checks

CAT = [2, 6, 3]  # its tokens


def close(one: list[float], other: list[float]) -> bool:
    """Whether two vectors are equal, but for the last digits."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-6


class Wire:
    """The calls."""

    def __init__(self, url: str, key: str) -> None:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
        self.create, self.models = client.embeddings.create, client.models.list
        self.retrieve = client.models.retrieve

    def vectors(self, given: Any, **named: Any) -> list[list[float]]:
        """The vectors of `embed`."""
        return [e.embedding for e in self.create(model="embed", input=given, **named).data]


def check_base64_which_it_asks_for_and_floats(wire: Wire) -> None:
    coded = wire.create(model="embed", input=["cat", "a dog"])
    plain = wire.create(model="embed", input=["cat", "a dog"], encoding_format="float")
    assert [e.index for e in coded.data] == [0, 1]
    assert coded.model == "embed/2"
    assert (coded.usage.prompt_tokens, coded.usage.total_tokens) == (7, 7)
    for one, other in zip(coded.data, plain.data, strict=True):
        assert len(one.embedding) == 4
        assert close(one.embedding, other.embedding)


def check_token_ids(wire: Wire) -> None:
    assert wire.vectors(CAT) == wire.vectors([CAT]) == wire.vectors("cat")


def check_dimensions(wire: Wire) -> None:
    (whole,), (short,) = wire.vectors("cat"), wire.vectors("cat", dimensions=2, user="me")
    length = sum(each**2 for each in whole[:2]) ** 0.5
    assert close(short, [each / length for each in whole[:2]])


def check_models(wire: Wire) -> None:
    assert "embed" in [each.id for each in wire.models().data]
    found = wire.retrieve("embed/2")
    assert (found.id, found.object, found.owned_by) == ("embed/2", "model", "torchlane")


def refused(wire: Wire, kind: type[openai.APIStatusError], **named: Any) -> Any:
    """The error that a request raises."""
    try:
        wire.create(**named)
    except kind as error:
        return error
    raise AssertionError(f"no error: {named}")


def check_errors(wire: Wire) -> None:
    for named, kind, param, code in (
        ({"model": "none", "input": "cat"}, openai.NotFoundError, None, "model_not_found"),
        ({"model": "embed", "input": ""}, openai.BadRequestError, "input", "invalid_input"),
        ({"model": "rerank", "input": "a"}, openai.BadRequestError, "model", "invalid_input"),
    ):
        error = refused(wire, kind, **named)
        assert (error.type, error.param, error.code) == ("invalid_request_error", param, code)
        assert error.request_id, error


if __name__ == "__main__":
    run_checks(globals(), Wire(*sys.argv[1:]))
