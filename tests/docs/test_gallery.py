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

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.e2e.server import Server, running
from tests.unit.export.command_line import run

BLOCKS = blocks("docs/gallery.md")
REQUESTS = [text for language, text in BLOCKS if language == "sh" and "curl" in text]
ADOPT = [".venv/bin/torchlane", "adopt"]
# The variants and batches of such models are tested elsewhere, each for seconds.
QUICK = {"--threads": "1", "--max-batch-size": "2"}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the server needs a dozen models


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.export has some, for an LSTM
            runpy.run_path(
                str(folder / words[1]), run_name="__main__"
            )  # TorchScript reads the name
    else:
        line = line.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
        subprocess.run(["bash", "-ec", line], cwd=folder, check=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
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
        yield server


@pytest.mark.parametrize("request_of", REQUESTS, ids=model_of)
def test_each_request_is_answered(server: Server, request_of: str, tmp_path: Path) -> None:
    if model_of(request_of) == VISION and NO_VISION:
        pytest.skip(NO_VISION)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/three.png", tmp_path / "docs")
    script = request_of.replace("http://127.0.0.1:8000", server.url)
    script = script.replace(".venv/bin/python", sys.executable)
    done = subprocess.run(
        ["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if "-o " in script:
        assert any(tmp_path.glob("*.npy"))
    else:
        answer = json.loads(done.stdout)
        if "/predictions/" in script:  # TorchServe's own form
            assert answer.keys() == {"cat", "dog"}
        else:
            assert answer.get("prediction") or answer.get("data")


def test_there_is_a_recipe_for_each_kind() -> None:
    headings = re.findall(r"^### (.+)", (ROOT / "docs/gallery.md").read_text(), re.MULTILINE)
    assert len(headings) >= 17
