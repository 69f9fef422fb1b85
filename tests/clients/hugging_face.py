"""Hugging Face's inference client. Argument: the server's address."""

from __future__ import annotations

import sys

import numpy as np
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.clients.checking import run_checks
from tests.text_models import LABELS, SIZE


def check_feature_extraction(url: str) -> None:
    client = InferenceClient(url)
    one = client.feature_extraction("a cat")
    assert one.shape == (1, SIZE)
    assert abs(np.linalg.norm(one) - 1) < 1e-5
    many = client.feature_extraction(["a cat", "london"], normalize=True, truncate=True)
    assert many.shape == (2, SIZE)
    np.testing.assert_array_equal(many[:1], one)
    assert client.feature_extraction("a cat", dimensions=2).shape == (1, 2)


def check_text_classification(url: str) -> None:
    client = InferenceClient(url)
    labels = client.text_classification("a cat")
    assert sorted(each.label for each in labels) == sorted(LABELS)
    assert abs(sum(each.score for each in labels) - 1) < 1e-5
    best = client.text_classification("a cat", top_k=1, function_to_apply="softmax")
    assert best == labels[:1]


def check_errors_have_the_servers_sentence(url: str) -> None:
    told = ""
    try:
        InferenceClient(url).text_classification("a cat", function_to_apply="sigmoid")
    except HfHubHTTPError as error:
        told = str(error)
    assert "'function_to_apply' must be softmax" in told, told


if __name__ == "__main__":
    run_checks(globals(), sys.argv[1])
