"""ONNX files become definitions whose reference is ONNX Runtime's own, or a clear error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.adoption.adopt import Adoption
from export.errors import ExportError, UsageError
from export.variants.base import NotApplicable, Subject
from export.variants.registry import MAKERS
from tests.unit.export.definitions import loaded
from tests.unit.export.torchscripts import mar, run, written
from tests.unit.models.onnx_files import FLOAT, INT64, helper, model

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install 'torchlane[onnx]'")
NAME = ("--name", "m")
SUFFIX = "model.onnx"
info: Callable[..., Any] = helper.make_tensor_value_info
# Numbers and a mask -> their product, under a name that no manifest accepts, and where it is most.
MASKED = model(
    helper.make_node("Cast", ["input.ids"], ["numbers"], to=FLOAT),
    helper.make_node("Mul", ["numbers", "mask"], ["/masked/Mul"]),
    helper.make_node("ArgMax", ["/masked/Mul"], ["most"], axis=1, keepdims=0),
    inputs=[info("input.ids", INT64, ["b", "seq"]), info("mask", FLOAT, ["b", "seq"])],
    outputs=[info("/masked/Mul", FLOAT, ["b", "seq"]), info("most", INT64, ["b"])],
).SerializeToString()


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    return written(tmp_path, MASKED, SUFFIX)


def answers(adopted: Adoption, *inputs: Any) -> list[Any]:
    module = adopted.definition.build()
    output: Any = module(*(torch.from_numpy(np.asarray(each)) for each in inputs))
    return [each.tolist() for each in output]


def changed(change: Callable[[Any], object]) -> bytes:
    content = model(helper.make_node("Mul", ["x", "w"], ["y"]))
    change(content)
    data: bytes = content.SerializeToString()
    return data


def test_inputs_and_outputs_are_those_of_the_file(masked: Path) -> None:
    adoption = run(masked, *NAME)
    ids, mask = adoption.definition.inputs
    assert (ids.name, ids.dtype, ids.shape) == ("input_ids", "int64", (-1, -1))
    assert (mask.name, mask.dtype) == ("mask", "float32")
    assert ids.axes[0].name == mask.axes[0].name == "seq"
    outputs = [(each.name, each.dtype, each.shape) for each in adoption.definition.outputs]
    assert outputs == [("masked_Mul", "float32", (-1, -1)), ("most", "int64", (-1,))]
    inputs = np.array([[3, 5], [7, 1]]), np.ones((2, 2), np.float32)
    assert answers(adoption, *inputs) == [[[3.0, 5.0], [7.0, 1.0]], [1, 0]]


def test_the_command_refines_them(masked: Path) -> None:
    message = ("--input", "ids=int64[-1,1<=n<=9] in 0..99", "--input", "float32[-1,n]")
    adoption = run(masked, *NAME, *message, "--output", "most", "--output", "masked_Mul")
    assert [str(each) for each in adoption.definition.inputs] == [
        "ids=int64[-1,1<=n<=9] in 0..99",
        "mask=float32[-1,1<=n<=9]",
    ]
    inputs = np.array([[3, 5], [7, 1]]), np.ones((2, 2), np.float32)
    assert answers(adoption, *inputs) == [[1, 0], [[3.0, 5.0], [7.0, 1.0]]]
    only = run(masked, *NAME, *message, "--output", "most")
    assert answers(only, *inputs) == [[1, 0]]


def test_an_archive_may_contain_one(tmp_path: Path) -> None:
    manifest = {"modelName": "theirs", "serializedFile": SUFFIX, "handler": "base_handler"}
    adoption = run(written(tmp_path, mar({SUFFIX: MASKED}, manifest), "theirs.mar"))
    assert (adoption.name, len(adoption.definition.inputs)) == ("theirs", 2)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """The model with its outputs in another order."""
    file = written(tmp_path_factory.mktemp("masked"), MASKED, SUFFIX)
    definition = run(file, *NAME, "--output", "most", "--output", "masked_Mul").definition
    return Subject("m", definition, definition.build())


@pytest.mark.parametrize("variant", ["onnx", "openvino"])
def test_variants_give_the_answers_of_the_file(
    subject: Subject, tmp_path: Path, variant: str
) -> None:
    if variant == "openvino":
        pytest.importorskip("openvino", reason="needs OpenVINO: pip install 'torchlane[openvino]'")
    draft = MAKERS[variant].make(subject, tmp_path)
    assert draft.made_by.startswith("ONNX as it was given")
    form = loaded(draft, tmp_path, subject.definition)
    for count in (1, 3):
        batch = torch.arange(4 * count).view(count, 4), torch.ones(count, 4)
        for answer, expected in zip(form(*batch), subject.eager(*batch), strict=True):
            assert torch.equal(answer, expected)


@pytest.mark.parametrize("variant", ["script", "trace", "onednn", "compiled", "bf16"])
def test_variants_of_torch_are_left_out(subject: Subject, tmp_path: Path, variant: str) -> None:
    with pytest.raises(NotApplicable, match="the model is an ONNX file, which torch cannot read"):
        MAKERS[variant].make(subject, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"<html></html>", "model.onnx is not an ONNX model, or is damaged: copy or export it"),
        (MASKED[:-9], "model.onnx is not an ONNX model, or is damaged"),
        (
            changed(lambda m: m.graph.initializer[0].external_data.add(key="location", value="w")),
            "weights in another file: save it as one, onnx.save(onnx.load(",
        ),
        (
            changed(lambda m: setattr(m.graph.node[0], "domain", "com.example")),
            "the operator 'Mul' of 'com.example', which is not in the ONNX standard",
        ),
        (
            changed(lambda m: setattr(m.opset_import[0], "version", 999)),
            "it has opset 999, and opset 28 is the last; export it with a lower opset_version",
        ),
        (
            model(
                helper.make_node("Mul", ["x", "w"], ["y"]), inputs=[info("x", FLOAT, [4, 2])]
            ).SerializeToString(),
            "accepts 'x' only in batches of 4: export it with a free batch size: torch.onnx.export",
        ),
        (
            model(
                helper.make_node("Identity", ["x"], ["y"]),
                inputs=[info("x", 8, ["b"])],
                outputs=[info("y", 8, ["b"])],
            ).SerializeToString(),
            "takes 'x' as tensor(string), which clients cannot send; let the client convert text",
        ),
        (
            model(
                helper.make_node("Mul", ["x", "w"], ["y"]), inputs=[info("x", FLOAT, [])], rank=1
            ).SerializeToString(),
            "input 'x' is not a tensor with a batch axis",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(ExportError) as excinfo:
        run(written(tmp_path, data, SUFFIX), *NAME)
    assert why in str(excinfo.value)
    assert "\n" not in str(excinfo.value)
    assert not isinstance(excinfo.value, UsageError)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_packages(masked: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    needed = "it needs ONNX Runtime and onnxscript: pip install 'torchlane[onnx-export]'"
    with pytest.raises(ExportError) as excinfo:
        run(masked, *NAME)
    assert str(excinfo.value) == f"model.onnx is an ONNX model: {needed}"


def test_names_that_differ_only_in_forbidden_characters(tmp_path: Path) -> None:
    module = model(
        helper.make_node("Add", ["a.b", "a/b"], ["sum"]),
        helper.make_node("Mul", ["sum", "w"], ["::"]),
        inputs=[info("a.b", FLOAT, ["n", 2]), info("a/b", FLOAT, ["n", 2])],
        outputs=[info("::", FLOAT, ["n", 2])],
    )
    definition = run(written(tmp_path, module.SerializeToString(), SUFFIX), *NAME).definition
    names = [each.name for each in (*definition.inputs, *definition.outputs)]
    assert names == ["a_b", "tensor_1", "tensor_0"]
