"""Libraries of operators: found in a file's code, loaded by name, or refused in one sentence."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from models.runtimes.operators import operators_in
from models.system.archive import check_archive
from tests.artifacts import scripted
from tests.e2e import forking

# Stands in for torchvision's library, with kernels in Python.
STAND_IN = """
import torch
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
library.impl("nms", lambda dets, scores, most: scores.argsort(descending=True), "CPU")

class Best(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = []
        for item in x.unbind(0):
            rows.append(item[torch.ops.torchvision.nms(item, item[:, 0], 0.5)[:1]].flatten())
        return torch.stack(rows)
"""
SAVE = f"{STAND_IN}\ntorch.jit.script(Best()).save('best.pt')\n"
ADOPT = """
from export import cli
options = ["--name", "best", "--input", "float32[-1,3,4]", "--out", "models"]
quick = ["--variants", "script", "--max-batch-size", "2", "--threads", "1"]
print("adopted", cli.main(["adopt", "best.pt", *options, *quick], {}))
"""
LOAD = """
import torch
from pathlib import Path
from models.runtimes.forms import load_form
from models.integrity import read_artifact
from models.runtimes.base import VariantFile
from models.system.extras import NotInstalled
folder = Path("models/best/1")
manifest = read_artifact(folder).manifest
variant = manifest.variants["script"]
file = VariantFile.of((folder / variant.file).read_bytes())
device = torch.device("cpu")
try:
    form = load_form(
        [file], variant.format, manifest.inputs, device, operators=variant.operators
    )
    print(form(torch.tensor([[[1.0, 0, 0, 1], [3, 0, 0, 3], [2, 0, 0, 2]]])).tolist())
except NotInstalled as error:
    print(error)
"""
ROOT = Path(__file__).parents[4]


def run(code: str, folder: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, where no operators are loaded."""
    program = folder / "program.py"  # a file, because TorchScript reads the source of a class
    program.write_text(f"import sys; sys.path[:0] = [{str(ROOT)!r}, {path!r}]\n{code}")
    main = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    return forking.run(
        "-c", f"import warnings; warnings.simplefilter('ignore'); {main}", folder=folder
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a file that calls the operator and of its artifact, and what was printed."""
    folder = tmp_path_factory.mktemp("operators")
    done = run(SAVE + ADOPT + LOAD, folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def broken(folder: Path) -> str:
    """The path of a package whose library is none."""
    package = folder / "broken/torchvision"
    package.mkdir(parents=True, exist_ok=True)
    (package / "_C.so").write_text("no library")
    (folder / "broken/torchvision-0.99.0.dist-info").mkdir(exist_ok=True)
    metadata = "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.99.0\n"
    (folder / "broken/torchvision-0.99.0.dist-info/METADATA").write_text(metadata)
    return str(folder / "broken")


def absent(folder: Path) -> str:
    """The path of a folder that has the package's name, and no library."""
    (folder / "absent/torchvision").mkdir(parents=True, exist_ok=True)
    (folder / "absent/torchvision/__init__.py").write_text("raise SystemExit('must never run')")
    return str(folder / "absent")


def test_a_file_is_loaded_with_its_operators(served: tuple[Path, str]) -> None:
    assert "adopted 0" in served[1]
    assert served[1].endswith("[[3.0, 0.0, 0.0, 3.0]]\n")


def test_a_missing_package_is_named(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = served
    done = run(LOAD + ADOPT, folder, absent(tmp_path))
    why = "it needs the operators of torchvision: pip install 'torchlane[vision]', of the release"
    assert why in done.stdout, done.stderr
    assert f"best.pt cannot be loaded here: {why}" in done.stderr
    assert "adopted 1" in done.stdout


def test_a_release_that_does_not_fit_is_named(served: tuple[Path, str], tmp_path: Path) -> None:
    done = run(LOAD, served[0], broken(tmp_path))
    why = f"torchvision 0.99.0 does not fit torch {torch.__version__}: install the release for this"
    assert why in done.stdout, done.stderr


def test_other_files_need_none() -> None:
    assert "operators" not in scripted(nn.Linear(2, 2)).entry.model_dump()
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), file)
    names = check_archive(file, "it")
    assert operators_in(file, "it", names) == ()
