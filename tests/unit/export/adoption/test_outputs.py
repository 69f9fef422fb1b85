"""A model's outputs are unpacked, named, selected and ordered, or rejected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.adoption.adopt import Adoption
from export.errors import ExportError, UsageError
from tests.signatures import Detector, Found, Mapped, Named, Says, Several
from tests.unit.export.torchscripts import inline, run, saved, scripted, traced, written

ROW = [[1.0, 2.0, 3.0]]
OUT, AUX = [[3.0, 6.0]], [6.0]
SCORE, BOX = [6.0], [[1.0, 2.0, 3.0, 1.0]]
LOGITS, FEATURES = [[6.0, -6.0]], [[2.0, 4.0, 6.0]]


# Its loss could not be served.
DOTTED = inline("return {'x.y': x, 'loss': x.sum(), 'z': x * 2}", "Dict[str, Tensor]")


class Unscripted(nn.Module):
    """Returns a dict, and a tuple when traced."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> object:
        return Found(x, x * 2) if self.kind is tuple else {"score": x, "box": x * 2}


def adopted(folder: Path, model: nn.Module | bytes, *options: object) -> Adoption:
    file = written(folder, model if isinstance(model, bytes) else scripted(model))
    return run(file, "--name", "m", "--input", "float32[-1,3]", *options)


def answers(adoption: Adoption) -> dict[str, object]:
    """Name -> what is served under it."""
    inputs = adoption.definition.build()(torch.tensor(ROW))
    several: Sequence[Tensor] = (inputs,) if isinstance(inputs, Tensor) else inputs
    names = [spec.name for spec in adoption.definition.outputs]
    return dict(zip(names, [each.tolist() for each in several], strict=True))


@pytest.mark.parametrize(
    ("model", "options", "served"),
    [
        (Mapped(), (), {"aux": AUX, "out": OUT}),
        (Mapped(), ("out", "aux"), {"out": OUT, "aux": AUX}),
        (Named(), (), {"score": SCORE, "box": BOX}),
        (Named(), ("box", "score"), {"box": BOX, "score": SCORE}),
        (Several(), (), {"output_0": LOGITS, "output_1": FEATURES}),
        (Several(), ("logits", "features"), {"logits": LOGITS, "features": FEATURES}),
        (DOTTED, ("z",), {"z": FEATURES}),
        (nn.ReLU(), ("kept",), {"kept": ROW}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_outputs_by_name(
    tmp_path: Path, model: nn.Module, options: Sequence[str], served: dict[str, object]
) -> None:
    flags = [flag for name in options for flag in ("--output", name)]
    outputs = answers(adopted(tmp_path, model, *flags))
    assert outputs == served
    assert list(outputs) == list(served)


@pytest.mark.parametrize("kind", [dict, tuple])
def test_trace_keeps_the_keys_of_a_dict(tmp_path: Path, kind: type) -> None:
    model = torch.jit.trace(Unscripted(kind).eval(), torch.ones(1, 3), strict=False)  # type: ignore[no-untyped-call]
    names = ["score", "box"] if kind is dict else ["output_0", "output_1"]
    assert list(answers(adopted(tmp_path, saved(model)))) == names


def test_frozen_dict_is_split_into_outputs(tmp_path: Path) -> None:
    frozen = saved(torch.jit.freeze(torch.jit.script(Mapped().eval())))
    assert answers(adopted(tmp_path, frozen)) == {"aux": AUX, "out": OUT}


@pytest.mark.parametrize("model", [Several(), traced(Several(), torch.ones(1, 3))])
def test_the_output_with_labels_comes_first(tmp_path: Path, model: nn.Module | bytes) -> None:
    labels = written(tmp_path, b"a\nb\nc\n", "labels.txt")
    adoption = adopted(tmp_path, model, "--output", "logits", "--output", f"features={labels}")
    assert answers(adoption) == {"features": FEATURES, "logits": LOGITS}
    assert adoption.definition.outputs[0].name == "features"
    assert adoption.definition.codec.labels == ("a", "b", "c")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Detector(), "the model returns a list of dicts, but an answer needs tensors with one row"),
        (Says(), "returns str for 'output', but an answer consists of tensors: return the index"),
        (inline("return x, [x]", "Tuple[Tensor, List[Tensor]]"), "the model returns list for"),
        (inline("return {'x': [x]}", "Dict[str, List[Tensor]]"), "the model returns list for 'x',"),
        (inline("return x, None", "Tuple[Tensor, Optional[Tensor]]"), "the model returns NoneType"),
        (inline("return float(x.sum())", "float"), "the model returns float for 'output', but an"),
        (inline("return {1: x}", "Dict[int, Tensor]"), "the model calls an output 1, but a name"),
        (DOTTED, "the model calls an output 'x.y', but a name has 1 to 64 letters, digits"),
        (
            inline(
                "return {'alone': x} if x.shape[0] == 1 else {'together': x}", "Dict[str, Tensor]"
            ),
            "the names of the outputs change: ['alone'], then ['together']",
        ),
        (
            inline("return {'x': x, 'y': x}", "Optional[Dict[str, Tensor]]"),
            "the model returns Optional[Dict[str, Tensor]]: it must always return a tensor",
        ),
        (
            inline("output: Dict[str, Tensor] = {}\n    return output", "Dict[str, Tensor]"),
            "the model returns nothing; it must return a tensor, or several",
        ),
        (inline("return x.to_sparse()"), "'output' is sparse: call to_dense() on it in the model"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_unsupported_outputs_are_refused(tmp_path: Path, model: nn.Module, message: str) -> None:
    with pytest.raises(ExportError) as excinfo:
        adopted(tmp_path, model)
    assert message in str(excinfo.value)
    assert "\n" not in str(excinfo.value)


@pytest.mark.parametrize("model", [Mapped(), Named()])
def test_unknown_output_name_is_refused(tmp_path: Path, model: nn.Module) -> None:
    with pytest.raises(UsageError, match="--output logits: the model returns "):
        adopted(tmp_path, model, "--output", "logits")
