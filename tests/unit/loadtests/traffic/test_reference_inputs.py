"""What the idle server is asked for, and what is said where its answers are of no use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pytest

from loadtests.traffic.reference_inputs import ask
from loadtests.traffic.target import Reply, TargetError
from loadtests.traffic.workloads import workload
from tests.unit.loadtests.traffic.fake_server import (
    LABELLED,
    TEXT,
    TOKENS,
    FakeServer,
    not_finite,
)

IDS: Mapping[str, Any] = {"name": "ids", "dtype": "int64", "shape": [-1, -1], "free_max": 50}
TWO_LENGTHS: Sequence[Mapping[str, Any]] = (
    {"name": "tokens", "dtype": "float32", "shape": [-1, -1, 4]},
    {"name": "mask", "dtype": "bool", "shape": [-1, -1]},
)


@pytest.mark.parametrize("inputs", [TWO_LENGTHS, (IDS, TWO_LENGTHS[1])])
def test_aligned_inputs_are_tried_after_a_refusal(
    inputs: Sequence[Mapping[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeServer(inputs=inputs, aligned=True)
    calls = workload("mixed", fake.target(), 1, ask(fake.target(), fake.post))
    for call in (calls.draw() for _ in range(200)):
        reply = fake.post(call.path, call.headers, call.body)
        assert call.expected.problem(reply.status, reply.headers, reply.body) is None
    assert "trying again with one size for free dimensions" in caplog.text


def test_refusal_of_aligned_inputs_is_reported() -> None:
    fake = FakeServer(inputs=TWO_LENGTHS)
    replies = [Reply(422, {}, orjson.dumps({"code": code})) for code in ("first", "second")]
    with pytest.raises(TargetError, match="422 second"):
        ask(fake.target(), lambda *_: replies.pop(0))
    assert replies == []


def test_malformed_reference_answer_is_an_error() -> None:
    fake = FakeServer(codec=LABELLED)
    fake.lie = not_finite
    with pytest.raises(TargetError, match="idle server gave a wrong answer"):
        ask(fake.target(), fake.post)


def test_refusal_by_the_idle_server_is_reported() -> None:
    reply = Reply(503, {}, orjson.dumps({"error": "", "code": "model_not_ready"}))
    with pytest.raises(TargetError, match="503 model_not_ready"):
        ask(FakeServer().target(), lambda *_: reply)


def test_indistinguishable_answers_cause_a_warning() -> None:
    fake = FakeServer()
    assert ask(fake.target(), fake.post).told().endswith("of the pairs can be told apart")
    fake.lie = lambda outputs: [np.zeros_like(output) for output in outputs]
    told = ask(fake.target(), fake.post).told()
    assert "0.0% of the pairs" in told
    assert told.endswith("swapped answers may not be noticed")


def test_a_model_that_answers_spans_is_refused() -> None:
    fake = FakeServer(inputs=TOKENS, codec={**TEXT, "task": "classify-tokens"})
    with pytest.raises(TargetError, match="spans of text"):
        ask(fake.target(), fake.post)


def test_fewer_large_items_are_drawn() -> None:
    fake = FakeServer(inputs=({"name": "x", "dtype": "float32", "shape": [-1, 400, 500]},))
    fake.lie = lambda outputs: outputs
    assert len(ask(fake.target(), fake.post).items) == 10
