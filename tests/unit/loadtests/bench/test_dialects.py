"""Answers of the servers: where their scores are, and what is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from loadtests.bench.dialects import DIALECTS, ONE_ROUTE, TORCHLANE, AnswerError
from loadtests.bench.workloads import INFINITY, PYTRITON

ROW = {"label": "1", "score": 0.75, "scores": [0.25, 0.75]}


@pytest.mark.parametrize("prediction", [ROW, {"outputs": {"y": [0.25, 0.75]}}])
def test_torchlane_answers_scores_or_unlabelled_outputs(prediction: dict[str, Any]) -> None:
    head = {"model": "m", "version": 1}
    one = TORCHLANE.scores(orjson.dumps({**head, "prediction": prediction}), many=False)
    np.testing.assert_array_equal(one, [[0.25, 0.75]])
    whole = orjson.dumps({**head, "predictions": [prediction] * 3})
    scores = TORCHLANE.scores(whole, many=True)
    assert scores is not None
    assert scores.shape == (3, 2)


def test_v2_answers_a_flat_tensor_in_either_encoding() -> None:
    v2 = DIALECTS[PYTRITON]
    output = {"name": "scores", "shape": [2, 2], "datatype": "FP32"}
    numbers = np.array([[1, 2], [3, 4]], np.float32)
    whole = orjson.dumps({"outputs": [{**output, "data": [1, 2, 3, 4]}]})
    octets = orjson.dumps({"outputs": [output]}) + numbers.tobytes()
    for content in (whole, octets):
        np.testing.assert_array_equal(v2.scores(content, many=True), numbers)
    with pytest.raises(AnswerError, match="no prediction with scores"):
        v2.scores(octets[:-4], many=True)


def test_embeddings_use_the_openai_api() -> None:
    dialect = DIALECTS[INFINITY]
    texts = np.array(["a cat", "two dogs"])
    assert dialect.body(texts, True) == {"model": "minilm", "input": texts.tolist()}
    assert dialect.body(texts, False) == {"model": "minilm", "input": "a cat"}
    data = [{"object": "embedding", "index": 0, "embedding": [0.25, 0.75]}]
    scores = dialect.scores(orjson.dumps({"object": "list", "data": data}), many=False)
    np.testing.assert_array_equal(scores, [[0.25, 0.75]])


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"error": "no", "code": "overloaded"}'])
def test_invalid_answers_raise_an_answer_error(content: bytes) -> None:
    for dialect in (TORCHLANE, ONE_ROUTE, DIALECTS[PYTRITON]):
        with pytest.raises(AnswerError):
            dialect.scores(content, many=False)


def test_peers_answer_one_prediction_or_many() -> None:
    one = ONE_ROUTE.scores(orjson.dumps(ROW), many=False)
    np.testing.assert_array_equal(one, [[0.25, 0.75]])
    many = ONE_ROUTE.scores(orjson.dumps({"predictions": [ROW, ROW]}), many=True)
    np.testing.assert_array_equal(many, [[0.25, 0.75], [0.25, 0.75]])
