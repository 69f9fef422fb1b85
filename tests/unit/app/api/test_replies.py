"""Outcomes to bodies."""

from __future__ import annotations

import io

import numpy as np
import orjson
import pytest

from app.api.native.replies import binary_parts, json_document
from app.api.outcomes import dumped
from app.backends.selection import Preference, select
from app.codecs.base import JSON, NPY, NPZ, OCTET_STREAM
from app.codecs.choose import codec_for
from app.errors import BackendFailed, ItemFailed, NonFiniteOutput
from app.registry.loaded_models import LoadedModel
from app.types import ModelId, Outcome
from models.manifest import Manifest
from tests.unit.models.manifests import make_manifest, spec


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
        assert orjson.loads(dumped(json_document(loaded(), [value(2.5)], many=False))) == {
            "model": "tiny",
            "version": 3,
            "prediction": {"outputs": {"value": [2.5]}},
        }

    def test_failed_item_keeps_its_position(self) -> None:
        answer = json_document(loaded(), [value(1), FAILED, NAN, value(4)], many=True)
        assert orjson.loads(dumped(answer)) == {
            "model": "tiny",
            "version": 3,
            "predictions": [
                {"outputs": {"value": [1]}},
                {"error": "the model failed on this item", "code": "backend_failed"},
                {"error": "the model answered NaN", "code": "non_finite_output"},
                {"outputs": {"value": [4]}},
            ],
        }

    def test_error_of_a_single_item_is_unchanged(self) -> None:
        for many in (False, True):
            with pytest.raises(NonFiniteOutput) as caught:
                json_document(loaded(), [NAN], many=many)
            assert caught.value is NAN

    def test_request_fails_if_all_items_fail(self) -> None:
        with pytest.raises(BackendFailed, match="2 of 2 items failed: the model failed") as caught:
            json_document(loaded(), [FAILED, NAN], many=True)
        assert caught.value.details == (
            {"index": 0, "code": "backend_failed"},
            {"index": 1, "code": "non_finite_output"},
        )


class TestBinaryAnswer:
    def test_predictions_as_bytes(self) -> None:
        one = b"".join(binary_parts(loaded(), OCTET_STREAM, [value(2)], many=False))
        assert one == np.array([2], "<f4").tobytes()
        many = b"".join(binary_parts(loaded(), NPY, [value(2), value(3)], many=True))
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
            binary_parts(loaded(), OCTET_STREAM, outcomes, many=len(outcomes) > 1)
        failed = [i for i, each in enumerate(outcomes) if isinstance(each, ItemFailed)]
        if len(outcomes) > 1:
            assert [detail["index"] for detail in caught.value.details] == failed

    def test_two_outputs_have_no_binary_form(self) -> None:
        model = loaded(make_manifest(outputs=[spec("value"), spec("other")]))
        assert loaded().codec.item_types == (JSON, OCTET_STREAM, NPY, NPZ)
        assert model.codec.item_types == (JSON, NPZ)
