"""Right answers by the plain script, and what differs from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest

from loadtests.bench.answers import CheckError, answers_of, known, problem
from loadtests.bench.bodies import Bodies, bodies_of
from loadtests.bench.dialects import DIALECTS
from loadtests.bench.workloads import JSON_32, PLAIN
from models.manifest import MANIFEST_FILE, Manifest
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
    found = problem(DIALECTS[PLAIN], 200, orjson.dumps({"scores": scores}), RIGHT)
    assert found is None if says is None else says in str(found)


def test_other_statuses_and_forms_are_shown() -> None:
    assert "503: busy" in str(problem(DIALECTS[PLAIN], 503, b"busy", RIGHT))
    assert "no JSON" in str(problem(DIALECTS[PLAIN], 200, b"<html>", RIGHT))


def test_right_answers_are_those_of_the_script_request_by_request(tmp_path: Path) -> None:
    folder = write_artifact(tmp_path, "double")
    manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    bodies = bodies_of(JSON_32, manifest, DIALECTS[PLAIN], seed=0)
    with answers_of(folder) as answers:
        right = known(bodies, range(100), answers)
        for number, scores in enumerate(right):
            np.testing.assert_allclose(scores, 2 * bodies.inputs(number))
        same = Bodies("none", bodies.templates, np.ones_like(bodies.items), (0,))
        with pytest.raises(CheckError, match="have one answer"):
            known(same, range(4), answers)
