"""Right answers pass in every workload, and a server that lies is found out by content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import orjson
import pytest

from loadtests.traffic.calls import LoadCall
from loadtests.traffic.drawing import WorkloadError
from loadtests.traffic.reference_inputs import References, ask
from loadtests.traffic.target import Reply
from loadtests.traffic.workloads import BATCH_ITEMS, WORKLOADS, Draw, workload
from tests.unit.loadtests.traffic.fake_server import (
    LABELLED,
    LABELS,
    MATRIX,
    PICTURE,
    PICTURES,
    TEXT,
    TOKENS,
    AnswersOfTheOneBefore,
    FakeServer,
    Lie,
    not_finite,
    one_too_few,
    swapped,
    wrong_number,
)

HALF: tuple[dict[str, Any], ...] = ({"name": "x", "dtype": "float16", "shape": [-1, 8, 8]},)
SHORT: tuple[dict[str, Any], ...] = (
    {"name": "x", "dtype": "float32", "shape": [-1, -1, 8], "free_max": 3},
)
IDS: tuple[dict[str, Any], ...] = ({"name": "ids", "dtype": "int64", "shape": [-1, -1]},)
SCORED_PICTURES = PICTURES | {"labels": LABELS, "scores": "softmax"}
MODELS: Mapping[str, tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]] = {
    "matrix": (MATRIX, {"kind": "tensor"}),
    "labelled": (MATRIX, LABELLED),
    "ranked": (MATRIX, {**LABELLED, "top_k": 1}),
    "pictures": (PICTURE, SCORED_PICTURES),
    "two": ((*MATRIX, {"name": "m", "dtype": "bool", "shape": [-1, 4]}), {"kind": "tensor"}),
    "ids": (IDS, {"kind": "tensor"}),
    "half": (HALF, {"kind": "tensor"}),
    "short": (SHORT, {"kind": "tensor"}),
    "texts": (TOKENS, TEXT),
    "pairs": (TOKENS, {**TEXT, "task": "rerank", "pairs": True}),
}


def fake_of(model: str) -> FakeServer:
    inputs, codec = MODELS[model]
    return FakeServer(inputs=inputs, codec=codec)


@cache
def references(model: str) -> References:
    """They do not depend on the workload."""
    fake = fake_of(model)
    return ask(fake.target(), fake.post)


def calls_of(model: str, name: str, seed: int = 1) -> Draw:
    return workload(name, fake_of(model).target(), seed, references(model))


def problem(fake: FakeServer, call: LoadCall) -> str | None:
    reply: Reply = fake.post(call.path, call.headers, call.body)
    return call.expected.problem(reply.status, reply.headers, reply.body)


def problems(fake: FakeServer, calls: Draw, count: int = 25) -> list[str]:
    faults = (problem(fake, calls()) for _ in range(count))
    return [each for each in faults if each is not None]


CAN: Mapping[str, set[str]] = {
    "labelled": {"unique", "repeated", "batch", "binary", "npy", "mixed"},
    "ranked": {"unique", "repeated", "batch", "binary", "npy", "mixed"},
    "pictures": set(WORKLOADS) - {"text"},
    "two": {"unique", "repeated", "batch", "mixed"},
    "ids": {"unique", "repeated", "batch", "mixed"},
    "half": {"unique", "repeated", "batch", "binary", "npy", "mixed"},
    "short": {"unique", "repeated", "batch", "npy", "mixed"},
    "texts": {"unique", "repeated", "batch", "text", "mixed"},
    "pairs": {"unique", "repeated", "batch", "mixed"},
}
# Any change of an integer or a text is another item: answers to new ones are judged by form.
BY_FORM = {
    "ids": set(WORKLOADS),
    "texts": {"unique", "text", "mixed"},
    "pairs": {"unique", "mixed"},
}


ALL = [(model, name) for model in CAN for name in WORKLOADS]


@pytest.mark.parametrize(("model", "name"), ALL)
def test_right_answers_pass_and_unsuitable_workloads_are_refused(model: str, name: str) -> None:
    fake = fake_of(model)
    if name in CAN[model]:
        assert problems(fake, calls_of(model, name)) == []
    else:
        with pytest.raises(WorkloadError, match="fake"):
            calls_of(model, name)


@pytest.mark.parametrize(
    ("model", "name"),
    [(m, n) for m, n in ALL if n in CAN[m] - BY_FORM.get(m, set()) and n != "batch"],
)
def test_answer_of_another_request_is_detected(model: str, name: str) -> None:
    fake = fake_of(model)
    calls = calls_of(model, name)
    fake.lie = AnswersOfTheOneBefore()
    faults = problems(fake, calls, 60)
    # Every tenth; some of them may be of the same item as the one before it.
    assert len(faults) >= 3
    assert any("differs by about" in each for each in faults)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (swapped, "differs"),
        (wrong_number, "differs by about 1e-02"),
        (one_too_few, "15 predictions for 16 items"),
        (not_finite, "not a number"),
    ],
)
def test_wrong_batch_answers_are_detected(lie: Lie, words: str) -> None:
    fake = fake_of("matrix")
    calls = calls_of("matrix", "batch")
    fake.lie = lie
    faults = problems(fake, calls, 10)
    assert len(faults) >= 9  # a palindrome is not impossible
    assert words in faults[0]


@pytest.mark.parametrize("model", ["matrix", "pictures", "ids", "texts", "pairs"])
def test_unique_draws_never_repeat_across_seeds(model: str) -> None:
    bodies = [calls_of(model, "unique", seed) for seed in (1, 2, 3)]
    seen = [draw().body for draw in bodies for _ in range(300)]
    assert len(set(seen)) == 900


def test_popular_inputs_are_shared_and_follow_zipf() -> None:
    seen = [Counter[bytes](), Counter[bytes]()]
    for seed, counts in enumerate(seen):
        calls = calls_of("matrix", "repeated", seed)
        counts.update(calls().body for _ in range(4000))
    assert len(seen[0].keys() | seen[1].keys()) <= 64
    (first, often), *_ = seen[0].most_common()
    assert seen[1].most_common(1)[0][0] == first
    # Zipf with exponent 1.1 over 64 items: 26 % of the draws are the first.
    assert 0.22 < often / 4000 < 0.30


def test_half_of_each_batch_is_duplicates() -> None:
    calls = calls_of("matrix", "batch")
    first, second = (
        [orjson.dumps(item) for item in orjson.loads(calls().body)["inputs"]] for _ in range(2)
    )
    assert (len(first), len(set(first))) == (BATCH_ITEMS, BATCH_ITEMS // 2)
    assert not set(first) & set(second)


def test_mixed_load_has_two_percent_bad_input() -> None:
    calls = calls_of("pictures", "mixed")
    draws = [calls() for _ in range(4000)]
    bad = [call for call in draws if call.items == 0]
    assert 0.01 < len(bad) / len(draws) < 0.03
    assert len({(call.headers["Content-Type"], call.body) for call in bad}) == 4
    assert {call.headers["Content-Type"] for call in draws} == {
        "application/json",
        "application/octet-stream",
        "image/png",
        "text/csv",
    }


def test_server_that_accepts_bad_input_is_detected() -> None:
    calls = calls_of("matrix", "mixed")
    bad = next(call for call in (calls() for _ in range(2000)) if call.items == 0)
    headers = {"content-type": "application/json"}
    assert "answered 200 instead of 4" in (bad.expected.problem(200, headers, b"{}") or "")
