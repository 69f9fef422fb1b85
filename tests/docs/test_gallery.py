"""docs/gallery.md as it stands: each recipe is adopted, and one server answers all requests."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from app.types import Array
from tests.docs.blocks import ROOT, blocks
from tests.e2e.server import Server, running
from tests.unit.export.command_line import run

BLOCKS = blocks("docs/gallery.md")
REQUESTS = [text for language, text in BLOCKS if language == "sh" and "curl" in text]
ADOPT = [".venv/bin/torchlane", "adopt"]
# The variants and batches of such models are tested elsewhere, each for seconds.
QUICK = {"--threads": "1", "--max-batch-size": "2"}
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),  # the server needs a dozen models
    pytest.mark.filterwarnings("ignore:SSD always returns"),  # torchvision's, at each forward
]


class Served(NamedTuple):
    server: Server
    folder: Path


def model_of(request: str) -> str:
    found = re.search(r'models/([\w-]+)/|predictions/([\w-]+)|"model": "([\w-]+)"', request)
    assert found is not None
    return found[1] or found[2] or found[3]


def without_torchvision() -> str:
    """Why torchvision cannot be imported; empty if it can."""
    try:
        import torchvision  # noqa: F401, PLC0415
    except (ImportError, RuntimeError) as error:  # the latter if it does not fit torch
        return f"torchvision cannot be imported: {error}"
    return ""


VISION = "ssdlite"  # what needs torchvision
SIDE = 192  # pixels of docs/three.png, a square
BOXES_OF = {"detector": 64, VISION: 320}  # pixels of the model's input
FILES = {"segmenter": "classes", "enlarge": "output"}  # the output that a file has
NO_VISION = without_torchvision()


def execute(line: str, folder: Path) -> None:
    """One command of the document: exports run in this process, which has imported torch."""
    words = shlex.split(line)
    if words[:2] == ADOPT:
        options = QUICK | {"--variants": "trace" if "--task" in words else "script"}
        quick = [option for option in options.items() if option[0] not in words]
        code, printed = run("adopt", *words[2:], *itertools.chain(*quick))
        assert code == 0, printed
    elif words[0] == ".venv/bin/python" and words[1].endswith(".py"):
        torch.manual_seed(1)  # with it the detector finds boxes and the segmenter three classes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.export has some, for an LSTM
            runpy.run_path(
                str(folder / words[1]), run_name="__main__"
            )  # TorchScript reads the name
    else:
        line = line.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
        subprocess.run(["bash", "-ec", line], cwd=folder, check=True)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of all recipes, and the folder in which they were made."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    folder = tmp_path_factory.mktemp("gallery")
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs/three.png", folder / "docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for language, text in BLOCKS:
            if VISION in text and NO_VISION:
                continue
            if language == "python":
                (folder / text.split("\n", 1)[0].removeprefix("# ")).write_text(text)
            elif "curl" not in text:
                for line in text.replace("\\\n", " ").splitlines():
                    execute(line, folder)
    with running(folder / "artifacts", folder / "log") as server:
        yield Served(server, folder)


@pytest.mark.parametrize("request_of", REQUESTS, ids=model_of)
def test_each_request_is_answered_as_by_eager(served: Served, request_of: str) -> None:
    if model_of(request_of) == VISION and NO_VISION:
        pytest.skip(NO_VISION)
    from tests.docs.eager import eager  # noqa: PLC0415 # transformers takes long to import

    server, folder = served
    script = request_of.replace("http://127.0.0.1:8000", server.url)
    script = script.replace(".venv/bin/python", sys.executable)
    done = subprocess.run(
        ["bash", "-ec", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    name = model_of(request_of)
    expected = eager(name, request_of, folder)
    check(name, answered(name, script, done.stdout, folder), expected)


def answered(name: str, script: str, printed: str, folder: Path) -> dict[str, Any]:
    """The outputs of an answer, by the names of the model's outputs."""
    if file := re.search(r"-o (\S+)", script):
        return {FILES[name]: np.load(folder / file[1])}
    answer = json.loads(printed)
    if "/predictions/" in script:  # TorchServe's own form
        return {"output": [answer["cat"], answer["dog"]]}
    if "/v1/embeddings" in script:
        return {"output": answer["data"][0]["embedding"]}
    prediction = answer["prediction"]
    if "spans" in prediction:
        return {"output": [span["score"] for span in prediction["spans"]]}
    if "outputs" not in prediction:
        return {"output": prediction["scores"], "indices": prediction.get("indices")}
    outputs: dict[str, Any] = prediction["outputs"]
    return {"output": outputs.pop("embedding")} if "embedding" in outputs else outputs


def check(name: str, answer: dict[str, Any], expected: dict[str, Array]) -> None:
    """Compare an answer with eager's; boxes and masks in the pixels of docs/three.png."""
    if name in ("detector", VISION):
        count = int(expected.pop("found" if name == "detector" else "count"))
        expected = {key: rows[:count] for key, rows in expected.items()}
        if name == "detector":
            assert count > 0
        expected["boxes"] = (expected["boxes"] * SIDE / BOXES_OF[name]).clip(0, SIDE)
    elif name == "segmenter":
        factor = SIDE // expected["classes"].shape[-1]
        expected["classes"] = expected["classes"].repeat(factor, 0).repeat(factor, 1)
        assert len(np.unique(expected["classes"])) > 1  # else any places would be right
    elif name == "classifier":
        scores = torch.tensor(expected["output"]).softmax(0).numpy()
        best = np.argsort(-scores)[:2]
        expected = {"output": scores[best], "indices": best}
    elif name.startswith("clip"):
        mine, theirs = np.array(answer["output"]), expected["output"]
        assert mine @ theirs / np.linalg.norm(mine) / np.linalg.norm(theirs) >= 0.9999
    for key, value in expected.items():
        atol = 0.02 if name == "quantized" else 1e-4
        np.testing.assert_allclose(np.array(answer[key]), value, rtol=1e-3, atol=atol, err_msg=key)


def test_there_is_a_recipe_for_each_kind() -> None:
    headings = re.findall(r"^### (.+)", (ROOT / "docs/gallery.md").read_text(), re.MULTILINE)
    assert len(headings) >= 17
