"""Tiny artifacts made by hand: for tests that need a model to do something particular."""

from __future__ import annotations

import copy
import datetime as dt
import functools
import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from export.artifact import digest_of
from export.variants.base import TOLERANCES, NotApplicable, Subject
from export.variants.registry import MAKERS
from models.codec_specs import CodecSpec, TensorCodecSpec
from models.definitions.definition import Definition
from models.manifest import (
    DIGEST_FILE,
    MANIFEST_FILE,
    SCHEMA_VERSION,
    Difference,
    GoldenExample,
    Manifest,
    Parity,
    Variant,
)
from models.plan import Plan
from models.tensors import Arrays, Dimension, EncodedArray, TensorSpec, Tolerance


class Double(nn.Module):
    """x [n, 2] -> 2 x; a value above 100 fails the batch, one below -100 gives NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        if bool((x > 100).any()):
            raise ValueError("too large: /a/secret/path")
        return torch.where(x < -100, torch.full_like(x, float("nan")), x * 2)


class Small(nn.Module):
    """picture [n, 1, 4, 4], shift [n, any] -> y [n, 3]; every variant can be made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.linear = nn.Linear(8, 3)

    def forward(self, picture: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """See the class."""
        scores: torch.Tensor = self.linear(torch.relu(self.conv(picture)).flatten(1))
        return scores + shift.sum(dim=1, keepdim=True)


X = TensorSpec(name="x", dtype="float32", shape=(-1, 2))
Y = TensorSpec(name="y", dtype="float32", shape=(-1, 2))
PICTURE = TensorSpec(name="picture", dtype="float32", shape=(-1, 1, 4, 4))
SHIFT = TensorSpec(name="shift", dtype="float32", shape=(-1, -1), dimensions=(Dimension(most=8),))
SCORES = TensorSpec(name="y", dtype="float32", shape=(-1, 3))


EXACT = Parity(
    outputs={"y": Difference(max_absolute=0, max_relative=0)}, batch_sizes=(1,), batch_invariance=0
)


@dataclass(frozen=True, slots=True)
class Made:
    """A variant as the manifest has it, and its file."""

    entry: Variant
    data: bytes


def scripted(module: nn.Module, name: str = "script", *, optimized: bool = False) -> Made:
    """A float32 variant NAME.pt for any device; `optimized`: it may be optimized at load."""
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.freeze(torch.jit.script(module.eval())), buffer)
    entry = Variant(
        file=f"{name}.pt",
        format="torchscript",
        precision="float32",
        made_by="torch.jit.script",
        torch_version=torch.__version__,
        device_kinds=("cpu", "cuda"),
        tolerance=Tolerance(absolute=1e-5, relative=1e-4),
        parity=EXACT,
        optimized=EXACT if optimized else None,
    )
    return Made(entry, buffer.getvalue())


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
    variants: Mapping[str, Made] | None = None,
    plan: Plan | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Script a module and write root/name/version.

    `expected` overrides what the module answers to the golden inputs; `variants` are written
    instead of the scripted module; `files` are those that the codec needs.
    """
    folder = root / name / str(version)
    folder.mkdir(parents=True)
    module = (module or Double()).eval()
    variants = variants or {"script": scripted(module)}
    for made in variants.values():
        (folder / made.entry.file).write_bytes(made.data)
    for file, data in (files or {}).items():
        (folder / file).write_bytes(data)
    items = golden or [{"x": np.array([1.0, 2.0], np.float32)}]
    answers = expected or [_answer(module, item, inputs, outputs) for item in items]
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
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
        variants={each: made.entry for each, made in variants.items()},
        plan=plan,
        files={
            file: digest_of(folder / file)
            for file in [*(files or {}), *(each.entry.file for each in variants.values())]
        },
        created_at=dt.datetime.now(dt.UTC),
    )
    write_manifest(folder, manifest)
    return folder


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest, and the digest that fits it."""
    replace_manifest(folder, manifest.model_dump_json())


def replace_manifest(folder: Path, text: str) -> None:
    """Write any text where the manifest stands, and the digest that fits it."""
    (folder / MANIFEST_FILE).write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / DIGEST_FILE).write_text(f"{digest}  {MANIFEST_FILE}\n")


def change_manifest(folder: Path, change: Callable[[Any], object]) -> None:
    """Change the manifest as JSON, whatever comes of it, and give it the right digest."""
    content = json.loads((folder / MANIFEST_FILE).read_text())
    change(content)
    replace_manifest(folder, json.dumps(content))


def small_batch(size: int, seed: int = 0) -> Arrays:
    """Different items for `Small`, with the batch axis; a smaller batch begins a larger one."""
    rng = np.random.default_rng(seed)
    rows = rng.random((size, 19), dtype=np.float32)
    return {"picture": rows[:, :16].reshape(size, 1, 4, 4), "shift": rows[:, 16:].copy()}


@functools.cache
def small_variant(name: str) -> Made:
    """A variant of `Small` as export makes it, once for all tests; a compiled one takes seconds.

    Skips the test where this machine lacks what it needs.
    """
    maker = MAKERS[name]
    with tempfile.TemporaryDirectory() as folder:
        try:
            draft = maker.make(_small(), Path(folder))
        except NotApplicable as error:
            if "there is none" not in str(error) and "it needs" not in str(error):
                raise
            pytest.skip(f"{name}: {error}")
        data = (Path(folder) / draft.file).read_bytes()
    entry = Variant(
        file=draft.file,
        format=draft.format,
        precision=maker.precision,
        made_by=draft.made_by,
        torch_version=torch.__version__,
        device_kinds=draft.device_kinds,
        tolerance=TOLERANCES[maker.precision],
        parity=EXACT,
        optimized=EXACT if draft.format == "torchscript" else None,
        native=draft.native,
    )
    return Made(entry, data)


def write_small(
    root: Path,
    variants: Sequence[str],
    *,
    version: int = 1,
    plan: Plan | None = None,
    changed: Mapping[str, Made] | None = None,
    free: bool = False,
) -> Path:
    """Write root/small/VERSION with these variants of `Small`; those in `changed` as given.

    Its second input has a free dimension; the manifest fixes it at 3, unless it shall be free.
    """
    subject = _small()
    shift = SHIFT if free else SHIFT.model_copy(update={"shape": (-1, 3), "dimensions": ()})
    return write_artifact(
        root,
        "small",
        version,
        subject.eager,
        inputs=(PICTURE, shift),
        outputs=subject.definition.outputs,
        golden=subject.definition.golden_inputs(),
        variants={name: small_variant(name) for name in variants} | dict(changed or {}),
        plan=plan,
    )


def small_module() -> nn.Module:
    """A `Small` of its own, with the weights of all the others."""
    return copy.deepcopy(_small().eager)


def small_subject() -> Subject:
    """What `small_variant` is made of, with a module of its own."""
    return Subject("small", _small().definition, small_module())


def small_answer(batch: Arrays) -> Arrays:
    """What `Small` answers in eager float32."""
    with torch.inference_mode():
        made = _small().eager(*(torch.from_numpy(batch[spec.name]) for spec in (PICTURE, SHIFT)))
    return {"y": made.numpy()}


@functools.cache
def _small() -> Subject:
    torch.manual_seed(5)
    rows = small_batch(3, seed=1)
    definition = Definition(
        description="a test's model",
        inputs=(PICTURE, SHIFT),
        outputs=(SCORES,),
        codec=TensorCodecSpec(),
        build=Small,
        train=None,
        random_inputs=lambda rng, size: small_batch(size, int(rng.integers(1000))),
        golden_inputs=lambda: [{n: a[row] for n, a in rows.items()} for row in range(3)],
        example=lambda: None,
        calibration=lambda: [small_batch(64, seed=2)],
    )
    return Subject("small", definition, Small().eval())


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
