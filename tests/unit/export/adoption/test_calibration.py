"""`adopt --calibrate`: real items in the model's form, with their labels; or a clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from export.adoption import calibration
from export.adoption.adopt import Adopted
from export.adoption.calibration_files import Found, checked
from export.errors import UsageError
from models.codec_specs import ImageCodecSpec
from models.definitions.definition import Definition, HeldOut
from models.preprocess import preprocess
from models.tensors import Array, Dimension, TensorSpec
from tests.huggingface import bert_config, save
from tests.unit.export.torchscripts import run, scripted, written

SIDE = 4


class Means(nn.Module):
    """x [n, 3, h, w] -> [n, 2]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(dim=(1, 2, 3))
        return torch.stack([-mean, mean], dim=1)


class Sums(nn.Module):
    """x, z [n, any] -> [n, 2]."""

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.sum(1), z.to(torch.float32).sum(1)], dim=1)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Ten dark ones and ten light ones, each in the folder of its label."""
    rng = np.random.default_rng(4)
    for label, low in (("dark", 0), ("light", 200)):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for index in range(10):
            levels = rng.integers(low, low + 56, (6, 5, 3)).astype(np.uint8)
            Image.fromarray(levels).save(tmp_path / "pictures" / label / f"{index}.png")
    return tmp_path / "pictures"


@pytest.fixture
def means(tmp_path: Path) -> Path:
    return written(tmp_path, scripted(Means()))


def of_pictures(file: Path, *arguments: object) -> Adopted:
    labels = written(file.parent, b"dark\nlight\n", "labels.txt")
    given = ("--name", "m", "--input", f"float32[-1,3,{SIDE},{SIDE}]", "--codec", "image")
    return run(file, *given, "--labels", labels, *arguments)


def of_numbers(folder: Path, *arguments: object) -> Adopted:
    given = ("--input", "x=float32[-1,3]", "--input", "z=int64[-1,-1] in 0..9")
    return run(written(folder, scripted(Sums())), "--name", "m", *given, *arguments)


def items(definition: Definition) -> list[dict[str, Array]]:
    """The calibration items, without the batch axis."""
    assert definition.calibration is not None
    return [
        {name: array[row] for name, array in batch.items()}
        for batch in definition.calibration()
        for row in range(len(next(iter(batch.values()))))
    ]


def held_out(definition: Definition) -> HeldOut:
    assert definition.held_out is not None
    return definition.held_out()


class TestPictures:
    def test_they_are_prepared_as_for_requests(self, means: Path, pictures: Path) -> None:
        made = of_pictures(means, "--calibrate", pictures / "dark")
        definition, codec = made.definition, made.definition.codec
        assert isinstance(codec, ImageCodecSpec)
        wanted = {
            preprocess(file.read_bytes(), codec.preprocess).tobytes()
            for file in (pictures / "dark").iterdir()
        }
        found = items(definition)
        assert {item["input"].tobytes() for item in found} == wanted
        assert definition.held_out is None
        assert made.calibration == ("10 of 10 items of dark for int8",)
        assert made.variants == ("script", "int8")  # what a TorchScript file gets otherwise: script

    def test_folders_are_labels_and_half_of_the_items_measure(
        self, means: Path, pictures: Path
    ) -> None:
        made = of_pictures(means, "--calibrate", pictures)
        others = held_out(made.definition)
        assert made.calibration == ("10 of 20 items of pictures for int8, accuracy on 10 others",)
        light = others.inputs["input"].mean(axis=(1, 2, 3)) > 0.5
        assert light.astype(int).tolist() == others.labels.tolist()
        assert set(others.labels.tolist()) == {0, 1}
        used = {item["input"].tobytes() for item in items(made.definition)}
        assert used.isdisjoint(each.tobytes() for each in others.inputs["input"])

    def test_proofs_use_values_of_different_items(self, means: Path, pictures: Path) -> None:
        definition = of_pictures(means, "--calibrate", pictures).definition
        used = {item["input"].tobytes() for item in items(definition)}
        golden = definition.golden_inputs()
        drawn = definition.random_inputs(np.random.default_rng(1), 30)["input"]
        assert {item["input"].tobytes() for item in golden} <= used
        assert drawn.shape == (30, 3, SIDE, SIDE)
        assert {each.tobytes() for each in drawn[: len(used)]} == used
        assert len({each.tobytes() for each in drawn}) == 30

    def test_a_single_item_makes_different_ones(self, tmp_path: Path) -> None:
        """Copies would not show that a model mixes the items of a batch."""
        np.save(tmp_path / "one.npy", np.arange(6, dtype=np.float32)[None])
        model = written(tmp_path, scripted(nn.Linear(6, 2)))
        path = tmp_path / "one.npy"
        made = run(model, "--name", "m", "--input", "float32[-1,6]", "--calibrate", path)
        (drawn,) = made.definition.random_inputs(np.random.default_rng(1), 4).values()
        assert len({each.tobytes() for each in drawn}) == 4
        assert {*drawn.flatten()} == {*range(6)}

    def test_a_file_may_have_the_labels(self, means: Path, pictures: Path) -> None:
        labels = written(means.parent, b"light\n1\n" + b"dark\n" * 8, "right.txt")
        given = ("--calibrate", pictures / "dark", "--calibrate-labels", labels)
        others = held_out(of_pictures(means, *given).definition)
        assert len(others.labels) == 5

    def test_limits(self, means: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(calibration, "MAX_CALIBRATION", 3)
        monkeypatch.setattr(calibration, "MAX_ITEMS", 8)
        one, other = (
            of_pictures(means, "--calibrate", path).calibration[0]
            for path in (pictures / "dark", pictures)
        )
        assert one == "3 of 10 items of dark for int8"
        assert other == "3 of 20 items of pictures for int8, accuracy on 5 others"
        monkeypatch.setattr(calibration, "MAX_BYTES", 3 * SIDE * SIDE * 4)
        assert of_pictures(means, "--calibrate", pictures).calibration[0].startswith("1 of 20")


def broken(folder: Path) -> Path:
    (folder / "broken").mkdir()
    written(folder / "broken", b"no picture", "a.png")
    return folder / "broken"


def mixed(folder: Path) -> Path:
    (folder / "pictures" / "0.png").write_bytes(
        (folder / "pictures" / "dark" / "0.png").read_bytes()
    )
    return folder / "pictures"


def other_label(folder: Path) -> Path:
    (folder / "pictures" / "light").rename(folder / "pictures" / "grey")
    return folder / "pictures"


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "why"),
        [
            (lambda folder: folder / "none", "No such file or directory"),
            (lambda folder: (folder / "empty").mkdir() or folder / "empty", "is empty: give some"),
            (lambda folder: written(folder, b"x", "x.csv"), "must be a folder of PNG or JPEG"),
            (broken, r"a\.png: .*not .*PNG or JPEG|damaged"),
            (mixed, "has pictures next to folders with pictures"),
            (other_label, "has the label 'grey', and the model has 2: it "),
            (lambda folder: written(folder, b"a text\n", "x.txt"), "has texts, and the model"),
        ],
        ids=["missing", "empty", "format", "damaged", "mixed", "label", "texts"],
    )
    def test_pictures(
        self, means: Path, pictures: Path, make: Callable[[Path], Path], why: str
    ) -> None:
        with pytest.raises(UsageError, match=why) as refused:
            of_pictures(means, "--calibrate", make(pictures.parent))
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize(
        ("labels", "why"),
        [
            (b"dark\n", "has 1 labels for 10 items"),
            (b"dark\n" * 9 + b"2\n", "has the label '2', and the model has 2: it must be one of "),
            (b"\xff\n", "is not UTF-8"),
        ],
    )
    def test_labels(self, means: Path, pictures: Path, labels: bytes, why: str) -> None:
        file = written(means.parent, labels, "right.txt")
        given = ("--calibrate", pictures / "dark", "--calibrate-labels", file)
        with pytest.raises(UsageError, match=why):
            of_pictures(means, *given)

    def test_labels_alone(self, means: Path) -> None:
        with pytest.raises(UsageError, match="is for the items of --calibrate, which is missing"):
            of_pictures(means, "--calibrate-labels", means)

    def test_a_folder_for_numbers(self, tmp_path: Path, pictures: Path) -> None:
        with pytest.raises(UsageError, match="for models that take pictures: add --codec image"):
            of_numbers(tmp_path, "--calibrate", pictures)


X, Z = np.arange(12, dtype=np.float64).reshape(4, 3), np.array([[1, 2], [3, 4], [5, 6], [7, 8]])


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "it.npz", **arrays)
    return folder / "it.npz"


def table(folder: Path, **columns: Any) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pip install 'torchlane[bulk]'")
    from pyarrow import parquet  # noqa: PLC0415

    parquet.write_table(pyarrow.table(columns), folder / "it.parquet")
    return folder / "it.parquet"


class TestNumbers:
    def test_an_archive_of_arrays(self, tmp_path: Path) -> None:
        file = saved(tmp_path, x=X, z=Z, labels=np.array([0, 1, 1, 0]))
        definition = of_numbers(tmp_path, "--calibrate", file).definition
        found, others = items(definition), held_out(definition)
        assert {name: array.dtype.name for name, array in found[0].items()} == {
            "x": "float32",
            "z": "int64",
        }
        rows = [*(item["x"].tolist() for item in found), *others.inputs["x"].tolist()]
        assert sorted(rows) == X.tolist()
        wanted = [[0, 1, 1, 0][int(row[0]) // 3] for row in others.inputs["x"]]
        assert others.labels.tolist() == wanted

    def test_a_table_with_items_of_several_sizes(self, tmp_path: Path) -> None:
        rows = [[1], [3, 4], [5, 6], [7, 8, 9]]
        file = table(tmp_path, x=X.tolist(), z=rows)
        definition = of_numbers(tmp_path, "--calibrate", file).definition
        assert sorted(item["z"].tolist() for item in items(definition)) == rows
        drawn = [definition.random_inputs(np.random.default_rng(n), 2)["z"] for n in range(9)]
        assert len({each.shape for each in drawn}) > 1  # sizes are those of proofs without items

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"x": X[:, :2]}, r"row \d: the item is float64\[2\], and the model takes x=float32"),
            ({"x": X.astype(np.int64)}, r"row \d: the item is int64\[3\], and the model takes"),
            ({"x": np.full((4, 3), np.nan)}, r"row \d: 'x' has NaN or infinite numbers"),
            ({"x": np.full((4, 3), 1e300)}, r"row \d: 'x' has NaN or infinite numbers"),
            ({"z": Z + 2}, "10 is not a number that z=int64"),
            ({"z": Z[:3]}, r"its arrays have \[3, 4\] rows"),
            ({"y": Z}, "has x, z, y, and the model takes x, z"),
            ({"labels": np.array([0, 1, 2, 0])}, "has the label 2, and the model has 2: it must"),
            ({"x": X[:1], "z": Z[:1], "labels": np.array([0])}, "at least 2 items are needed"),
            ({"x": X[:0], "z": Z[:0]}, "is empty: give some real inputs"),
            ({"x": np.array([{}] * 4)}, "cannot be read as .npz: Object arrays cannot be loaded"),
        ],
    )
    def test_what_does_not_fit(self, tmp_path: Path, change: dict[str, Any], why: str) -> None:
        file = saved(tmp_path, **{"x": X, "z": Z, **change})
        with pytest.raises(UsageError, match=why) as refused:
            of_numbers(tmp_path, "--calibrate", file)
        assert "\n" not in str(refused.value)

    def test_one_array_for_two_inputs(self, tmp_path: Path) -> None:
        np.save(tmp_path / "it.npy", X)
        with pytest.raises(UsageError, match="has one array, but the model has the inputs x, z"):
            of_numbers(tmp_path, "--calibrate", tmp_path / "it.npy")

    @pytest.mark.parametrize("name", ["it.npy", "it.npz", "it.parquet"])
    def test_damaged_files(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(UsageError, match=r"it\.np.* cannot be read|is not Parquet|one array"):
            of_numbers(tmp_path, "--calibrate", written(tmp_path, b"PK\x03\x04 no", name))

    def test_labels_need_equal_sizes_or_padding(self, tmp_path: Path) -> None:
        file = table(
            tmp_path, x=X.tolist(), z=[[1], [3, 4], [5, 6, 7], [7] * 4], label=[0, 1, 0, 1]
        )
        with pytest.raises(UsageError, match="items with labels must have equal sizes"):
            of_numbers(tmp_path, "--calibrate", file)


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """Of two labels: no and yes."""
    (tmp_path / "folder").mkdir()
    config = bert_config(num_labels=2, id2label={0: "no", 1: "yes"})
    save(tmp_path / "folder", "BertForSequenceClassification", config)
    return tmp_path / "folder"


class TestTexts:
    def test_lines_of_objects_with_labels(self, classifier: Path, tmp_path: Path) -> None:
        rows = [
            {"text": f"{'a ' * index}b", "label": ["no", "yes"][index % 2]} for index in range(6)
        ]
        file = written(tmp_path, "\n".join(map(json.dumps, rows)).encode(), "it.jsonl")
        made = run(classifier, "--task", "classify", "--calibrate", file)
        others = held_out(made.definition)
        assert made.calibration == ("3 of 6 items of it.jsonl for int8, accuracy on 3 others",)
        lengths = [*(len(item["input_ids"]) for item in items(made.definition))]
        masks = others.inputs["attention_mask"].sum(axis=1).tolist()
        shortest = min(lengths + masks)
        assert sorted(lengths + masks) == list(range(shortest, shortest + 6))
        assert others.labels.tolist() == [(size - shortest) % 2 for size in masks]

    def test_lines_of_text(self, classifier: Path, tmp_path: Path) -> None:
        file = written(tmp_path, "a b\r\nb\x0c\u2028c".encode(), "it.txt")
        made = run(classifier, "--task", "classify", "--calibrate", file)
        assert made.calibration == ("2 of 2 items of it.txt for int8",)

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"{", "line 1: not JSON: "),
            (b'"a"\n3', r"row 1: a text is needed, got int"),
            (b'{"other": "a"}', "needs 'text'"),
            (b"", "is empty: give some real inputs"),
            (b'"a"\n\n"b"', "line 2: not JSON: "),
            (b"\xff", "is not UTF-8"),
        ],
    )
    def test_what_does_not_fit(
        self, classifier: Path, tmp_path: Path, content: bytes, why: str
    ) -> None:
        file = written(tmp_path, content, "it.jsonl")
        with pytest.raises(UsageError, match=why):
            run(classifier, "--task", "classify", "--calibrate", file)


def test_an_index_reaches_into_its_own_item_only() -> None:
    inputs = [
        TensorSpec(name="x", dtype="float32", shape=(-1, -1, 2), dimensions=(Dimension(name="n"),)),
        TensorSpec(name="e", dtype="int64", shape=(-1, -1), minimum=0, below="n"),
    ]
    item = {"x": np.zeros((3, 2)), "e": np.array([2, 3])}
    found = Found(1, lambda _: item, lambda _: "row 0")
    with pytest.raises(UsageError, match="row 0: 3 is not a number that e=int64"):
        checked(found, 0, inputs)
    assert checked(found, 0, [*inputs[:1], inputs[1].model_copy(update={"below": None})])
