"""TorchServe archives as handlers: what is unpacked, warned about and refused; nothing is run."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from export.errors import ExportError, UsageError
from export.handlers import torchserve
from export.handlers.host import Answer
from export.handlers.torchserve import MODULE, Archive, missing_packages, unpack
from tests.unit.export.torchscripts import MODEL, SUMS, inline, mar, saved, written

NEVER = "raise SystemExit('this must never run')\n"
OWN = MODEL | {"handler": "own.py"}


def unpacked(folder: Path, files: dict[str, bytes], model: object = OWN) -> Archive:
    file = written(folder, mar(files, model), "it.mar")
    (folder / "to").mkdir()
    return unpack(file, folder / "to", None, None, None)


def constants(folder: Path) -> Any:
    """The class that runs an archive."""
    spec = importlib.util.spec_from_file_location(MODULE, folder / "to" / f"{MODULE}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Archive


def test_files_come_next_to_the_module_that_runs_them(tmp_path: Path) -> None:
    files = {"sums.pt": SUMS, "own.py": NEVER.encode(), "deep/words.txt": b"a"}
    archive = unpacked(tmp_path, files, OWN | {"modelVersion": "2.0", "modelName": "it"})
    assert archive == Archive("it", "sums.pt", "requirements.txt", ())
    for name, content in files.items():
        assert (tmp_path / "to" / name).read_bytes() == content
    made = constants(tmp_path)
    assert (made.models, made.max_batch_size) == ((), 1)
    assert made.__doc__ == "The handler of it.mar, version 2.0"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("minWorkers: 1\nbatchSize: 8\n", 8),
        ("batchSize : 16 # large", 16),
        ("handler:\n  batchSize: 8\n", 1),
        ("batchSize: many", 1),
        ("", 1),
    ],
)
def test_the_batch_size_is_that_of_the_configuration(tmp_path: Path, text: str, size: int) -> None:
    files = {"own.py": b"", "model-config.yaml": text.encode()}
    unpacked(tmp_path, files, OWN | {"configFile": "model-config.yaml"})
    assert constants(tmp_path).max_batch_size == size


def test_what_cannot_work_is_said_with_its_line(tmp_path: Path) -> None:
    text = (
        "import ts.context\n"
        "from ts.handler_utils.micro_batching import MicroBatching\n"
        "from ts.handler_utils.utils import send_intermediate_predict_response\n"
        "def handle(data, context):\n"
        "    x = model.cuda()\n"
        "    return x.data_ptr()\n"
    )
    assert unpacked(tmp_path, {"own.py": text.encode()}).warnings == (
        "own.py:2 imports ts.handler_utils.micro_batching, which does not exist here",
        f"own.py:3 imports {torchserve.STREAMS}, {torchserve.STREAMS_HINT}",
        f"own.py:5 calls .cuda(): {torchserve.CUDA}",
        f"own.py:6 reads the address of a tensor: {torchserve.CUDA}",
    )


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"nothing", "it.mar is not a zip archive"),
        (mar({}, manifest=b"[]"), 'MAR-INF/MANIFEST.json has no object "model"'),
        (mar({}, {"modelName": "it"}), "names no handler"),
        (mar({}, OWN), "it.mar has no file own.py, and own is none of the handlers of TorchServe"),
        (mar({"own.py": b"def"}, OWN), "own.py cannot be read as Python"),
        (mar({"../own.py": b""}, OWN), "leads out of its folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_archives_are_refused(tmp_path: Path, data: bytes, told: str) -> None:
    with pytest.raises(ExportError) as caught:
        unpack(written(tmp_path, data, "it.mar"), tmp_path, None, None, None)
    assert told in str(caught.value)


def test_missing_packages_are_those_of_the_interpreter(tmp_path: Path) -> None:
    assert missing_packages(tmp_path, "own.txt", sys.executable) == ()
    lines = "# own\n\nNumPy>=1\nno-such-package==3\n-e .\nhttps://a/b.whl\nother_missing[x] ; a\n"
    (tmp_path / "own.txt").write_text(lines)
    assert missing_packages(tmp_path, "own.txt", sys.executable) == (
        "no-such-package",
        "other_missing",
    )
    with pytest.raises(UsageError, match="cannot be run"):
        missing_packages(tmp_path, "own.txt", str(tmp_path / "none"))


def test_files_that_the_manifest_names_are_those_of_the_archive(tmp_path: Path) -> None:
    victim = written(tmp_path, b"batchSize: 9", "victim.txt")
    named = {"serializedFile": str(victim), "configFile": "../victim.txt"}
    archive = unpacked(tmp_path, {"own.py": b"", "cpu.txt": b""}, OWN | named)
    assert archive.weights is None
    assert constants(tmp_path).max_batch_size == 1
    other = tmp_path / "other"
    other.mkdir()
    files = {"own.py": b"", "cpu.txt": b""}
    assert unpacked(other, files, OWN | {"requirementsFile": "cpu.txt"}).requirements == "cpu.txt"


SERVED: dict[str, Any] = {
    "inputs": [{"name": "x"}],
    "outputs": [{"name": "y"}],
    "version": 2,
    "manifest": {"codec": {"kind": "tensor", "scores": "none"}},
}


def with_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, **fields: Any) -> Any:
    """The class that runs an archive with a model of which the server says this."""
    answer = Answer(200, "application/json", json.dumps(SERVED | fields).encode())
    monkeypatch.setattr(torchserve, "ask_server", lambda *_: answer)
    file = written(tmp_path, mar({"sums.pt": SUMS, "own.py": b""}, OWN), "it.mar")
    (tmp_path / "to").mkdir()
    unpack(file, tmp_path / "to", model, "http://server", None)
    return constants(tmp_path)


def test_the_served_model_has_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_served(tmp_path, monkeypatch, "net/2")
    assert (made.models, made.model_inputs, made.model_outputs) == (("net/2",), ("x",), ("y",))
    assert made.model_is_tensor


@pytest.mark.parametrize(
    ("model", "fields", "told"),
    [
        ("net/3", {}, "requests without a version get version 2"),
        ("net", {"inputs": []}, "is a handler, or none of its versions is loaded"),
        (
            "net",
            {"manifest": {"codec": {"kind": "image", "scores": "softmax"}}},
            r"changes its outputs \(scores: softmax\), .* --codec tensor --scores none",
        ),
    ],
)
def test_another_served_model_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    fields: dict[str, Any],
    told: str,
) -> None:
    with pytest.raises(UsageError, match=told):
        with_served(tmp_path, monkeypatch, model, **fields)


@pytest.mark.parametrize(
    ("weights", "returns", "is_tensor"),
    [
        (SUMS, None, True),
        (saved(inline("return (x,)", "Tuple[Tensor]")), None, False),
        (saved(inline("return {'y': x}", "Dict[str, Tensor]")), None, False),
        (SUMS, "outputs", False),
        (b"weights", "tensor", True),
        (b"weights", "outputs", False),
    ],
)
def test_one_output_is_what_the_network_returns(
    weights: bytes, returns: str | None, is_tensor: bool
) -> None:
    assert torchserve._returns_tensor(returns, weights) == is_tensor


def test_what_another_network_returns_must_be_said() -> None:
    with pytest.raises(UsageError, match="say with --model-returns whether it returns a tensor"):
        torchserve._returns_tensor(None, b"weights")


def test_a_model_needs_a_server(tmp_path: Path) -> None:
    file = written(tmp_path, mar({"own.py": b""}, OWN), "it.mar")
    with pytest.raises(UsageError, match=r"--model net needs a server .* --server http"):
        unpack(file, tmp_path, "net", None, None)
