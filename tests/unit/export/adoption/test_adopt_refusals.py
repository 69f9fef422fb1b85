"""Unusable files are rejected in one sentence; the exit code says whose fault it is."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch import nn

from export.adoption import adopt
from export.errors import ExportError, UsageError
from tests.unit.export.torchscripts import (
    MODEL,
    PICTURE,
    SUMS,
    X3,
    Sums,
    mar,
    pickled,
    run,
    traced,
    written,
)
from tests.unit.models.system.test_archive import zipped

GREY = (*PICTURE[:2], *PICTURE[4:])  # the argument says its input


def weights(header_bytes: int) -> bytes:
    """A safetensors file; a length of 128 begins with the byte of a pickle."""
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(header_bytes)
    return len(header).to_bytes(8, "little") + header + bytes(4)


class TestWrongArguments:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "--name and --input are required: the model's name in the repository, and its"),
            (["--name", "a b", *X3[2:]], "'a b' cannot be a model's name: give --name with 1 to"),
            (["--name", "x"], "--input is required: the model's input, such as --input 'float32"),
            ([*X3[:3], "float32"], "--input 'float32' is not dtype[shape], such as"),
            ([*X3, "--input", "other=int8[-1]"], "--input: 2 given, but the model takes 1 (x)"),
            (
                [*X3, "--input", "input_0=int8[-1]", "--input", "input_0=int8[-1]"],
                "--input: names must differ, got ['x', 'input_0', 'input_0']",
            ),
            ([*X3, "--output", "a b"], "--output 'a b': a name has 1 to 64 letters, digits, _ and"),
            ([*X3, "--output", "a", "--output", "a"], "--output: names must differ, got a, a"),
            ([*X3, "--output", "a", "--output", "b"], "--output: 2 given, but the model returns"),
            ([*X3, "--output", "a="], "--output 'a=': the file of its labels is missing"),
            ([*X3, "--output", "a=s3://b/l"], "--output NAME=FILE: s3:// is not supported, only"),
            ([*X3, "--output", "a=x.txt", "--labels", "y.txt"], "labels can be given only once:"),
            ([*X3, "--mean", "0"], "--mean is for pictures: add --codec image"),
            ([*X3, "--codec", "tensor", "--preprocess", __file__], "is none of these: what"),
            ([*X3, "--codec", "image"], "--codec image needs one --input float32[-1,C,H,W]"),
            ([*X3, "--top-k", "0"], "--top-k must be at least 1, got 0"),
            ([*X3, "--top-k", "2"], "--top-k needs --labels, or --scores softmax or sigmoid, and"),
            (["--labels", "/no/such", *X3], "cannot read /no/such: No such file or directory"),
        ],
    )
    def test_wrong_arguments_are_reported(
        self, sums: Path, arguments: list[str], message: str
    ) -> None:
        with pytest.raises(UsageError) as excinfo:
            run(sums, *arguments)
        assert message in str(excinfo.value)
        assert "\n" not in str(excinfo.value)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--mean", "0.5"], "--codec image: mean and std need 3 numbers, one per channel"),
            (["--std", "1,0,1"], "--codec image: std must be positive"),
            (["--std", "1,2,x"], "--std '1,2,x': must be comma-separated numbers, one per"),
            (["--input", "float32[-1,1,8,6]", "--std", "imagenet"], "imagenet has 3 channels, the"),
            (["--fit", "crop", "--resize-shorter", "7"], "needs resize_shorter, at least 8"),
            (["--fill", "256"], "--fill '256': must be a level from 0 to 255, mean or border"),
        ],
    )
    def test_of_pictures(self, light: Path, arguments: list[str], message: str) -> None:
        with pytest.raises(UsageError) as excinfo:
            run(light, *(PICTURE if "--input" not in arguments else GREY), *arguments)
        assert message in str(excinfo.value)

    @pytest.mark.parametrize(
        "shape", ["float32[-1,4,8,8]", "float32[-1,-1,8,8]", "float16[-1,3,8,8]", "float32[-1,8,8]"]
    )
    def test_of_shapes_that_cannot_be_pictures(self, light: Path, shape: str) -> None:
        with pytest.raises(UsageError, match=r"where C is 1 or 3, such as"):
            run(light, "--name", "x", "--input", shape, "--codec", "image")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"one\ntwo\nthree\n", "3 labels need a first output of shape [-1, 3], 'output' is"),
            (b"one\n\ntwo", "--labels: labels: the label of the index 1 is not text: ''"),
            (b"[1, 2]", "--labels: labels: the label of the index 0 is not text: 1"),
            (b"\xff", "--labels labels is not UTF-8: 'utf-8' codec can't decode byte"),
            ("one\ntwo".encode("utf-16"), "labels is not UTF-8: it begins with the byte order ma"),
        ],
    )
    def test_of_labels(self, sums: Path, tmp_path: Path, content: bytes, message: str) -> None:
        labels = written(tmp_path, content, "labels")
        with pytest.raises(UsageError) as excinfo:
            run(sums, *X3, "--labels", labels)
        assert message in str(excinfo.value)

    def test_oversized_label_file_is_not_read(
        self, sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(adopt, "MAX_LABELS_BYTES", 10)
        labels = written(tmp_path, b"a long label\nb", "labels")
        with pytest.raises(UsageError, match="at most 10 bytes are read"):
            run(sums, *X3, "--labels", labels)

    def test_softmax_needs_several_numbers(self, tmp_path: Path) -> None:
        file = written(tmp_path, traced(Row(), torch.zeros(1, 3)))
        with pytest.raises(UsageError, match=r"--scores softmax needs more than one number"):
            run(file, *X3, "--scores", "softmax")

    @pytest.mark.parametrize(
        ("name", "why"), [("missing.pt", "cannot read "), (".", ": an empty folder: a folder must")]
    )
    def test_unreadable_file_is_reported(self, tmp_path: Path, name: str, why: str) -> None:
        with pytest.raises(UsageError, match=why):
            run(tmp_path / name, *X3)


class Row(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=1)


class TestRefusedFiles:
    """Exit code 1: the command is right, the file is not what it should be."""

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (weights(128), "model.pt is a safetensors file, which has weights but no model: adopt"),
            (mar({"sums.pt": SUMS, "../evil.py": b""}), "'../evil.py', a path that leads out"),
            (mar({"sums.pt": b"hello"}), "sums.pt in model.pt is not a zip archive"),
            (mar({"sums.pt": zipped("../x")}), "sums.pt in model.pt contains '../x', a path"),
            (
                mar({"sums.pt": zipped("zeros", content=bytes(40_000_000))}),
                "sums.pt in model.pt would unpack to 40,000,000 bytes",
            ),
            (mar({"sums.pt": pickled(Sums().state_dict())}), "sums.pt in model.pt was written by"),
            (mar({"net.pth": b""}, MODEL | {"modelFile": "net.py"}), "has an eager model"),
            (
                mar({"sums.pt": SUMS, "index_to_name.json": b'["a"]'}),
                "1 labels need a first output of shape [-1, 1], 'output' is [-1, 2]; give --label",
            ),
        ],
    )
    def test_refused_files_are_reported(self, tmp_path: Path, data: bytes, message: str) -> None:
        with pytest.raises(ExportError) as excinfo:
            run(written(tmp_path, data), *X3)
        assert not isinstance(excinfo.value, UsageError)
        assert message in str(excinfo.value)
        assert "\n" not in str(excinfo.value)

    def test_nested_zip_bomb_is_refused(self, tmp_path: Path) -> None:
        """Each layer rejects the unpacked size before unpacking."""
        constants = zipped("sums/constants/0", content=bytes(40_000_000))
        one = mar({"sums.pt": zipped("sums/code/zeros.py", content=bytes(40_000_000))})
        other = mar({"sums.pt": constants})
        for data in (one, other):
            with pytest.raises(ExportError, match=r"would unpack to |which torch only stores"):
                run(written(tmp_path, data), *X3)

    def test_pickle_is_never_loaded(self, tmp_path: Path) -> None:
        touched = tmp_path / "touched"
        data = pickled(Touches(touched))
        for content in (data, mar({"sums.pt": data})):
            with pytest.raises(ExportError):
                run(written(tmp_path, content), *X3)
        assert not touched.exists()
        torch.load(io.BytesIO(data), weights_only=False)  # it would have
        assert touched.exists()


class Touches:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)
