"""Tiny artifacts made by hand: for tests that need a model to do something particular."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from export.artifact import digest_of
from models.manifest import (
    DIGEST_FILE,
    MANIFEST_FILE,
    CodecSpec,
    Difference,
    GoldenExample,
    Manifest,
    Parity,
    TensorCodecSpec,
    Variant,
)
from models.tensors import Arrays, EncodedArray, TensorSpec, Tolerance


class Double(nn.Module):
    """x [n, 2] -> 2 x; a value above 100 fails the batch, one below -100 gives NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        if bool((x > 100).any()):
            raise ValueError("too large: /a/secret/path")
        return torch.where(x < -100, torch.full_like(x, float("nan")), x * 2)


X = TensorSpec(name="x", dtype="float32", shape=(-1, 2))
Y = TensorSpec(name="y", dtype="float32", shape=(-1, 2))


EXACT = Parity(
    outputs={"y": Difference(max_absolute=0, max_relative=0)}, batch_sizes=(1,), batch_invariance=0
)


def write_artifact(
    root: Path,
    name: str,
    version: int = 1,
    module: nn.Module | None = None,
    *,
    inputs: tuple[TensorSpec, ...] = (X,),
    outputs: tuple[TensorSpec, ...] = (Y,),
    codec: CodecSpec | None = None,
    golden: Sequence[Arrays] | None = None,
    expected: Sequence[Arrays] | None = None,
) -> Path:
    """Script a module and write root/name/version; `expected` overrides its golden answers."""
    folder = root / name / str(version)
    folder.mkdir(parents=True)
    module = (module or Double()).eval()
    torch.jit.freeze(torch.jit.script(module)).save(str(folder / "script.pt"))
    items = golden or [{"x": np.array([1.0, 2.0], np.float32)}]
    answers = expected or [_answer(module, item, inputs, outputs) for item in items]
    variant = Variant(
        file="script.pt",
        format="torchscript",
        precision="float32",
        made_by="torch.jit.script",
        torch_version=torch.__version__,
        device_kinds=("cpu", "cuda"),
        tolerance=Tolerance(absolute=1e-5, relative=1e-4),
        parity=EXACT,
    )
    manifest = Manifest(
        model=name,
        version=version,
        description="a test's model",
        inputs=inputs,
        outputs=outputs,
        codec=codec or TensorCodecSpec(),
        golden=tuple(
            GoldenExample(inputs=_encoded(item), outputs=_encoded(answer))
            for item, answer in zip(items, answers, strict=True)
        ),
        example=next(iter(items[0].values())).tolist(),
        variants={"script": variant},
        files={"script.pt": digest_of(folder / "script.pt")},
        created_at=dt.datetime.now(dt.UTC),
    )
    write_manifest(folder, manifest)
    return folder


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest, and the digest that fits it."""
    text = manifest.model_dump_json().encode()
    (folder / MANIFEST_FILE).write_bytes(text)
    (folder / DIGEST_FILE).write_text(f"{hashlib.sha256(text).hexdigest()}  {MANIFEST_FILE}\n")


def _answer(
    module: nn.Module,
    item: Arrays,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> Arrays:
    made = module(*(torch.from_numpy(item[spec.name])[None] for spec in inputs))
    tensors = made if isinstance(made, tuple) else (made,)
    return {
        spec.name: tensor[0].detach().numpy() for spec, tensor in zip(outputs, tensors, strict=True)
    }


def _encoded(arrays: Arrays) -> dict[str, EncodedArray]:
    return {name: EncodedArray.of(array) for name, array in arrays.items()}
