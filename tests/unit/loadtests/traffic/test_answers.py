"""A judge knows a right prediction by its content, and a possible one by its form."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from loadtests.traffic.answers import CorrectAnswer, Judge, WrongAnswer, distinguishable_share
from models.tensors import Tolerance
from tests.unit.loadtests.traffic.fake_server import LABELLED, LABELS, FakeServer

TIGHT = Tolerance(absolute=1e-3, relative=0)


def judge(labelled: bool = True, precision: str = "float32") -> Judge:
    fake = FakeServer(precision=precision)
    fake.codec = LABELLED if labelled else {"kind": "tensor"}
    return Judge(fake.target())


def labelled(*scores: Any, label: str | None = None) -> dict[str, Any]:
    best = int(np.argmax(scores))
    return {"label": label or LABELS[best], "score": scores[best], "scores": list(scores)}


def problem_of(judge: Judge, prediction: object, right: CorrectAnswer | None) -> str | None:
    try:
        judge.check(prediction, right)
    except WrongAnswer as error:
        return str(error)
    return None


def raw_problem(judge: Judge, kind: str, body: bytes, right: CorrectAnswer | None) -> str | None:
    try:
        judge.check_values(judge.raw(kind, body), right)
    except WrongAnswer as error:
        return str(error)
    return None


def answer_with(*scores: float) -> CorrectAnswer:
    return judge().correct_answer(labelled(*scores), TIGHT)


def test_answers_within_the_tolerance_are_right() -> None:
    right = answer_with(0.7, 0.2, 0.1)
    assert problem_of(judge(), labelled(0.7005, 0.1995, 0.1), right) is None
    problem = problem_of(judge(), labelled(0.69, 0.21, 0.1), right)
    assert problem == "y differs by about 1e-02 from the idle server's answer"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"indices": [0, 2]}, "indices that are not those of 3 scores"),
        ({"indices": [0, 0, 1]}, "indices that are not"),
        ({"indices": [True, 2, 0]}, "indices that are not"),
        ({"scores": [0.2, 0.7, 0.1]}, "do not descend"),
        ({"labels": ["ant", "bee", "cat"]}, "labels that are not those"),
    ],
)
def test_ranked_scores_are_restored_to_index_order(
    change: dict[str, Any], words: str | None
) -> None:
    ranking_judge = Judge(FakeServer(codec={**LABELLED, "top_k": 1}).target())
    labels = [LABELS[index] for index in (1, 2, 0)]
    best = {"label": labels[0], "score": 0.7, "scores": [0.7, 0.2, 0.1]}
    prediction = {**best, "labels": labels, "indices": [1, 2, 0], **change}
    problem = problem_of(ranking_judge, prediction, None)
    assert problem is None if words is None else words in str(problem)
    if words is None:
        assert ranking_judge.values(prediction)["y"].tolist() == [0.1, 0.7, 0.2]


def test_labels_may_differ_only_in_near_ties() -> None:
    assert answer_with(0.7, 0.2, 0.1).labels == frozenset({"ant"})
    assert answer_with(0.45, 0.4495, 0.1005).labels == frozenset({"ant", "bee"})
    near = answer_with(0.45, 0.4495, 0.1005)
    assert problem_of(judge(), labelled(0.4496, 0.4499, 0.1005), near) is None


@pytest.mark.parametrize(
    ("prediction", "words"),
    [
        (labelled(0.7, 0.2, 0.1, label="bee"), "not those of the best score"),
        (labelled(0.7, 0.2, 0.1, label="dog"), "does not have"),
        (labelled(0.7, 0.2, 0.1) | {"score": 0.2}, "not those of the best score"),
        (labelled(0.9, 0.1), "of shape [2]"),
        (labelled(0.7, 0.2, 0.2), "sum to 1.1"),
        (labelled(1.2, -0.1, -0.1), "not between 0 and 1"),
        (labelled(0.7, 0.2, 0.1) | {"scores": [0.7, None, 0.1]}, "not a number"),
        (labelled(0.7, 0.2, 0.1) | {"scores": [[0.7], 0.2]}, "unevenly"),
        ({"label": "ant"}, "not label and scores"),
        (labelled(0.7, 0.2, 0.1) | {"outputs": [1]}, "not label and scores"),
        (labelled(0.7, 0.2, 0.1) | {"outputs": {"z": 1}}, "without the outputs ['y']"),
        ({"error": "no", "code": "backend_failed"}, "the item failed: backend_failed"),
        (None, "not an object"),
    ],
)
def test_the_form_of_a_labelled_prediction(prediction: object, words: str) -> None:
    for right in (None, answer_with(0.7, 0.2, 0.1)):
        problem = problem_of(judge(), prediction, right)
        assert problem is not None
    problem = problem_of(judge(), prediction, None)
    assert problem is not None
    assert words in problem


def test_raw_bytes_are_compared() -> None:
    right = judge().correct_answer(labelled(0.7, 0.2, 0.1), TIGHT)
    kind = "application/octet-stream"
    good = np.array([0.7, 0.2, 0.1], "<f4").tobytes()
    shifted = np.array([0.1, 0.7, 0.2], "<f4").tobytes()
    assert raw_problem(judge(), kind, good, right) is None
    assert "differs" in (raw_problem(judge(), kind, shifted, right) or "")
    assert "8 bytes" in (raw_problem(judge(), kind, good[:8], right) or "")
    assert "0 bytes" in (raw_problem(judge(), "application/x-npy", b"", right) or "")
    nan = np.array([np.nan, 0.2, 0.1], "<f4").tobytes()
    assert raw_problem(judge(), kind, nan, None) == "y is not finite"
    assert "differs" in (raw_problem(judge(), kind, nan, right) or "")


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_npy_files_are_compared() -> None:
    right = judge().correct_answer(labelled(0.7, 0.2, 0.1), TIGHT)
    kind = "application/x-npy"
    good = np.array([0.7, 0.2, 0.1], "<f4")
    assert raw_problem(judge(), kind, npy(good), right) is None
    assert "differs" in (raw_problem(judge(), kind, npy(good[::-1].copy()), right) or "")
    assert "shape [1, 3]" in (raw_problem(judge(), kind, npy(good[None]), right) or "")
    matrix = FakeServer(codec=LABELLED).target()
    by_columns = np.asfortranarray(np.arange(6, dtype="f4").reshape(2, 3))
    assert np.array_equal(Judge(matrix).raw(kind, npy(by_columns))["y"], by_columns)


def test_share_of_distinguishable_answer_pairs_is_computed() -> None:
    apart = [answer_with(0.7, 0.2, 0.1), answer_with(0.1, 0.2, 0.7), answer_with(0.1, 0.7, 0.2)]
    assert distinguishable_share(apart) == 1.0
    assert distinguishable_share([*apart, apart[0]]) == pytest.approx(5 / 6)
    assert distinguishable_share(apart[:1]) == 0.0
