"""`adopt --examples`: real items in the model's form, with their labels; or a clear error."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from export.adoption import examples
from export.adoption.adopt import Adoption
from export.adoption.example_files import ItemSource, read
from export.errors import ExportError, UsageError
from models.codec_specs import ImageCodecSpec
from models.definitions.definition import Definition, HeldOut
from models.inputs.preprocess import preprocess
from models.tensors import Array, Dimension, TensorSpec
from tests.unit.export.torchscripts import run, scripted, written
from tests.unit.models.folders import bert_config, save

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


class WithoutNan(nn.Module):
    """x [n, 3] -> [n, 3]: the same, 0 for NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.nan_to_num(0.0)


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


def of_pictures(file: Path, *arguments: object) -> Adoption:
    labels = written(file.parent, b"dark\nlight\n", "labels.txt")
    options = ("--name", "m", "--input", f"float32[-1,3,{SIDE},{SIDE}]", "--codec", "image")
    return run(file, *options, "--labels", labels, *arguments)


def of_numbers(folder: Path, *arguments: object) -> Adoption:
    options = ("--input", "x=float32[-1,3]", "--input", "z=int64[-1,-1] in 0..9")
    return run(written(folder, scripted(Sums())), "--name", "m", *options, *arguments)


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
        adoption = of_pictures(means, "--examples", pictures / "dark")
        definition, codec = adoption.definition, adoption.definition.codec
        assert isinstance(codec, ImageCodecSpec)
        expected = {
            preprocess(file.read_bytes(), codec.preprocess).tobytes()
            for file in (pictures / "dark").iterdir()
        }
        arrays = items(definition)
        assert {item["x"].tobytes() for item in arrays} == expected
        assert definition.held_out is None
        assert adoption.definition.real_inputs == "10 of 10 items of dark"

    def test_folders_are_labels_and_half_of_the_items_measure(
        self, means: Path, pictures: Path
    ) -> None:
        adoption = of_pictures(means, "--examples", pictures)
        others = held_out(adoption.definition)
        assert adoption.definition.real_inputs == (
            "20 of 20 items of pictures; accuracy is measured on 10, int8 may use 10 others"
        )
        light = others.inputs["x"].mean(axis=(1, 2, 3)) > 0.5
        assert light.astype(int).tolist() == others.labels.tolist()
        assert set(others.labels.tolist()) == {0, 1}
        calibration = {item["x"].tobytes() for item in items(adoption.definition)}
        assert calibration.isdisjoint(each.tobytes() for each in others.inputs["x"])

    def test_proofs_use_different_items(self, means: Path, pictures: Path) -> None:
        definition = of_pictures(means, "--examples", pictures).definition
        every = {each.tobytes() for each in held_out(definition).inputs["x"]}
        every |= {item["x"].tobytes() for item in items(definition)}
        golden = {item["x"].tobytes() for item in definition.golden_inputs()}
        assert golden <= every
        assert len(golden) == 3
        samples = definition.random_inputs(np.random.default_rng(1), 30)["x"]
        assert {each.tobytes() for each in samples} == every

    def test_a_file_may_have_the_labels(self, means: Path, pictures: Path) -> None:
        labels = written(means.parent, b"light\n1\n" + b"dark\n" * 8, "right.txt")
        options = ("--examples", pictures / "dark", "--example-labels", labels)
        others = held_out(of_pictures(means, *options).definition)
        assert len(others.labels) == 5

    def test_limits(self, means: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(examples, "MAX_EXAMPLES", 3)
        monkeypatch.setattr(examples, "MAX_ITEMS", 8)
        one, other = (
            of_pictures(means, "--examples", path).definition.real_inputs
            for path in (pictures / "dark", pictures)
        )
        assert one == "3 of 10 items of dark"
        assert other == (
            "8 of 20 items of pictures; accuracy is measured on 5, int8 may use 3 others"
        )
        monkeypatch.setattr(examples, "MAX_BYTES", 3 * SIDE * SIDE * 4)
        assert of_pictures(means, "--examples", pictures).definition.real_inputs == (
            "2 of 20 items of pictures; accuracy is measured on 1, int8 may use 1 others"
        )

    def test_one_of_them_is_shown(self, means: Path, pictures: Path) -> None:
        definition = of_pictures(means, "--examples", pictures / "light").definition
        assert isinstance(definition.codec, ImageCodecSpec)
        display = definition.example()
        assert isinstance(display, str)
        seen = preprocess(base64.b64decode(display), definition.codec.preprocess)
        assert any(np.array_equal(seen, item["x"]) for item in items(definition))


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
            (lambda folder: written(folder, b"x", "x.csv"), "must be a folder of PNG, JPEG"),
            (broken, r"a\.png: .*neither a PNG, .*|damaged"),
            (mixed, "has files next to folders with files"),
            (other_label, "has the label 'grey', and the model has 2: it "),
            (lambda folder: written(folder, b"a text\n", "x.txt"), "has texts, and the model"),
        ],
        ids=["missing", "empty", "format", "damaged", "mixed", "label", "texts"],
    )
    def test_pictures(
        self, means: Path, pictures: Path, make: Callable[[Path], Path], why: str
    ) -> None:
        with pytest.raises(UsageError, match=why) as refused:
            of_pictures(means, "--examples", make(pictures.parent))
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize(
        ("labels", "why"),
        [
            (b"dark\n", "has 1 labels for 10 items"),
            (b"dark\n" * 9 + b"2\n", "has the label '2', and the model has 2: it must be one of "),
        ],
    )
    def test_labels(self, means: Path, pictures: Path, labels: bytes, why: str) -> None:
        file = written(means.parent, labels, "right.txt")
        options = ("--examples", pictures / "dark", "--example-labels", file)
        with pytest.raises(UsageError, match=why):
            of_pictures(means, *options)

    def test_a_folder_for_numbers(self, tmp_path: Path, pictures: Path) -> None:
        with pytest.raises(UsageError, match="for models that take pictures or sounds: add"):
            of_numbers(tmp_path, "--examples", pictures)

    def test_labels_alone(self, means: Path) -> None:
        with pytest.raises(UsageError, match="is for the items of --examples, which is missing"):
            of_pictures(means, "--example-labels", means)


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
        definition = of_numbers(tmp_path, "--examples", file).definition
        calibration, others = items(definition), held_out(definition)
        assert {name: array.dtype.name for name, array in calibration[0].items()} == {
            "x": "float32",
            "z": "int64",
        }
        rows = [*(item["x"].tolist() for item in calibration), *others.inputs["x"].tolist()]
        assert sorted(rows) == X.tolist()
        expected = [[0, 1, 1, 0][int(row[0]) // 3] for row in others.inputs["x"]]
        assert others.labels.tolist() == expected

    def test_a_table_with_items_of_several_sizes(self, tmp_path: Path) -> None:
        rows = [[1], [3, 4], [5, 6], [7, 8, 9]]
        file = table(tmp_path, x=X.tolist(), z=rows)
        definition = of_numbers(tmp_path, "--examples", file).definition
        assert sorted(item["z"].tolist() for item in items(definition)) == rows
        samples = [definition.random_inputs(np.random.default_rng(n), 2)["z"] for n in range(9)]
        assert len({each.shape for each in samples}) > 1  # sizes are those of proofs without items

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"x": X[:, :2]}, r"row \d: the item is float64\[2\], and the model takes x=float32"),
            ({"x": np.full((4, 3), np.nan)}, r"row \d: 'x' has NaN; .*'x=float32\[-1,3\] or nan'"),
            ({"x": np.full((4, 3), 1e300)}, r"row \d: 'x' has infinite numbers"),
            ({"z": Z + 2}, "10 is not a number that z=int64"),
            ({"y": Z}, "has x, z, y, and the model takes x, z"),
            ({"labels": np.array([0, 1, 2, 0])}, "has the label 2, and the model has 2: it must"),
            ({"x": X[0], "z": Z[0]}, "has one item; the first axis must be that of the items"),
            ({"x": X[[0, 0]], "z": Z[[0, 0]]}, r"has 1 item, repeated: at least two different"),
            ({"x": np.array([{}] * 4)}, "cannot be read as .npz: Object arrays cannot be loaded"),
        ],
    )
    def test_what_does_not_fit(self, tmp_path: Path, change: dict[str, Any], why: str) -> None:
        file = saved(tmp_path, **{"x": X, "z": Z, **change})
        with pytest.raises(UsageError, match=why) as refused:
            of_numbers(tmp_path, "--examples", file)
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize("name", ["it.npz", "it.parquet"])
    def test_missing_numbers(self, tmp_path: Path, name: str) -> None:
        rows = [[None, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, None]]
        if name == "it.npz":
            saved(tmp_path, x=np.array(rows, np.float64))
        else:
            table(tmp_path, x=rows)
        options = ("--name", "m", "--input", "x=float32[-1,3] or nan")
        module = written(tmp_path, scripted(WithoutNan()))
        definition = run(module, *options, "--examples", tmp_path / name).definition
        missing_at = sorted(np.isnan(item["x"]).nonzero()[0].tolist() for item in items(definition))
        assert missing_at == [[], [0], [2]]
        samples = definition.random_inputs(np.random.default_rng(1), 9)["x"]
        assert np.isnan(samples).sum() > 6  # more than those items have

    @pytest.mark.parametrize("name", ["it.npy", "it.npz", "it.parquet"])
    def test_damaged_files(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(UsageError, match=r"it\.np.* cannot be read|is not Parquet|one array"):
            of_numbers(tmp_path, "--examples", written(tmp_path, b"PK\x03\x04 no", name))

    def test_labels_need_equal_sizes_or_padding(self, tmp_path: Path) -> None:
        file = table(
            tmp_path, x=X.tolist(), z=[[1], [3, 4], [5, 6, 7], [7] * 4], label=[0, 1, 0, 1]
        )
        with pytest.raises(UsageError, match="items with labels must have equal sizes"):
            of_numbers(tmp_path, "--examples", file)


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
        adoption = run(classifier, "--task", "classify", "--examples", file)
        others = held_out(adoption.definition)
        assert adoption.definition.real_inputs == (
            "6 of 6 items of it.jsonl; accuracy is measured on 3, int8 may use 3 others"
        )
        lengths = [*(len(item["input_ids"]) for item in items(adoption.definition))]
        masks = others.inputs["attention_mask"].sum(axis=1).tolist()
        shortest = min(lengths + masks)
        assert sorted(lengths + masks) == list(range(shortest, shortest + 6))
        assert others.labels.tolist() == [(size - shortest) % 2 for size in masks]

    def test_lines_of_text(self, classifier: Path, tmp_path: Path) -> None:
        file = written(tmp_path, "a b\r\nb\x0c\u2028c".encode(), "it.txt")
        definition = run(classifier, "--task", "classify", "--examples", file).definition
        assert definition.real_inputs == "2 of 2 items of it.txt"
        assert definition.example() in ("a b", "b\x0c\u2028c")
        lengths = [len(item["input_ids"]) for item in definition.golden_inputs()]
        own = [len(item["input_ids"]) for item in items(definition)]
        assert lengths[:2] == sorted(own)
        assert lengths[2:] == [size for size in sorted(lengths[2:]) if size > max(own)]
        samples = [definition.random_inputs(np.random.default_rng(n), 1) for n in range(20)]
        assert {*own} < {each["input_ids"].shape[1] for each in samples}

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"{", "line 1: not JSON: "),
            (b'"a"\n3', r"row 1: a text is needed, got int"),
            (b'{"other": "a"}', "needs 'text'"),
        ],
    )
    def test_what_does_not_fit(
        self, classifier: Path, tmp_path: Path, content: bytes, why: str
    ) -> None:
        file = written(tmp_path, content, "it.jsonl")
        with pytest.raises(UsageError, match=why):
            run(classifier, "--task", "classify", "--examples", file)


class Logs(nn.Module):
    """x [n, k] -> [n, 1]: the mean logarithm, NaN unless all numbers are positive."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.log().mean(1, keepdim=True)


class Graphs(nn.Module):
    """nodes [n, k, 2], edges [n, 2, e] -> [n, 2]: the mean over the ends of edges."""

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        flat = edges.flatten(1).unsqueeze(2).expand(-1, -1, 2)
        return nodes.gather(1, flat).mean(1)


class Sounds(nn.Module):
    """x [n, t] -> [n, t // 8000]; only whole seconds at 8 kHz."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], -1, 8000).mean(2)


def graphs(folder: Path) -> Path:
    rng = np.random.default_rng(5)
    sizes = [(4, 6), (7, 9), (9, 5), (12, 20)]
    return table(
        folder,
        nodes=[rng.random((nodes, 2)).tolist() for nodes, _ in sizes],
        edges=[rng.integers(0, nodes, (2, edges)).tolist() for nodes, edges in sizes],
    )


def drawn_of(adoption: Adoption, count: int = 12) -> list[dict[str, Array]]:
    """Batches that the proofs would use, of one to four items."""
    rng = np.random.default_rng(7)
    return [dict(adoption.definition.random_inputs(rng, 1 + index % 4)) for index in range(count)]


class TestModelsThatNeedThem:
    def test_logarithms(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.random.default_rng(1).random((9, 5), np.float32) + 0.1)
        options = (written(tmp_path, scripted(Logs())), "--name", "m", "--input", "float32[-1,-1]")
        with pytest.raises(ExportError, match=r"NaN or infinite .*, with --examples$"):
            run(*options)
        adoption = run(*options, "--examples", tmp_path / "x.npy")
        batches = drawn_of(adoption)
        assert all((each["x"] > 0).all() for each in batches)
        assert {each["x"].shape[1] for each in batches} >= {3, 5}  # other sizes are cut out
        assert adoption.definition.real_inputs == "9 of 9 items of x.npy"

    def test_graphs(self, tmp_path: Path) -> None:
        """Edges stay below the number of nodes when graphs of other sizes share a batch."""
        model = written(tmp_path, scripted(Graphs()))
        inputs = ("--input", "nodes=float32[-1,-1,2]", "--input", "edges=int64[-1,2,-1]")
        adoption = run(model, "--name", "m", *inputs, "--examples", graphs(tmp_path))
        assert "edges=int64[-1,2,1<=-1<=1024] in 0..<n" in adoption.findings[-1]
        assert len({each["nodes"].shape for each in drawn_of(adoption)}) > 3
        for each in drawn_of(adoption):
            assert each["edges"].max() < each["nodes"].shape[1]
        shapes = {item["nodes"].shape for item in adoption.definition.golden_inputs()}
        assert shapes == {(4, 2), (7, 2), (12, 2)}

    def test_sounds(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(3)
        file = table(tmp_path, x=[rng.random(8000 * n).tolist() for n in (1, 2, 2)])
        model = written(tmp_path, scripted(Sounds()))
        adoption = run(model, "--name", "m", "--input", "x=float32[-1,-1]", "--examples", file)
        (spec,) = adoption.definition.inputs
        assert (spec.axes[0].most, adoption.definition.outputs[0].shape) == (16000, (-1, -1))
        assert "axis 0 of 'x' is at most 16,000, as in --examples" in adoption.findings
        assert adoption.definition.real_inputs == "3 of 3 items of it.parquet" + examples.ONLY

    def test_pictures_that_are_too_large_to_serve(self, tmp_path: Path) -> None:
        (tmp_path / "pictures").mkdir()
        for index in range(3):
            Image.new("RGB", (4097, 8), (index, 0, 0)).save(tmp_path / "pictures" / f"{index}.png")
        options = ("--name", "m", "--codec", "image", "--input", "float32[-1,3,h,w]")
        model = written(tmp_path, scripted(Means()))
        with pytest.raises(UsageError, match=r"pictures of up to 4097 x 1024 .* or equal to 4096"):
            run(model, *options, "--examples", tmp_path / "pictures")

    def test_a_model_that_fails_on_them(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.arange(24, dtype=np.float32).reshape(4, 6) - 3)
        model = written(tmp_path, scripted(Logs()))
        options = ("--name", "m", "--input", "float32[-1,6]", "--examples", tmp_path / "x.npy")
        with pytest.raises(ExportError, match=r"^--examples: the model returns NaN or infinite"):
            run(model, *options)


def test_padding_at_the_end_of_an_item_is_no_part_of_it() -> None:
    padded = (Dimension(name="n", least=1, most=9, mask="m"),)
    inputs = [
        TensorSpec(name="x", dtype="float32", shape=(-1, 2, -1), dimensions=padded),
        TensorSpec(name="m", dtype="bool", shape=(-1, -1), dimensions=padded),
    ]
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    masks = ([1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0])
    options = [{"x": rows, "m": np.array(mask, bool)} for mask in masks]
    source = ItemSource(3, options.__getitem__, "row {}".format)
    for at, size in enumerate((3, 4, 4)):
        item = read(source, at, inputs)
        assert item["x"].tolist() == rows[:, :size].tolist()
        assert item["m"].tolist() == options[at]["m"][:size].tolist()


def test_an_index_reaches_into_its_own_item_only() -> None:
    inputs = [
        TensorSpec(name="x", dtype="float32", shape=(-1, -1, 2), dimensions=(Dimension(name="n"),)),
        TensorSpec(name="e", dtype="int64", shape=(-1, -1), minimum=0, below="n"),
    ]
    item = {"x": np.zeros((3, 2)), "e": np.array([2, 3])}
    source = ItemSource(1, lambda _: item, lambda _: "row 0")
    with pytest.raises(UsageError, match="row 0: 3 is not a number that e=int64"):
        read(source, 0, inputs)
    assert read(source, 0, [*inputs[:1], inputs[1].model_copy(update={"below": None})])
