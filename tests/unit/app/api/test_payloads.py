"""Bodies to items and outcomes to bodies."""

from __future__ import annotations

import io

import numpy as np
import orjson
import pytest

from app.api.payloads import (
    answer_media_type,
    binary_answer,
    check_length,
    json_answer,
    read_items,
)
from app.backends.selection import Preference, select
from app.codecs.base import NPY, OCTET_STREAM
from app.codecs.choose import codec_for
from app.codecs.tensor import TensorCodec
from app.errors import (
    BackendFailed,
    InvalidInput,
    ItemFailed,
    NonFiniteOutput,
    NotAcceptable,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from app.loaded import LoadedModel
from app.types import ModelId, Outcome
from models.manifest import Manifest
from tests.unit.models.manifests import make_manifest, spec

JSON = "application/json"
CODEC = TensorCodec(make_manifest([spec("x", shape=(-1, 2))]))


def read(
    body: object, content_type: str = JSON, *, many: bool = False, max_items: int = 3
) -> list[list[float]]:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    items = read_items(CODEC, content_type, raw, many=many, max_items=max_items)
    return [item.arrays["x"].tolist() for item in items]


def test_a_body_may_be_as_long_as_the_limit() -> None:
    check_length(4, limit=4)
    with pytest.raises(PayloadTooLarge, match="has 5 bytes or more, at most 4"):
        check_length(5, limit=4)


class TestReadItems:
    def test_one(self) -> None:
        assert read({"input": [1, 2]}) == [[1, 2]]

    def test_many_in_order(self) -> None:
        assert read({"inputs": [[1, 2], [3, 4], [1, 2]]}, many=True) == [[1, 2], [3, 4], [1, 2]]

    @pytest.mark.parametrize(
        "content_type", ["", JSON, "Application/JSON", "application/json; charset=utf-8"]
    )
    def test_json_by_any_of_its_names(self, content_type: str) -> None:
        assert read({"input": [1, 2]}, content_type) == [[1, 2]]

    @pytest.mark.parametrize("content_type", [OCTET_STREAM, "Application/Octet-Stream ; x=y"])
    def test_raw(self, content_type: str) -> None:
        body = np.array([[1, 2], [3, 4]], "<f4").tobytes()
        assert read(body, content_type, many=True) == [[1, 2], [3, 4]]
        assert read(body[:8], content_type) == [[1, 2]]

    @pytest.mark.parametrize("content_type", ["text/plain", "application/jsonp", "image/png"])
    def test_other_content_types(self, content_type: str) -> None:
        with pytest.raises(UnsupportedMediaType, match="this model takes application/json"):
            read({"input": [1, 2]}, content_type)

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"\xff", b"[1, 2", b'{"input": NaN}', b"[" * 3000, b'"\xed\xa0\x80"']
    )
    def test_no_json(self, body: bytes) -> None:
        with pytest.raises(InvalidInput, match=r'the body is not JSON: .*send \{"input": X\}'):
            read(body)

    @pytest.mark.parametrize(
        ("body", "many", "message"),
        [
            ([1, 2], False, 'the body must be {"input": X} and nothing else'),
            (None, True, 'the body must be {"inputs": [X, ...]} and nothing else'),
            ({"inputs": [[1, 2]]}, False, "; /batch-predict takes the other form"),
            ({"input": [1, 2]}, True, "; /predict takes the other form"),
            ({"input": [1, 2], "model": "x"}, False, 'must be {"input": X} and nothing else'),
            ({}, False, 'must be {"input": X}'),
            ({"inputs": []}, True, "'inputs' must be a list of at least one item"),
            ({"inputs": {"x": [1, 2]}}, True, "'inputs' must be a list"),
            ({"inputs": None}, True, "'inputs' must be a list"),
        ],
    )
    def test_a_wrong_form_is_told_the_right_one(
        self, body: object, many: bool, message: str
    ) -> None:
        with pytest.raises(InvalidInput) as caught:
            read(body, many=many)
        assert message in str(caught.value)

    def test_a_wrong_item_is_named_by_its_index(self) -> None:
        with pytest.raises(InvalidInput) as caught:
            read({"inputs": [[1, 2], [3], [4, 5]]}, many=True)
        problem = "'x': expected float32 of shape [2], got shape [1]"
        assert str(caught.value) == f"inputs[1]: {problem}"
        assert caught.value.details == ({"index": 1, "problem": problem},)

    def test_the_only_item_has_no_index(self) -> None:
        with pytest.raises(InvalidInput) as caught:
            read({"input": [3]})
        assert str(caught.value).startswith("'x': expected")
        assert caught.value.details == ()

    def test_too_many_items(self) -> None:
        values = [[1, 2]] * 4
        npy = io.BytesIO()
        np.save(npy, np.array(values, np.float32))
        for body, media_type in (
            ({"inputs": values}, JSON),
            (np.array(values, "<f4").tobytes(), OCTET_STREAM),
            (npy.getvalue(), NPY),
        ):
            with pytest.raises(PayloadTooLarge, match="4 items in one request, at most 3"):
                read(body, media_type, many=True)
            assert len(read(body, media_type, many=True, max_items=4)) == 4

    def test_they_are_counted_before_they_are_decoded(self) -> None:
        with pytest.raises(PayloadTooLarge):
            read({"inputs": ["wrong"] * 4}, many=True)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/json", JSON),
        ("application/octet-stream", OCTET_STREAM),
        ("Application/X-NPY", NPY),
        ("text/html, application/x-npy;q=0.9, */*;q=0.1", NPY),
        ("application/octet-stream;q=0, application/x-npy", NPY),
        ("application/octet-stream;q=0.000;x=1, application/x-npy;q=0.1", NPY),
        ("application/json;q=0.2, application/x-npy;q=0.8", NPY),
        ("application/x-npy;q=much", JSON),
        ("text/html", JSON),
        ("application/*", JSON),
    ],
)
def test_the_answers_form_is_what_accept_likes_best(accept: str, chosen: str) -> None:
    assert answer_media_type(accept) == chosen


def loaded(manifest: Manifest | None = None) -> LoadedModel:
    manifest = manifest or make_manifest()
    return LoadedModel(
        ModelId("tiny", 3), manifest, codec_for(manifest), select(manifest, Preference())
    )


def value(number: float) -> Outcome:
    return {"value": np.array([number], np.float32)}


FAILED = BackendFailed("the model failed on this item")
NAN = NonFiniteOutput("the model answered NaN")


class TestJsonAnswer:
    def test_one(self) -> None:
        assert orjson.loads(json_answer(loaded(), [value(2.5)], many=False)) == {
            "model": "tiny",
            "version": 3,
            "prediction": {"outputs": {"value": [2.5]}},
        }

    def test_a_failed_item_has_its_place_among_the_others(self) -> None:
        answer = json_answer(loaded(), [value(1), FAILED, NAN, value(4)], many=True)
        assert orjson.loads(answer) == {
            "model": "tiny",
            "version": 3,
            "predictions": [
                {"outputs": {"value": [1]}},
                {"error": "the model failed on this item", "code": "backend_failed"},
                {"error": "the model answered NaN", "code": "non_finite_output"},
                {"outputs": {"value": [4]}},
            ],
        }

    def test_the_only_item_fails_as_it_is(self) -> None:
        for many in (False, True):
            with pytest.raises(NonFiniteOutput) as caught:
                json_answer(loaded(), [NAN], many=many)
            assert caught.value is NAN

    def test_when_all_fail_the_request_fails(self) -> None:
        with pytest.raises(BackendFailed, match="2 of 2 items failed: the model failed") as caught:
            json_answer(loaded(), [FAILED, NAN], many=True)
        assert caught.value.details == (
            {"index": 0, "code": "backend_failed"},
            {"index": 1, "code": "non_finite_output"},
        )


class TestBinaryAnswer:
    def test_predictions_as_bytes(self) -> None:
        one = binary_answer(loaded(), OCTET_STREAM, [value(2)], many=False)
        assert one == np.array([2], "<f4").tobytes()
        many = binary_answer(loaded(), NPY, [value(2), value(3)], many=True)
        assert np.load(io.BytesIO(many)).tolist() == [[2], [3]]

    @pytest.mark.parametrize(
        ("outcomes", "message"),
        [
            ([value(1), FAILED, value(3)], "1 of 3 items failed: the model failed"),
            ([NAN, value(1), FAILED], "2 of 3 items failed: the model answered NaN"),
            ([FAILED], "the model failed on this item"),
        ],
    )
    def test_any_failure_fails_the_request(self, outcomes: list[Outcome], message: str) -> None:
        first = next(each for each in outcomes if isinstance(each, ItemFailed))
        with pytest.raises(type(first), match=message) as caught:
            binary_answer(loaded(), OCTET_STREAM, outcomes, many=len(outcomes) > 1)
        failed = [i for i, each in enumerate(outcomes) if isinstance(each, ItemFailed)]
        if len(outcomes) > 1:
            assert [detail["index"] for detail in caught.value.details] == failed

    def test_two_outputs_have_no_binary_form(self) -> None:
        model = loaded(make_manifest(outputs=[spec("value"), spec("other")]))
        outcome = {"value": np.zeros(1, "f4"), "other": np.zeros(1, "f4")}
        with pytest.raises(NotAcceptable):
            binary_answer(model, OCTET_STREAM, [outcome], many=False)
