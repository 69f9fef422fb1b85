"""ONNX models: what runs, what is rejected, and errors that say what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from models.runtimes.base import VariantFile
from models.runtimes.onnx_models import check_onnx, load_onnx
from models.system.archive import ArchiveError
from tests.artifacts import small_variant
from tests.unit.models.onnx_files import INT64, ModelProto, helper, model, tensor

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install 'torchlane[onnx]'")
X = torch.arange(6.0).reshape(3, 2)


def outside(name: str = "w") -> Any:
    """A tensor whose numbers are in another file."""
    made = tensor(name, [1.0, 2.0])
    made.ClearField("raw_data")
    made.data_location = 1
    made.external_data.add(key="location", value="/etc/hostname")
    return made


def branch(*nodes: Any, initializers: tuple[Any, ...] = ()) -> Any:
    """A graph inside another one, which is never run."""
    return helper.make_graph(list(nodes), "branch", [], [], initializer=list(initializers))


def node(operator: str, domain: str = "", **attributes: Any) -> Any:
    return helper.make_node(operator, ["x"], ["z"], domain=domain, **attributes)


def test_answers_and_shapes() -> None:
    form = load_onnx(
        VariantFile.of(model(helper.make_node("Mul", ["x", "w"], ["y"])).SerializeToString())
    )
    for size in (1, 3, 2):
        (made,) = form(X[:size])
        assert torch.equal(made, X[:size] * torch.tensor([1.0, 2.0]))


def test_operators_that_the_file_defines_are_its_own() -> None:
    twice = helper.make_function(
        *("own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])]),
        opset_imports=[helper.make_opsetid("", 20)],
    )
    made = model(helper.make_node("Twice", ["x"], ["y"], domain="own"), functions=[twice])
    assert torch.equal(load_onnx(VariantFile.of(made.SerializeToString()))(X)[0], X * 2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m.graph.initializer.append(outside()), "weights in another file"),
        (lambda m: m.graph.sparse_initializer.add().values.CopyFrom(outside()), "in another file"),
        (lambda m: m.graph.node.append(node("Constant", value=outside())), "in another file"),
        (
            lambda m: m.graph.node.append(
                node("If", then_branch=branch(initializers=(outside(),)))
            ),
            "in another file",
        ),
        (lambda m: m.graph.node.append(node("Evil", "me")), "the operator 'Evil' of 'me'"),
        (
            lambda m: m.graph.node.append(node("If", else_branch=branch(node("Evil", "me")))),
            "the operator 'Evil' of 'me'",
        ),
        (
            lambda m: m.functions.append(
                helper.make_function("own", "F", ["x"], ["z"], [node("Evil", "me")], [])
            ),
            "the operator 'Evil' of 'me'",
        ),
        (
            lambda m: m.training_info.add().algorithm.initializer.append(outside()),
            "in another file",
        ),
        (
            lambda m: m.functions.append(
                helper.make_function("com.microsoft", "Gelu", ["x"], ["z"], [node("Neg", "")], [])
            ),
            "the operator 'Gelu' of 'com.microsoft'",
        ),
        (
            lambda m: m.functions.append(
                helper.make_function("ai.onnx", "Mul", ["x"], ["z"], [node("Neg", "")], [])
            ),
            "the operator 'Mul' of 'ai.onnx'",
        ),
        (lambda m: m.ClearField("graph"), "is not an ONNX model"),
    ],
)
def test_what_is_rejected(change: Callable[[ModelProto], object], why: str) -> None:
    made = model(helper.make_node("Mul", ["x", "w"], ["y"]))
    check_onnx(made.SerializeToString())
    change(made)
    with pytest.raises(ArchiveError, match=why):
        load_onnx(VariantFile.of(made.SerializeToString()))


def test_no_part_of_a_file_is_a_model() -> None:
    """Each is rejected by the check, or by ONNX Runtime, and none ends the process."""
    data = small_variant("onnx").data
    for end in range(0, len(data), 31):
        with pytest.raises((ArchiveError, RuntimeError)):
            load_onnx(VariantFile.of(data[:end]))


@pytest.mark.parametrize(
    "data", [b"\x80", b"\x0a\xff", b"\x3b", b"\xff" * 11, b"\x39\x00", b"<html>", b"PK\x03\x04"]
)
def test_bytes_that_are_not_a_model(data: bytes) -> None:
    with pytest.raises(ArchiveError, match="is not an ONNX model, or is damaged"):
        check_onnx(data)


def test_a_field_whose_number_others_read_differently_is_refused() -> None:
    """They keep 32 bits of it, and so see the number of a guarded field."""
    data = model(helper.make_node("Mul", ["x", "w"], ["y"])).SerializeToString()
    field = bytes([14 << 3 | 0x80, 0x80, 0x80, 0x80, 0x10, 1])  # 14 and bit 32
    with pytest.raises(ArchiveError, match="is damaged"):
        check_onnx(data + field)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ((X, X), "2 inputs"),
        ((X.double(),), r"^Unexpected input data type. Actual: \(tensor\(double\)\)"),
        ((X.T,), "^Got invalid dimensions for input: x .* Got: 3 Expected: 2"),
    ],
)
def test_wrong_inputs(inputs: tuple[torch.Tensor, ...], why: str) -> None:
    form = load_onnx(
        VariantFile.of(model(helper.make_node("Mul", ["x", "w"], ["y"])).SerializeToString())
    )
    with pytest.raises((RuntimeError, ValueError), match=why):
        form(*inputs)


def test_short_memory_is_told_apart() -> None:
    shape = helper.make_tensor_value_info("x", INT64, [1])
    made = model(helper.make_node("ConstantOfShape", ["x"], ["y"]), inputs=[shape], rank=1)
    form = load_onnx(VariantFile.of(made.SerializeToString()))
    with pytest.raises(MemoryError):
        form(torch.tensor([1 << 46]))
