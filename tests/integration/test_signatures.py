"""Models of many signatures: adopted and served, or rejected with advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from export.adoption.outputs import by_name
from export.cli import main
from tests import signatures as theirs
from tests.integration.harness import serving
from tests.unit.export.torchscripts import scripted, written

ROWS = [[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0], [0.0, 0.0, 9.0]]
X3 = "x=float32[-1,3]"
LARGEST = 4  # batch that is proved and served
Item = dict[str, Any]


@dataclass(frozen=True)
class Works:
    """A model, what it takes, and items to ask it; they need not have one shape."""

    model: nn.Module
    inputs: tuple[str, ...]
    items: Sequence[Item]
    options: tuple[str, ...] = ()
    tolerance: float = 1e-6


def picture(height: int, width: int, seed: int) -> list[Any]:
    made: list[Any] = np.random.default_rng(seed).random((3, height, width)).round(3).tolist()
    return made


WORKS = {
    "pairs of int64": Works(
        theirs.Pairs(),
        ("ids=int64[-1,-1]", "types=int64[-1,-1]"),
        [{"ids": [1, 0, 1], "types": [0, 0, 1]}, {"ids": [1], "types": [0]}],
    ),
    "a padded detector": Works(
        theirs.Padded(),
        ("x=float32[-1,3,8,8]",),
        [{"x": picture(8, 8, 1)}, {"x": picture(8, 8, 2)}],
    ),
    "an optional input, given": Works(
        theirs.Optional(), (X3, "scale=float32[-1,1]"), [{"x": ROWS[0], "scale": [2.0]}]
    ),
    "one output of a dict": Works(
        theirs.Mapped(), (X3,), [{"x": row} for row in ROWS], options=("--output", "out")
    ),
}
REFUSED = {
    "a list of dicts": (theirs.Detector(), "float32[-1,3,8,8]", "pads its results to a fixed"),
    "text that is taken": (theirs.Reads(), "int64[-1]", "let the client convert text to numbers"),
    "complex numbers given": (
        theirs.Spectrum(),
        "float32[-1,8]",
        "return torch.view_as_real of it",
    ),
    "as many rows as there are": (
        theirs.Nonzero(),
        X3,
        "return a fixed number for each item, padded",
    ),
    "a batch size written in": (
        theirs.FixedBatch(),
        X3,
        "It runs on a batch of 4: do not write a batch",
    ),
    "batch-mates that are mixed": (theirs.BatchMates(), X3, "keep operations off axis 0"),
}


# Other variants of such models are tested elsewhere, each for seconds.
QUICK = ("--variants", "script", "--max-batch-size", str(LARGEST), "--threads", "1")


def adopt(folder: Path, model: nn.Module, inputs: Sequence[str], *options: str) -> int:
    """The exit code; the model is called m."""
    file = written(folder, scripted(model))
    arguments = ["adopt", str(file), "--name", "m", "--out", str(folder / "out"), *options]
    arguments += [each for spec in inputs for each in ("--input", spec)]
    return main([*arguments, *QUICK], {})


def expected(case: Works, item: Item) -> dict[str, Any]:
    """What the model itself answers to an item that is alone."""
    arrays = [
        np.array([value], spec.partition("=")[2].partition("[")[0])
        for spec, value in zip(case.inputs, item.values(), strict=True)
    ]
    made = by_name(case.model(*map(torch.from_numpy, arrays)), case.options[1::2])
    return {name: tensor[0].tolist() for name, tensor in made.items()}


@pytest.mark.parametrize("case", WORKS.values(), ids=WORKS)
async def test_adopted_models_answer_like_the_originals(case: Works, tmp_path: Path) -> None:
    assert adopt(tmp_path, case.model, case.inputs, *case.options) == 0
    inputs = [item if len(item) > 1 else next(iter(item.values())) for item in case.items]
    async with serving(tmp_path / "out", default_model="m", max_batch_size=LARGEST) as api:
        answer = await api.client.post("/batch-predict", json={"inputs": inputs})
    assert answer.status_code == 200, answer.text
    predictions = answer.json()["predictions"]
    for item, prediction in zip(case.items, predictions, strict=True):
        wanted = expected(case, item)
        assert list(prediction["outputs"]) == list(wanted)
        for name, value in wanted.items():
            np.testing.assert_allclose(prediction["outputs"][name], value, atol=case.tolerance)


async def test_a_labelled_output_is_returned_with_the_others(tmp_path: Path) -> None:
    labels = written(tmp_path, b"up\ndown\n", "labels.txt")
    named = ("--output", f"logits={labels}", "--output", "features")
    assert adopt(tmp_path, theirs.Several(), [X3], *named, "--scores", "softmax") == 0
    async with serving(tmp_path / "out", default_model="m", max_batch_size=LARGEST) as api:
        answer = await api.client.post("/predict", json={"input": [1.0, 2.0, 3.0]})
    assert answer.status_code == 200, answer.text
    prediction = answer.json()["prediction"]
    assert list(prediction) == ["label", "score", "scores", "outputs"]
    assert prediction["label"] == "up"
    assert prediction["outputs"] == {"features": [2.0, 4.0, 6.0]}


@pytest.mark.parametrize(("model", "spec", "change"), REFUSED.values(), ids=REFUSED)
def test_rejections_name_the_required_change(
    model: nn.Module, spec: str, change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert adopt(tmp_path, model, [spec]) in (1, 2)
    told = capsys.readouterr().err
    assert change in told
    assert told.count("\n") == 1
    assert not list(tmp_path.glob("out/*/*"))
