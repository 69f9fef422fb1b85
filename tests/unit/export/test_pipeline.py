"""What an export writes into the manifest, and that the saved file is what was proved."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from export.errors import ExportError
from export.pipeline import Job, Made, Method, export
from export.verify import BATCH_SIZES, FLOAT32
from models.definitions.definition import Definition, Progress
from models.manifest import Manifest, TensorCodecSpec
from tests.unit.export.definitions import CATALOG, definition


def quiet(done: int, total: int, note: str) -> None:
    """Nobody watches."""


def make(out: Path, model: Definition = CATALOG["tiny"], method: Method = "script") -> Made:
    return export(Job("tiny", model, out, method), lambda name: quiet)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("out"))


class TestManifest:
    def test_it_is_the_one_on_disk(self, made: Made) -> None:
        text = (made.folder / "manifest.json").read_bytes()
        assert Manifest.model_validate_json(text) == made.manifest

    def test_the_contract_is_the_definitions(self, made: Made) -> None:
        tiny, manifest = CATALOG["tiny"], made.manifest
        assert (manifest.model, manifest.version) == ("tiny", 1)
        assert manifest.description == tiny.description
        assert (manifest.inputs, manifest.outputs) == (tiny.inputs, tiny.outputs)
        assert manifest.codec == tiny.codec
        assert manifest.example == [3.0, 4.0]

    def test_golden_examples_hold_what_the_trained_eager_model_answers(self, made: Made) -> None:
        golden = [
            (each.inputs["x"].array().tolist(), each.outputs["y"].array().tolist())
            for each in made.manifest.golden
        ]
        assert golden == [([3, 4], [6, 8]), ([0, -1], [0, -2])]

    def test_when_and_from_which_commit(self, made: Made) -> None:
        created = made.manifest.created_at
        assert created.utcoffset() == dt.timedelta(0)
        assert abs(dt.datetime.now(dt.UTC) - created) < dt.timedelta(minutes=5)
        commit = made.manifest.git_commit
        assert commit is None or re.fullmatch("[0-9a-f]{40}", commit)

    def test_the_variant_says_how_it_was_made_and_proved(self, made: Made) -> None:
        variant = made.manifest.variants["script"]
        assert (variant.file, variant.precision) == ("script.pt", "float32")
        assert variant.made_by == "torch.jit.script + torch.jit.freeze"
        assert variant.torch_version == torch.__version__
        assert variant.tolerance == FLOAT32
        assert variant.parity.batch_sizes == BATCH_SIZES == tuple(range(1, 65))
        assert variant.parity.max_absolute <= FLOAT32.absolute
        assert variant.accuracy == made.manifest.accuracy == 0.75

    def test_every_other_file_has_its_digest(self, made: Made) -> None:
        names = {path.name for path in made.folder.iterdir()}
        assert names - {"manifest.json", "manifest.sha256"} == set(made.manifest.files)
        assert made.manifest.files["script.pt"].bytes == (made.folder / "script.pt").stat().st_size

    def test_without_a_test_set_there_is_no_accuracy(self, tmp_path: Path) -> None:
        manifest = make(tmp_path, definition(held_out=None)).manifest
        assert manifest.accuracy is None
        assert manifest.variants["script"].accuracy is None


@pytest.mark.parametrize("method", ["script", "trace"])
def test_the_file_answers_without_its_class(tmp_path: Path, method: Method) -> None:
    folder = make(tmp_path, method=method).folder
    loaded = torch.jit.load(str(folder / f"{method}.pt"))  # type: ignore[no-untyped-call]
    for rows in (1, 5):
        assert loaded(torch.full((rows, 2), 3.0)).tolist() == [[6.0, 6.0]] * rows
    assert list(loaded.parameters()) == []  # frozen: they are constants now


def test_nothing_is_trained_where_there_is_nothing_to_learn(tmp_path: Path) -> None:
    golden = make(tmp_path, definition(train=None)).manifest.golden[0]
    assert golden.outputs["y"].array().tolist() == [3, 4]


def test_long_steps_tell_their_progress(tmp_path: Path) -> None:
    told: dict[str, list[tuple[int, int]]] = {}

    def stage(name: str) -> Progress:
        def progress(done: int, total: int, note: str) -> None:
            told.setdefault(name, []).append((done, total))

        return progress

    export(Job("tiny", CATALOG["tiny"], tmp_path), stage)
    assert told["training"] == [(1, 1)]
    assert told["verifying"] == [(done, 66) for done in range(1, 67)]  # 64 batches, 2 examples


def test_a_definition_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> list[object]:
        raise KeyError("golden")

    with pytest.raises(KeyError):
        make(tmp_path, definition(golden_inputs=broken))
    assert list(tmp_path.rglob("*")) == []


class Stubborn(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("I will not")


def test_what_cannot_be_traced_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"^torch\.jit\.trace refused 'tiny': I will not"):
        make(tmp_path, definition(Stubborn), "trace")
    assert list(tmp_path.rglob("*")) == []


def test_a_definition_that_contradicts_itself_is_said_in_one_line(tmp_path: Path) -> None:
    wrong = definition(codec=TensorCodecSpec(labels=("only one",)))
    with pytest.raises(ExportError, match=r"contradicts itself: manifest: .*1 labels") as failed:
        make(tmp_path, wrong)
    assert "\n" not in str(failed.value)
    assert list(tmp_path.iterdir()) == []
