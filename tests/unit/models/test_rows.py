"""What a manifest says of counted rows: complete, or rejected with what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from models.codec_specs import TensorCodecSpec
from models.manifest import Manifest
from models.rows import answer_outputs
from models.tensors import TensorSpec
from tests.unit.models.manifests import make_manifest, spec

BOXES = TensorSpec(name="boxes", dtype="float32", shape=(-1, 9, 4), count="n")
SCORES = TensorSpec(name="scores", dtype="float32", shape=(-1, 9), count="n")
KINDS = TensorSpec(name="kinds", dtype="int64", shape=(-1, 9), count="n")
N = spec("n", "int64", (-1,))
ALL = (BOXES, SCORES, KINDS, N)


def manifest(outputs: tuple[TensorSpec, ...] = ALL, **codec: Any) -> Manifest:
    return make_manifest(outputs=outputs, codec=TensorCodecSpec.model_validate(codec))


def test_rows_survive_a_json_round_trip() -> None:
    made = manifest(ranked_by="scores", classes="kinds", labels=("a", "b"), threshold=0.5, top_k=3)
    assert Manifest.model_validate_json(made.model_dump_json()) == made
    assert made.codec.score_labels is None


def test_answers_have_free_rows_without_the_count() -> None:
    shapes = {each.name: each.shape for each in answer_outputs(ALL)}
    assert shapes == {"boxes": (-1, -1, 4), "scores": (-1, -1), "kinds": (-1, -1)}
    assert answer_outputs((spec("y"),)) == (spec("y"),)


def test_inputs_cannot_have_a_count() -> None:
    with pytest.raises(ValidationError, match="input 'scores' has a count; only outputs are"):
        make_manifest([SCORES], outputs=ALL)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ((BOXES,), "the count of 'boxes' is 'n', which is not an output"),
        ((BOXES, spec("n", "float32", (-1,))), r"integers of shape \[-1\], .* got float32\[-1\]"),
        ((BOXES, spec("n", "int64", (-1, 1))), r"one for each item, got int64\[-1, 1\]"),
        (
            (BOXES, N.model_copy(update={"count": "m"}), spec("m", "int64", (-1,))),
            "the count 'n' must be integers",
        ),
        (
            (spec("y"), TensorSpec(name="x", dtype="float32", shape=(-1,), count="n"), N),
            r"'x' has a count, but no axis of rows: \[-1\]",
        ),
        ((N, BOXES), "the first output, 'n', cannot be a count"),
    ],
)
def test_wrong_counts(outputs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        manifest(outputs)


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        ({"threshold": 0.5}, "a threshold needs ranked_by"),
        ({"classes": "kinds"}, "classes is 'kinds', but there are no labels"),
        ({"ranked_by": "scores", "labels": ("a",)}, "labels of ranked rows need classes"),
        ({"ranked_by": "other"}, "ranked_by is 'other', not a counted output with a number"),
        ({"ranked_by": "boxes"}, "ranked_by is 'boxes', not a counted output"),
        ({"ranked_by": "kinds"}, "ranked_by needs floating-point numbers, not int64"),
        ({"classes": "scores", "labels": ("a",)}, "classes needs integers, not float32"),
        ({"top_k": 3}, "axis besides the batch; or ranked_by; got shape"),
    ],
)
def test_wrong_ranks(codec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        manifest(**codec)


def test_classes_and_scores_must_share_a_count() -> None:
    kinds = KINDS.model_copy(update={"count": "m"})
    outputs = (BOXES, SCORES, kinds, N, spec("m", "int64", (-1,)))
    with pytest.raises(ValidationError, match="'kinds' and 'scores' must have the same count"):
        manifest(outputs, ranked_by="scores", classes="kinds", labels=("a",))
