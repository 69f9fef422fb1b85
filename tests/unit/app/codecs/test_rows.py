"""Counted rows: answers have those that count, ranked, with the labels of their classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from app.codecs.answers import AnswerEncoder
from app.codecs.base import NPY, OCTET_STREAM
from app.errors import InvalidInput
from app.types import Arrays
from models.codec_specs import TensorCodecSpec
from models.tensors import Dtype, TensorSpec
from tests.unit.models.manifests import make_manifest, spec

LABELS = ("circle", "square")
RANKED: dict[str, Any] = {"ranked_by": "scores", "classes": "classes", "labels": LABELS}


def counted(name: str, shape: tuple[int, ...], dtype: Dtype = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=(-1, *shape), count="found")


OUTPUTS = (
    counted("boxes", (4, 2)),
    counted("scores", (4,)),
    counted("classes", (4,), "int64"),
    spec("found", "int64", (-1,)),
    spec("whole", shape=(-1, 2)),
)


def encoder(*outputs: TensorSpec, **codec: Any) -> AnswerEncoder:
    made = TensorCodecSpec.model_validate(codec)
    return AnswerEncoder(make_manifest(outputs=outputs or OUTPUTS, codec=made))


def found(count: int) -> Arrays:
    """Four rows, of which some count; none is in order."""
    return {
        "boxes": np.arange(8, dtype=np.float32).reshape(4, 2),
        "scores": np.array([0.25, 0.75, 0.5, 1.0], np.float32),
        "classes": np.array([0, 1, 5, -1]),
        "found": np.array(count),
        "whole": np.array([7, 8], np.float32),
    }


def answer(made: AnswerEncoder, count: int, top_k: int | None = None) -> Any:
    got = made.encode(found(count), top_k)
    return orjson.loads(orjson.dumps(got, option=orjson.OPT_SERIALIZE_NUMPY))


class TestJson:
    def test_padding_rows_and_count_are_omitted(self) -> None:
        assert answer(encoder(), 2) == {
            "outputs": {
                "boxes": [[0, 1], [2, 3]],
                "scores": [0.25, 0.75],
                "classes": [0, 1],
                "whole": [7, 8],
            }
        }

    @pytest.mark.parametrize(("count", "rows"), [(0, 0), (-3, 0), (4, 4), (9, 4)])
    def test_count_is_limited_to_the_rows(self, count: int, rows: int) -> None:
        for made in (encoder(), encoder(**RANKED)):
            outputs = answer(made, count)["outputs"]
            assert [len(outputs[name]) for name in ("boxes", "scores", "classes")] == [rows] * 3
            assert outputs["whole"] == [7, 8]

    def test_ranked_rows_have_the_labels_of_classes(self) -> None:
        assert answer(encoder(**RANKED), 3) == {
            "outputs": {
                "boxes": [[2, 3], [4, 5], [0, 1]],
                "scores": [0.75, 0.5, 0.25],
                "classes": [1, 5, 0],
                "whole": [7, 8],
            },
            "labels": ["square", "5", "circle"],
        }

    def test_threshold_includes_equal_scores(self) -> None:
        made = encoder(**RANKED, threshold=0.5)
        assert answer(made, 3)["outputs"]["scores"] == [0.75, 0.5]
        assert answer(made, 1) == {
            "outputs": {"boxes": [], "scores": [], "classes": [], "whole": [7, 8]},
            "labels": [],
        }

    def test_top_k_of_the_caller_overrides_the_manifest(self) -> None:
        made = encoder(**RANKED, top_k=2)
        made.check_top_k()
        assert answer(made, 4)["outputs"]["scores"] == [1, 0.75]
        assert answer(made, 4, top_k=1)["outputs"]["scores"] == [1]
        assert answer(made, 4, top_k=99)["outputs"]["scores"] == [1, 0.75, 0.5, 0.25]

    def test_top_k_needs_a_rank(self) -> None:
        with pytest.raises(InvalidInput, match="no ranked rows; omit top_k"):
            encoder(classes="classes", labels=LABELS).check_top_k()

    def test_labels_without_a_rank(self) -> None:
        got = answer(encoder(classes="classes", labels=LABELS), 2)
        assert (got["labels"], got["outputs"]["scores"]) == (["circle", "square"], [0.25, 0.75])


class TestRaw:
    BOXES = encoder(counted("boxes", (4, 2)), spec("found", "int64", (-1,)))

    @pytest.mark.parametrize("media_type", [OCTET_STREAM, NPY])
    def test_raw_output_has_only_counted_rows(self, media_type: str) -> None:
        raw = b"".join(self.BOXES.encode_raw(media_type, [found(3)], many=False))
        assert raw.endswith(np.arange(6, dtype="<f4").tobytes())
        both = b"".join(self.BOXES.encode_raw(media_type, [found(1), found(1)], many=True))
        assert both.endswith(np.array([0, 1, 0, 1], "<f4").tobytes())
