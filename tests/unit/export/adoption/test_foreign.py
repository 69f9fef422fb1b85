"""Files and models of every kind: accepted if they can be served, otherwise explained."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from export.adoption.foreign import infer
from export.errors import ExportError, UsageError
from export.reading.model_files import load
from models.codec_specs import TensorCodecSpec
from models.tensors import TensorSpec
from tests.unit.export.kinds import Counter, Found, Learning, Remembering
from tests.unit.export.torchscripts import SUMS, Sums, inline, pickled, saved, scripted
from tests.unit.models.manifests import spec
from tests.unit.models.system.test_archive import zipped

TENSOR = TensorCodecSpec()
X3 = (spec("x", shape=(-1, 3)),)


class Embedding(nn.Module):
    """Tokens and their mask [n, t] -> [n, t, 4]; the table has two rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.table(ids)
        return rows * mask.unsqueeze(2)


class WithoutForward(nn.Module):
    @torch.jit.export
    def other(self, x: torch.Tensor) -> torch.Tensor:
        return x


def outputs(module: nn.Module, inputs: tuple[TensorSpec, ...] = X3) -> list[tuple[object, ...]]:
    specs, _ = infer(load(scripted(module), "it.pt"), inputs, TENSOR)
    return [(each.name, each.dtype, each.shape) for each in specs]


class TestLoad:
    @pytest.mark.parametrize(
        "data",
        [SUMS, scripted(Sums()), saved(torch.jit.freeze(torch.jit.script(Sums().eval())))],
        ids=["traced", "scripted", "frozen"],
    )
    def test_torchscript_in_eval_mode(self, data: bytes) -> None:
        module = load(data, "it.pt")
        assert isinstance(module, torch.jit.ScriptModule)
        assert not module.training
        assert module(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[6, -6]]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"hello", "it.pt is not a zip archive"),
            (SUMS[:-100], "it does not end as one, and may be incomplete"),
            (pickled(Sums().state_dict()), "torch.jit.script(model.eval()).save("),
            (pickled(nn.Linear(2, 2)), "was written by torch.save, a state_dict or a pickled"),
            (pickled(Sums().state_dict(), is_zip=False), "is a pickle, as old versions of torch"),
            (b"\x1f\x8b\x08 and so on", "is a gzip file; a model archive must be a zip file"),
            (zipped("a/b.txt"), "is a zip archive but not TorchScript; save a program"),
            (zipped("../b.txt"), "'../b.txt', a path that leads out"),
            (zipped("zeros", content=bytes(40_000_000)), "would unpack to 40,000,000 bytes"),
            (zipped("a/data.pkl", "a/constants.pkl"), "torch cannot read it.pt: "),
            (scripted(WithoutForward()), "it.pt has no method forward"),
        ],
    )
    def test_other_files_are_refused(self, data: bytes, message: str) -> None:
        with pytest.raises(ExportError) as excinfo:
            load(data, "it.pt")
        assert message in str(excinfo.value)

    @pytest.mark.parametrize("is_program", [False, True])
    def test_damaged_files_are_refused(self, is_program: bool) -> None:
        """A changed weight would be proved against itself."""
        data = bytearray(SUMS)
        if is_program:
            buffer = io.BytesIO()
            torch.export.save(torch.export.export(Sums(), (torch.ones(1, 3),)), buffer)
            data = bytearray(buffer.getvalue())
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            weights = [each for each in archive.infolist() if each.file_size == 6 * 4]
        names = weights[0].header_offset + 26  # of the local header: lengths of name and extra
        data[names + 4 + sum(struct.unpack_from("<HH", data, names))] ^= 1
        with pytest.raises(ExportError, match=r"^it is damaged: Bad CRC-32 .*; copy or save it ag"):
            load(bytes(data), "it")

    def test_weights_without_memory_are_named(self) -> None:
        """Those of a subclass of Tensor, as torchao's: torch writes a checksum of nothing."""
        data = bytearray(SUMS)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            weights = next(each for each in archive.infolist() if each.file_size == 6 * 4)
        entry = data.rindex(b"PK\1\2", 0, data.rindex(weights.orig_filename.encode()))
        data[entry + 16 : entry + 20] = bytes(4)
        with pytest.raises(ExportError, match=r"that torchao quantized, adopt a frozen trace: tor"):
            load(bytes(data), "it.pt")


class TestOutputs:
    @pytest.mark.parametrize(
        ("module", "expected"),
        [
            (Sums(), [("output", "float32", (-1, 2))]),
            (
                inline(
                    "return x.sum(dim=1), x.argmax(dim=1, keepdim=True)", "Tuple[Tensor, Tensor]"
                ),
                [("output_0", "float32", (-1,)), ("output_1", "int64", (-1, 1))],
            ),
            (
                inline("return [x > 0, x.half()]", "List[Tensor]"),
                [("output_0", "bool", (-1, 3)), ("output_1", "float16", (-1, 3))],
            ),
            (
                inline("return x * scale", arguments="x: Tensor, scale: float = 2.0"),
                [("output", "float32", (-1, 3))],
            ),
            (inline("return x.relu_()"), [("output", "float32", (-1, 3))]),  # changes it only once
        ],
    )
    def test_of_fixed_shapes(self, module: nn.Module, expected: list[tuple[object, ...]]) -> None:
        assert outputs(module) == expected

    def test_of_free_dimensions(self) -> None:
        inputs = (spec("ids", "int64", (-1, -1)), spec("mask", "float32", (-1, -1)))
        assert outputs(Embedding(), inputs) == [("output", "float32", (-1, -1, 4))]


class TestRejected:
    @pytest.mark.parametrize("least", [1024, 5000])
    def test_of_sizes_that_are_too_small(self, least: int) -> None:
        """Of the largest pair of sizes, 1023 and 1024, only the second runs, or none."""
        needs = inline(f"assert x.shape[1] >= {least}\n    return x")
        inputs = (spec("x", shape=(-1, -1)),)
        with pytest.raises(ExportError, match=r"; if it needs larger sizes, give their bounds"):
            outputs(needs, inputs)
        with pytest.raises(ExportError, match=r"fails on samples of x \[1, 3\]: \S.*--examples$"):
            outputs(needs, X3)

    @pytest.mark.parametrize(
        ("module", "message"),
        [
            (inline("raise ValueError('I never do')\n    return x"), "the model fails on samples"),
            (inline("return x.sum(dim=1, keepdim=True).squeeze()"), "output loses the batch axis"),
            (inline("return x.reshape(1, -1)"), "for a batch of 2, output has shape [1, 6], but"),
            (inline("return x.sum()"), "output is one number for the whole batch, like a loss:"),
            (inline("return x @ x.T"), "output is [2, 2] for a batch of 2, and [1, 1] for one of"),
            (
                inline("return [x for _ in range(x.shape[0])]", "List[Tensor]"),
                "the number of the model's outputs changes: [1, 2, 3]",
            ),
            (inline("return torch.complex(x, x)"), "output is complex64, which answers cannot"),
            (inline("return x[:, :0]"), "output has the shapes [[0]], without the batch"),
            (Counter(), "the model has a state: a forward changes 'seen', so an answer depends on"),
            (
                Learning(),
                "the model has a state: a forward changes 'mean', so an answer depends on",
            ),
            (Remembering(), "the model has a state: a forward changes 'forwards', 'mean', so an"),
            (Found(), "If a size depends on the data, as after nonzero, return a fixed number"),
            (inline("return x + torch.rand_like(x)"), "the model gives different answers to the"),
            (
                inline("x -= 1\n    return 2 * x"),
                "the model changes its input 'x' in place, so that",
            ),
            (inline("return x.mul_(2)"), "the model changes its input 'x' in place, so that"),
            (
                inline("y = 2 * x\n    x.relu_()\n    return y + x"),  # only at the first time
                "the model changes its input 'x' in place, so that",
            ),
        ],
    )
    def test_models_that_cannot_be_served(self, module: nn.Module, message: str) -> None:
        with pytest.raises(ExportError) as excinfo:
            outputs(module)
        assert not isinstance(excinfo.value, UsageError)
        assert message in str(excinfo.value)
        assert "\n" not in str(excinfo.value)

    def test_nan_on_random_numbers(self) -> None:
        """Samples lie on both sides of zero, and the message says what can be done."""
        with pytest.raises(ExportError) as excinfo:
            outputs(inline("return x.log()"))
        for text in ("NaN or infinite", "random normal numbers", "with --examples"):
            assert text in str(excinfo.value)

    def test_missing_numbers_that_it_does_not_replace(self) -> None:
        missing = (X3[0].model_copy(update={"nan": True}),)
        assert outputs(nn.ReLU(), X3)
        with pytest.raises(ExportError, match=r"where some numbers of 'x' are missing: it must "):
            outputs(nn.ReLU(), missing)

    def test_a_sample_too_large_for_memory(self) -> None:
        with pytest.raises(UsageError, match=r"3 items has 120,000,000,000 bytes; at most 268,435"):
            outputs(nn.ReLU(), (spec("x", shape=(-1, 100_000, 100_000)),))

    def test_a_dropout_traced_in_training_mode(self) -> None:
        trace: Callable[..., Any] = torch.jit.trace  # its own check would warn
        data = saved(trace(nn.Dropout(0.5), torch.ones(1, 3), check_trace=False))
        with pytest.raises(ExportError, match=r"call model\.eval\(\) before torch\.jit\.trace"):
            infer(load(data, "it.pt"), X3, TENSOR)

    def test_free_dimensions_that_must_be_fixed(self) -> None:
        with pytest.raises(ExportError, match=r"samples of x \[1, 1023\]: "):
            outputs(Sums(), (spec("x", shape=(-1, -1)),))

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            (X3, "--input: 1 given, but the model takes 2 (ids, mask)"),
            ((*X3, *X3, *X3), "--input: 3 given, but the model takes 2 (ids, mask)"),
        ],
    )
    def test_another_number_of_inputs(self, inputs: tuple[TensorSpec, ...], message: str) -> None:
        with pytest.raises(UsageError) as excinfo:
            outputs(Embedding(), inputs)
        assert message in str(excinfo.value)
