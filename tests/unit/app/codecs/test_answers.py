"""Predictions as JSON objects and as bytes."""

from __future__ import annotations

import io

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from pydantic import ValidationError

from app.codecs.answers import AnswerEncoder, apply_scores, highest
from app.codecs.base import NPY, OCTET_STREAM
from app.errors import InvalidInput, NotAcceptable
from app.types import Array, Arrays
from models.choices import Scores
from models.codec_specs import TensorCodecSpec
from tests.unit.models.manifests import make_manifest, spec


def encoder(
    shape: tuple[int, ...] = (3,),
    labels: tuple[str, ...] | None = None,
    scores: Scores = "none",
    top_k: int | None = None,
) -> AnswerEncoder:
    codec = TensorCodecSpec(labels=labels, scores=scores, top_k=top_k)
    return AnswerEncoder(make_manifest(outputs=[spec("y", shape=(-1, *shape))], codec=codec))


def as_json(answer: object) -> object:
    return orjson.loads(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))


def rows(outputs: Arrays) -> list[dict[str, Array]]:
    """What a batch's outputs hold for each of its items."""
    count = len(next(iter(outputs.values())))
    return [{name: array[row] for name, array in outputs.items()} for row in range(count)]


def prediction(made: AnswerEncoder, **outputs: Array) -> dict[str, object]:
    """One item's way: finished in a batch, with a mate, and encoded."""
    batch = {name: np.stack([array, array + 1]) for name, array in outputs.items()}
    return made.encode(rows(made.finish(batch))[0])


LOGITS = np.array([0.0, np.log(3), np.log(4)], np.float32)
FINITE = npst.arrays(
    np.float32, st.integers(1, 9), elements=st.floats(-(2.0**126), 2.0**126, width=32)
)


class TestScores:
    @given(FINITE)
    def test_softmax_is_a_distribution_with_the_same_winner(self, logits: Array) -> None:
        got = apply_scores("softmax", logits)
        assert got.sum() == pytest.approx(1, abs=1e-5)
        assert got[logits.argmax()] == got.max()

    @given(FINITE)
    def test_sigmoid_is_exact_without_overflow(self, logits: Array) -> None:
        got = apply_scores("sigmoid", logits)
        with np.errstate(over="ignore"):
            want = 1 / (1 + np.exp(-logits.astype(np.float64)))
        np.testing.assert_allclose(got, want, atol=1e-6)
        assert got.dtype == np.float32


class TestJson:
    @pytest.mark.parametrize(
        ("scores", "score"), [("softmax", 0.5), ("sigmoid", 0.8), ("none", np.log(4))]
    )
    def test_with_labels(self, scores: Scores, score: float) -> None:
        answer = prediction(encoder(labels=("a", "b", "c"), scores=scores), y=LOGITS)
        assert list(answer) == ["label", "score", "scores"]
        assert answer["label"] == "c"
        assert answer["score"] == pytest.approx(score)
        np.testing.assert_array_equal(answer["scores"], apply_scores(scores, LOGITS))

    def test_labelled_answers_include_the_other_outputs(self) -> None:
        outputs = [spec("y", shape=(-1, 3)), spec("z", shape=(-1, 3)), spec("n", "int64", (-1,))]
        codec = TensorCodecSpec(labels=("a", "b", "c"))
        many = AnswerEncoder(make_manifest(outputs=outputs, codec=codec))
        answer = as_json(prediction(many, y=LOGITS, z=LOGITS * 0, n=np.array(7)))
        assert answer == {
            "label": "c",
            "score": pytest.approx(float(LOGITS[2])),
            "scores": pytest.approx(LOGITS.tolist()),
            "outputs": {"z": [0, 0, 0], "n": 7},
        }

    @pytest.mark.parametrize(
        "output",
        [
            np.array(1.5, np.float32),
            np.array(True),
            np.array([], np.float32),
            np.array([[1, 2], [3, 4]], np.int64),
            np.array([[1, 2, 3], [4, 5, 6]], np.float32).T,
            np.array([1.0, 0.5], np.float16),
            np.arange(6, dtype=np.uint8)[::2],
        ],
        ids=["number", "bool", "empty", "nested", "transposed", "half", "strided"],
    )
    def test_every_output_can_be_written(self, output: Array) -> None:
        answer = encoder(shape=(-1,) * output.ndim).encode({"y": output})
        assert as_json(answer) == {"outputs": {"y": output.tolist()}}

    def test_scores_apply_without_labels(self) -> None:
        answer = as_json(prediction(encoder(scores="softmax"), y=LOGITS))
        assert answer == {"outputs": {"y": pytest.approx([1 / 8, 3 / 8, 4 / 8])}}


class TestTopK:
    def test_with_labels(self) -> None:
        made = encoder(labels=("a", "b", "c"))
        assert as_json(made.encode({"y": np.array([0.25, 0.5, 0.125], "f4")}, 2)) == {
            "label": "b",
            "score": 0.5,
            "scores": [0.5, 0.25],
            "labels": ["b", "a"],
            "indices": [1, 0],
        }

    def test_without_labels(self) -> None:
        specs = [spec("y", shape=(-1, 3)), spec("z", shape=(-1, 2))]
        made = AnswerEncoder(make_manifest(outputs=specs, codec=TensorCodecSpec(scores="sigmoid")))
        outputs = {"y": np.array([1, 3, 2], "f4"), "z": np.array([5, 6], "f4")}
        assert as_json(made.encode(outputs, 1)) == {
            "outputs": {"y": [3], "z": [5, 6]},
            "indices": [1],
        }

    @pytest.mark.parametrize("top_k", [None, 1, 2, 9])
    def test_the_manifest_sets_the_default_number(self, top_k: int | None) -> None:
        made = encoder(labels=("a", "b", "c"), top_k=1)
        answer = as_json(made.encode({"y": LOGITS}, top_k))
        assert isinstance(answer, dict)
        assert answer["labels"] == ["c", "b", "a"][: top_k or 1]

    @given(
        st.lists(st.integers(0, 3), min_size=1, max_size=30),
        st.sampled_from(["float16", "float32", "float64", "int64", "uint8", "bool"]),
        st.integers(1, 40),
    )
    def test_scores_descend_with_ties_by_index(
        self, numbers: list[int], dtype: str, count: int
    ) -> None:
        scores = np.array(numbers, dtype)
        wanted = sorted(range(len(scores)), key=lambda at: (-int(scores[at]), at))[:count]
        assert highest(scores, count).tolist() == wanted

    @pytest.mark.parametrize(
        ("shape", "scores"), [((3,), "none"), ((), "sigmoid"), ((2, 3), "softmax")]
    )
    def test_a_model_without_scores(self, shape: tuple[int, ...], scores: Scores) -> None:
        with pytest.raises(InvalidInput, match="this model has none"):
            encoder(shape, scores=scores).check_top_k()
        with pytest.raises(ValidationError, match="top_k needs labels, or scores"):
            encoder(shape, scores=scores, top_k=2)
        encoder((3,), scores="softmax", top_k=2).check_top_k()

    def test_best_label_is_the_same_with_top_k(self) -> None:
        made = encoder(labels=("a", "b", "c"))
        equal = {"y": np.array([0, 1, 1], "f4")}
        assert made.encode(equal)["label"] == made.encode(equal, 1)["label"] == "b"

    def test_empty_output_has_no_top_k(self) -> None:
        made = encoder(shape=(-1,), scores="softmax")
        none = {"outputs": {"y": []}, "indices": []}
        assert as_json(made.encode({"y": np.array([], "f4")}, 5)) == none


def read(media_type: str, body: bytes) -> Array:
    if media_type == NPY:
        loaded: Array = np.load(io.BytesIO(body), allow_pickle=False)
        return loaded
    return np.frombuffer(body, "<f4")


@pytest.mark.parametrize("media_type", [OCTET_STREAM, NPY])
class TestBytes:
    def test_one(self, media_type: str) -> None:
        made = encoder(scores="softmax")
        finished = rows(made.finish({"y": LOGITS[np.newaxis]}))
        body = b"".join(made.encode_raw(media_type, finished, many=False))
        np.testing.assert_array_equal(read(media_type, body), apply_scores("softmax", LOGITS))

    @pytest.mark.parametrize("output", [LOGITS.astype(">f4"), np.repeat(LOGITS, 2)[::2]])
    def test_bytes_are_little_endian_and_row_major(self, media_type: str, output: Array) -> None:
        body = b"".join(encoder().encode_raw(media_type, [{"y": output}], many=False))
        assert body.endswith(LOGITS.astype("<f4").tobytes())

    def test_predictions_of_different_shapes_have_no_binary_form(self, media_type: str) -> None:
        predictions = [{"y": LOGITS}, {"y": LOGITS[:2]}]
        with pytest.raises(NotAcceptable, match="differ in shape"):
            b"".join(encoder(shape=(-1,)).encode_raw(media_type, predictions, many=True))
