"""Judges answers: compares their content with the idle server's answers, and checks their form."""

from __future__ import annotations

import io
import math
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.traffic.target import Target, TargetError
from models.rows import answer_outputs
from models.tensors import Array, TensorSpec, Tolerance

OCTET_STREAM = "application/octet-stream"
NPY = "application/x-npy"
# float32: the reference's answer and the one under load may each differ from eager by the tolerance
# of export, in opposite directions. A lossy precision gets its tolerance once: its forms are mixed
# only if they agree like float32, so only the rounding of small changes remains.
ALLOWANCE = {"float32": 2.0}
# For a picture with eight values changed by a grey level. On the digits model its scores change by
# up to 0.0020 in float32, 0.0094 in bf16 and 0.074 in int8 (512 pictures each), while 99.9 % of two
# pictures' scores differ by more than this.
PICTURE = Tolerance(absolute=0.01, relative=0, of_range=0.05)
# A unit in the last place of a float16 is up to 1e-3 of it: changing 41 numbers by one unit changes
# an answer by about the same share of its size, and by more if large terms cancel.
HALF = Tolerance(absolute=0.002, relative=0, of_range=0.02)
SUM_SLACK = {"float64": 1e-4, "float32": 1e-3, "float16": 1e-2}  # of scores that must sum to 1
OPTIONAL = {"outputs", "details"}  # for several outputs, and for truncated texts
LABELLED_FIELDS = {"label", "score", "scores"}
RANKED_FIELDS = LABELLED_FIELDS | {"labels", "indices"}
# The errors that numpy raises for files of random bytes, whose headers it parses as Python.
NPY_ERRORS = (ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)


class WrongAnswer(Exception):
    """An answer is wrong; the message says how."""


@dataclass(frozen=True, slots=True)
class CorrectAnswer:
    """A correct answer, with its tolerance.

    Attributes:
        values: output name -> array without the batch axis.
        low, high: smallest and largest allowed values.
        labels: allowed ones; several if the best scores are nearly equal.
    """

    values: Mapping[str, Array]
    low: Mapping[str, Array]
    high: Mapping[str, Array]
    labels: frozenset[str] | None


class Judge:
    """Reads and compares the predictions of one model.

    Args:
        target: its manifest has outputs, labels and the tolerance of each precision.
    """

    def __init__(self, target: Target) -> None:
        self._model, self._version = target.model, target.version
        self._outputs = {spec.name: spec for spec in answer_outputs(target.outputs)}
        self._first = next(iter(self._outputs.values()))
        self._labels = target.codec.score_labels
        self._scores = target.codec.scores
        self._is_ranked = target.codec.top_k is not None and target.codec.ranked_by is None
        self.tolerance = tolerance_of(target)

    def values(self, prediction: object) -> dict[str, Array]:
        """Parse a prediction in JSON: output name -> array.

        Raises:
            WrongAnswer: if it does not have the manifest's form.
        """
        if not isinstance(prediction, dict):
            raise WrongAnswer(f"a prediction that is not an object: {str(prediction)[:100]}")
        if "error" in prediction:
            raise WrongAnswer(f"the item failed: {prediction.get('code')}")
        outputs = prediction.get("outputs", {})
        if self._labels:
            form = RANKED_FIELDS if self._is_ranked else LABELLED_FIELDS
            if prediction.keys() - OPTIONAL != form or not isinstance(outputs, dict):
                raise WrongAnswer(f"a prediction with {sorted(prediction)}, not label and scores")
            outputs = {self._first.name: prediction["scores"], **outputs}
        if not isinstance(outputs, dict) or outputs.keys() != self._outputs.keys():
            raise WrongAnswer(f"a prediction without the outputs {list(self._outputs)}")
        values = {name: _numbers(spec, outputs[name]) for name, spec in self._outputs.items()}
        if self._is_ranked:
            scores = values[self._first.name]
            values[self._first.name] = _in_place(scores, prediction, self._labels)
        return values

    def raw(self, media_type: str, body: bytes) -> dict[str, Array]:
        """Parse the first output from an answer as bytes or an .npy file.

        Raises:
            WrongAnswer: if the bytes are not one array of the manifest's shape.
        """
        spec = self._first
        try:
            if media_type == NPY:
                return {spec.name: _npy(spec, body)}
            array = np.frombuffer(body, np.dtype(spec.dtype).newbyteorder("<"))
            return {spec.name: array.reshape(spec.item_shape)}
        except NPY_ERRORS as error:
            raise WrongAnswer(
                f"{len(body)} bytes of {media_type} are not {spec.dtype} of shape "
                f"{list(spec.item_shape)}"
            ) from error

    def correct_answer(self, prediction: object, tolerance: Tolerance) -> CorrectAnswer:
        """Record a prediction as the correct one if it has the correct form.

        Raises:
            WrongAnswer: if it does not.
        """
        self.check(prediction, None)
        values = self.values(prediction)
        slack = {name: _slack(value, tolerance) for name, value in values.items()}
        low = {name: value - slack[name] for name, value in values.items()}
        high = {name: value + slack[name] for name, value in values.items()}
        labels = None
        if self._labels:
            scores, margin = values[self._first.name], slack[self._first.name]
            best = scores >= scores.max() - 2 * margin
            labels = frozenset(np.array(self._labels)[best].tolist())
        return CorrectAnswer(values, low, high, labels)

    def check(self, prediction: object, correct: CorrectAnswer | None) -> None:
        """Compare a prediction in JSON with the correct one; None: check only the form.

        Raises:
            WrongAnswer: if it is wrong.
        """
        values = self.values(prediction)
        self.check_values(values, correct)
        if self._labels and isinstance(prediction, dict):
            scores, label = values[self._first.name], prediction["label"]
            best = int(scores.argmax())
            if label not in self._labels:
                raise WrongAnswer(f"label {label!r}, which the model does not have")
            if label != self._labels[best] or prediction["score"] != scores[best]:
                raise WrongAnswer(f"label {label!r} and its score are not those of the best score")
            if correct is not None and correct.labels is not None and label not in correct.labels:
                raise WrongAnswer(
                    f"label {label!r} instead of {' or '.join(sorted(correct.labels))}"
                )

    def check_values(self, values: Mapping[str, Array], correct: CorrectAnswer | None) -> None:
        """Compare outputs with the correct ones; None: check only shapes and ranges.

        Raises:
            WrongAnswer: if they are wrong.
        """
        if correct is None:
            return self._check_form(values)
        for name, value in values.items():
            low, high = correct.low[name], correct.high[name]
            if value.shape != low.shape:
                raise WrongAnswer(
                    f"{name} of shape {list(value.shape)} instead of {list(low.shape)}"
                )
            right = (value >= low) & (value <= high)  # NaN is not
            ties = 0 if value.dtype.kind == "f" else self.tolerance.integer_share
            if np.sum(~right) > int(ties * value.size):
                far = np.abs(value.astype(np.float64) - correct.values[name]).max()
                # one digit, because a report groups equal sentences
                raise WrongAnswer(
                    f"{name} differs by about {far:.0e} from the idle server's answer"
                )
        return None

    def check_head(self, answer: Mapping[str, object]) -> None:
        """Check the fields `model` and `version`.

        Raises:
            WrongAnswer: if another one answered.
        """
        served_by = answer.get("model"), answer.get("version")
        if served_by != (self._model, self._version):
            raise WrongAnswer(
                f"answered by {served_by[0]}/{served_by[1]} "
                f"instead of {self._model}/{self._version}"
            )

    def _check_form(self, values: Mapping[str, Array]) -> None:
        for name, value in values.items():
            spec = self._outputs[name]
            if not spec.accepts(value.shape):
                shapes = f"{list(value.shape)} instead of {list(spec.item_shape)}"
                raise WrongAnswer(f"{name} of shape {shapes}")
            if not np.isfinite(value).all():
                raise WrongAnswer(f"{name} is not finite")
        first, slack = values[self._first.name], SUM_SLACK.get(self._first.dtype, 0.0)
        if self._scores == "softmax" and not np.allclose(first.sum(axis=-1), 1, atol=slack):
            raise WrongAnswer(f"scores that sum to {float(first.sum()):.3g} instead of 1")
        if self._scores != "none" and (
            first.min(initial=0) < 0 or first.max(initial=0) > 1 + slack
        ):
            raise WrongAnswer("scores that are not between 0 and 1")


def tolerance_of(target: Target) -> Tolerance:
    """Return the allowed difference of two answers to almost equal items, in the served precision.

    Raises:
        TargetError: if no variant has that precision: the server and its manifest disagree.
    """
    if not target.tolerances:
        raise TargetError(
            f"{target.url} serves {target.model!r} in {target.precision}, but its manifest has no "
            "such variant, so there is no tolerance for answers; export the model again"
        )
    times = ALLOWANCE.get(target.precision, 1.0)
    return Tolerance(
        absolute=times * max(each.absolute for each in target.tolerances),
        relative=times * max(each.relative for each in target.tolerances),
        of_range=times * max(each.of_range for each in target.tolerances),
        exact_integers=all(each.exact_integers for each in target.tolerances),
        integer_share=max(each.integer_share for each in target.tolerances),
    )


def wider(one: Tolerance, other: Tolerance) -> Tolerance:
    """Return a tolerance with more room for numbers that are not integers."""
    return one.model_copy(
        update={
            "absolute": one.absolute + other.absolute,
            "relative": one.relative + other.relative,
            "of_range": one.of_range + other.of_range,
        }
    )


def distinguishable_share(correct: Sequence[CorrectAnswer]) -> float:
    """Return the share of pairs with distinguishable answers, 0..1.

    Each is compared with the previous eight: all pairs of 64 would take longer than the queries.
    """
    pairs = [(a, b) for at, a in enumerate(correct) for b in correct[max(0, at - 8) : at]]
    apart = sum(not _within(a.values, b) for a, b in pairs)
    return apart / len(pairs) if pairs else 0.0


def _within(values: Mapping[str, Array], correct: CorrectAnswer) -> bool:
    return all(
        value.shape == correct.low[name].shape
        and bool(((value >= correct.low[name]) & (value <= correct.high[name])).all())
        for name, value in values.items()
    )


def _slack(value: Array, tolerance: Tolerance) -> Array:
    """Return the allowed error of each number: 0 for an integer that must be equal."""
    if value.dtype.kind != "f":
        return np.full(value.shape, 0 if tolerance.exact_integers else math.inf)
    size = np.abs(value)
    largest = size.max(initial=0)
    return np.asarray(tolerance.absolute + tolerance.relative * size + tolerance.of_range * largest)


def _numbers(spec: TensorSpec, value: object) -> Array:
    """Parse an output in JSON."""
    try:
        array = np.array(value)
    except ValueError as error:  # ragged
        raise WrongAnswer(f"{spec.name} is nested unevenly") from error
    if array.dtype.kind not in "fiub":
        raise WrongAnswer(f"{spec.name} has a value that is not a number")  # null: NaN, infinity
    return array


def _npy(spec: TensorSpec, body: bytes) -> Array:
    """Parse the array of an .npy file, or raise one of `NPY_ERRORS`."""
    file = io.BytesIO(body)
    array: Array = np.lib.format.read_array(file, allow_pickle=False)
    if array.dtype.newbyteorder("<") != np.dtype(spec.dtype).newbyteorder("<"):
        raise ValueError(f"an array of {array.dtype}")
    if file.tell() != len(body):
        raise ValueError("bytes after the array")
    return array


def _in_place(
    scores: Array, prediction: Mapping[str, object], labels: Sequence[str] | None
) -> Array:
    """Return ranked scores in the manifest's order, by their `indices` and the model's labels."""
    count, indices = len(np.atleast_1d(scores)), prediction.get("indices")
    in_order = sorted(map(str, range(count)))
    if not isinstance(indices, list) or sorted(map(str, indices)) != in_order:
        raise WrongAnswer(f"indices that are not those of {count} scores")
    if scores.ndim != 1 or (np.diff(scores) > 0).any():
        raise WrongAnswer("scores that do not descend")
    if labels is not None and (
        count != len(labels) or prediction.get("labels") != [labels[index] for index in indices]
    ):
        raise WrongAnswer("labels that are not those of the indices")
    whole = np.empty_like(scores)
    whole[indices] = scores
    return whole
