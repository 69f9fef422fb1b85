"""Right answers by the plain script, and what differs from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import orjson
import pytest

from loadtests.bench.answers import CheckError, JudgedBodies, answers_of, problem
from loadtests.bench.bodies import bodies_of
from loadtests.bench.dialects import DIALECTS
from loadtests.bench.own_models import manifest_of
from loadtests.bench.workloads import JSON_32, PLAIN
from loadtests.wire import Response
from models.tensors import Array
from tests.artifacts import write_artifact

RIGHT = np.array([[0.25, 0.75]], np.float32)


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ([0.25, 0.75], None),
        ([0.25005, 0.74995], None),
        ([0.25, 0.7502], "score 0.7502 instead of 0.75 (item 0, class 1)"),
        ([0.25, None], "score nan instead of 0.75"),
        ([0.25], "scores [1, 1] instead of [1, 2]"),
    ],
)
def test_answers_are_compared_by_content(scores: list[float], says: str | None) -> None:
    found = problem(DIALECTS[PLAIN], orjson.dumps({"scores": scores}), RIGHT)
    assert found is None if says is None else says in str(found)


def answer(scores: Array) -> Response:
    return Response(200, orjson.dumps({"scores": scores.tolist()}))


def test_requests_are_judged_by_the_script(tmp_path: Path) -> None:
    folder = write_artifact(tmp_path, "double")
    bodies = bodies_of(JSON_32, manifest_of(folder), DIALECTS[PLAIN], seed=0)
    right = [answer(2 * bodies.inputs(number)[0]) for number in range(100)]
    with answers_of(folder) as scores:
        requests = JudgedBodies(bodies, DIALECTS[PLAIN], scores, deadline_ms=100)
        head = requests.draw().partition(b"\r\n\r\n")[0]
        assert head.endswith(b"\r\nX-Torchlane-Timeout-Ms: 100")
        assert [requests.draw() for _ in range(99)][-1].endswith(bodies.request(99)[-20:])
        assert requests.problems(right) == [None] * 100
        for _ in range(4):
            requests.draw()
        found = requests.problems(
            [right[101 - 100], Response(503, b"busy"), None, Response(200, b"<")]
        )
        assert "instead of" in str(found[0])  # that of another request
        assert found[1:3] == ["503: busy", None]
        assert "not JSON" in str(found[3])
        same = dataclasses.replace(
            bodies, form="none", items=np.ones_like(bodies.items), order=(0,)
        )
        same = dataclasses.replace(same, templates=((b"x",),))
        alike = JudgedBodies(same, DIALECTS[PLAIN], scores)
        for _ in range(8):
            alike.draw()
        with pytest.raises(CheckError, match="have the same answer"):
            alike.problems(right[:8])
