"""Judges answers: compares their content with the idle server's answers, and checks their form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.traffic.reading import NPY_ERRORS, WrongAnswer, in_place, npy, numbers
from loadtests.traffic.target import Target, TargetError
from models.rows import answered
from models.tensors import Array, Tolerance

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
LABELLED = {"label", "score", "scores"}
RANKED = LABELLED | {"labels", "indices"}


@dataclass(frozen=True, slots=True)
class Known:
    """A correct answer, with its tolerance.

    Attributes:
        values: output name -> array without the batch axis.
        low: smallest allowed values.
        high: largest allowed values.
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
        self._outputs = {spec.name: spec for spec in answered(target.outputs)}
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
            form = RANKED if self._is_ranked else LABELLED
            if prediction.keys() - OPTIONAL != form or not isinstance(outputs, dict):
                raise WrongAnswer(f"a prediction with {sorted(prediction)}, not label and scores")
            outputs = {self._first.name: prediction["scores"], **outputs}
        if not isinstance(outputs, dict) or outputs.keys() != self._outputs.keys():
            raise WrongAnswer(f"a prediction without the outputs {list(self._outputs)}")
        values = {name: numbers(spec, outputs[name]) for name, spec in self._outputs.items()}
        if self._is_ranked:
            ranked = values[self._first.name]
            values[self._first.name] = in_place(ranked, prediction, self._labels)
        return values

    def raw(self, media_type: str, body: bytes) -> Array:
        """Parse the first output from an answer as bytes or an .npy file.

        Raises:
            WrongAnswer: if the bytes are not one array of the manifest's shape.
        """
        spec = self._first
        try:
            if media_type == NPY:
                return npy(spec, body)
            return np.frombuffer(body, np.dtype(spec.dtype).newbyteorder("<")).reshape(
                spec.item_shape
            )
        except NPY_ERRORS as error:
            raise WrongAnswer(
                f"{len(body)} bytes of {media_type} are not {spec.dtype} of shape "
                f"{list(spec.item_shape)}"
            ) from error

    def known(self, prediction: object, tolerance: Tolerance) -> Known:
        """Record a prediction as the correct one if it has the correct form.

        Raises:
            WrongAnswer: if it does not.
        """
        problem = self.problem(prediction, None)
        if problem is not None:
            raise WrongAnswer(problem)
        values = self.values(prediction)
        slack = {name: _slack(value, tolerance) for name, value in values.items()}
        labels = None
        if self._labels:
            scores, allowed = values[self._first.name], slack[self._first.name]
            best = scores >= scores.max() - 2 * allowed
            labels = frozenset(np.array(self._labels)[best].tolist())
        return Known(
            values=values,
            low={name: value - slack[name] for name, value in values.items()},
            high={name: value + slack[name] for name, value in values.items()},
            labels=labels,
        )

    def problem(self, prediction: object, known: Known | None) -> str | None:
        """Say what is wrong with a prediction in JSON.

        Args:
            prediction: parsed JSON.
            known: the correct answer; None: check only the form.
        """
        try:
            values = self.values(prediction)
        except WrongAnswer as error:
            return str(error)
        problem = self.difference(values, known) if known else self._form(values)
        if problem is None and self._labels and isinstance(prediction, dict):
            return self._label_problem(prediction, values[self._first.name], known)
        return problem

    def difference(self, values: Mapping[str, Array], known: Known) -> str | None:
        """Say how outputs differ from the correct ones by more than the tolerance."""
        for name, value in values.items():
            low, high = known.low[name], known.high[name]
            if value.shape != low.shape:
                return f"{name} of shape {list(value.shape)} instead of {list(low.shape)}"
            right = (value >= low) & (value <= high)  # NaN is not
            ties = 0 if value.dtype.kind == "f" else self.tolerance.integer_share
            if np.sum(~right) > int(ties * value.size):
                far = np.abs(value.astype(np.float64) - known.values[name]).max()
                # one digit, because a report groups equal sentences
                return f"{name} differs by about {far:.0e} from the idle server's answer"
        return None

    def head_problem(self, answer: Mapping[str, object]) -> str | None:
        """Say what is wrong with the fields `model` and `version`."""
        got = answer.get("model"), answer.get("version")
        if got != (self._model, self._version):
            return f"answered by {got[0]}/{got[1]} instead of {self._model}/{self._version}"
        return None

    def raw_problem(self, media_type: str, body: bytes, known: Known | None) -> str | None:
        """Say what is wrong with an answer as bytes."""
        try:
            values = {self._first.name: self.raw(media_type, body)}
        except WrongAnswer as error:
            return str(error)
        return self.difference(values, known) if known else self._form(values)

    def _form(self, values: Mapping[str, Array]) -> str | None:
        for name, value in values.items():
            wanted = self._outputs[name]
            if not wanted.accepts(value.shape):
                return f"{name} of shape {list(value.shape)} instead of {list(wanted.item_shape)}"
            if not np.isfinite(value).all():
                return f"{name} is not finite"
        return self._score_problem(values[self._first.name])

    def _score_problem(self, first: Array) -> str | None:
        slack = SUM_SLACK.get(self._first.dtype, 0.0)
        if self._scores == "softmax" and not np.allclose(first.sum(axis=-1), 1, atol=slack):
            return f"scores that sum to {float(first.sum()):.3g} instead of 1"
        if self._scores != "none" and (
            first.min(initial=0) < 0 or first.max(initial=0) > 1 + slack
        ):
            return "scores that are not between 0 and 1"
        return None

    def _label_problem(
        self, prediction: Mapping[str, object], scores: Array, known: Known | None
    ) -> str | None:
        labels = self._labels or ()
        label, best = prediction["label"], int(scores.argmax())
        if label not in labels:
            return f"label {label!r}, which the model does not have"
        if label != labels[best] or prediction["score"] != scores[best]:
            return f"label {label!r} and its score are not those of the best score"
        if known is not None and known.labels is not None and label not in known.labels:
            return f"label {label!r} instead of {' or '.join(sorted(known.labels))}"
        return None


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
    """Add two tolerances."""
    return Tolerance(
        absolute=one.absolute + other.absolute,
        relative=one.relative + other.relative,
        of_range=one.of_range + other.of_range,
        exact_integers=one.exact_integers and other.exact_integers,
        integer_share=min(1.0, one.integer_share + other.integer_share),
    )


def told_apart(known: Sequence[Known]) -> float:
    """Return the share of pairs with distinguishable answers, 0..1.

    Each is compared with the previous eight: all pairs of 64 would take longer than the queries.
    """
    pairs = [(a, b) for at, a in enumerate(known) for b in known[max(0, at - 8) : at]]
    apart = sum(not _within(a.values, b) for a, b in pairs)
    return apart / len(pairs) if pairs else 0.0


def _within(values: Mapping[str, Array], known: Known) -> bool:
    return all(
        value.shape == known.low[name].shape
        and bool(((value >= known.low[name]) & (value <= known.high[name])).all())
        for name, value in values.items()
    )


def _slack(value: Array, tolerance: Tolerance) -> Array:
    """Return the allowed error of each number: 0 for an integer that must be equal."""
    if value.dtype.kind != "f":
        return np.full(value.shape, 0 if tolerance.exact_integers else math.inf)
    size = np.abs(value)
    largest = size.max(initial=0)
    return np.asarray(tolerance.absolute + tolerance.relative * size + tolerance.of_range * largest)
