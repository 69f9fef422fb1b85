"""What is loaded is learned from the server; where that fails, the error says what to do."""

from __future__ import annotations

import contextlib
import http.server
import socket

import orjson
import pytest

from loadtests.errors import UsageError
from loadtests.traffic.target import TargetError, exchange, from_models, learn
from tests.e2e.server import free_port
from tests.unit.loadtests.traffic.fake_server import (
    LABELLED,
    LABELS,
    FakeServer,
    listening,
    serving,
)


def test_the_default_model_is_learned_over_http() -> None:
    fake = FakeServer(codec=LABELLED)
    with listening(fake) as url:
        target = learn(url + "/")
    assert (target.url, target.model, target.version) == (url, "fake", 3)
    assert (target.precision, target.path("predict")) == ("float32", "/models/fake/predict")
    assert [spec.item_shape for spec in target.inputs] == [(2, 3)]
    assert [spec.name for spec in target.outputs] == ["y"]
    assert target.codec.labels == tuple(LABELS)
    assert [each.absolute for each in target.tolerances] == [1e-5]


def test_top_k_model_is_asked_for_all_scores() -> None:
    target = FakeServer(codec={**LABELLED, "top_k": 2}).target()
    assert target.path("predict") == "/models/fake/predict?top_k=999999999"
    assert target.path("predict", binary=True) == "/models/fake/predict"


def changed(**changes: object) -> bytes:
    answer = orjson.loads(FakeServer().models())
    answer["models"][0] |= changes
    return orjson.dumps(answer)


@pytest.mark.parametrize(
    ("answer", "wanted", "words"),
    [
        (changed(), "other", "no model 'other'; it has: fake"),
        (changed(default=False), None, "no default model; name one of: fake"),
        (changed(manifest=None, state="failed"), None, "it is failed, not loaded"),
        (changed(manifest={}), None, "cannot read the manifest"),
        (b'{"models": [{"name": "fake", "default": true, "manifest": {}}]}', None, "no 'version'"),
        (b"<html>", None, "is not a list of models"),
        (b"[]", None, "is not a list of models"),
        (b'{"models": []}', None, "no default model; name one of: none"),
    ],
)
def test_unusable_model_is_reported(answer: bytes, wanted: str | None, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        from_models(answer, "http://127.0.0.1:1", wanted)


def test_a_model_can_be_named() -> None:
    assert from_models(changed(default=False), "http://127.0.0.1:1", "fake").model == "fake"


def test_refused_connection_is_reported() -> None:
    with pytest.raises(TargetError, match=r"nothing listens at .*; is the server running\?"):
        learn(f"http://127.0.0.1:{free_port()}")


def test_stalled_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TargetError, match=r"not answered within 0\.05 s"):
            exchange(url, "GET", "/", timeout_s=0.05)


def test_incomplete_address_is_refused() -> None:
    with pytest.raises(UsageError, match="is not an address like"):
        learn("127.0.0.1:8000")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://a..b", "GET http://a..b/models.* failed: .*label"),
        ("http://127.0.0.1:1/\u00e4", "failed: .*ascii"),
    ],
)
def test_impossible_address_is_refused_with_the_reason(url: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        learn(url)


def not_torchlane() -> contextlib.AbstractContextManager[str]:
    return serving(http.server.HTTPServer(("127.0.0.1", 0), Silent))


class Silent(http.server.BaseHTTPRequestHandler):
    """Has no GET, so that the answer is 501."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_answer_of_another_server_is_reported() -> None:
    with not_torchlane() as url, pytest.raises(TargetError, match=r"(?s)answered 501.*Torchlane"):
        learn(url)
