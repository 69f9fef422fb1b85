"""Manifests in memory, for tests that need no file."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import numpy as np

from models.manifest import (
    CodecSpec,
    Difference,
    FileDigest,
    GoldenExample,
    Manifest,
    Parity,
    TensorCodecSpec,
    Variant,
)
from models.tensors import Arrays, Dtype, EncodedArray, TensorSpec, Tolerance

EXACT = Tolerance(absolute=0, relative=0)


def spec(name: str = "x", dtype: Dtype = "float32", shape: Sequence[int] = (-1, 1)) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=tuple(shape))


def example(inputs: Arrays, outputs: Arrays) -> GoldenExample:
    return GoldenExample(
        inputs={name: EncodedArray.of(array) for name, array in inputs.items()},
        outputs={name: EncodedArray.of(array) for name, array in outputs.items()},
    )


def make_manifest(
    inputs: Sequence[TensorSpec] | None = None,
    outputs: Sequence[TensorSpec] | None = None,
    codec: CodecSpec | None = None,
    golden: Sequence[GoldenExample] = (),
) -> Manifest:
    """By default x [n, 1] -> value [n, 1], with one golden example of zeros."""
    inputs, outputs = tuple(inputs or [spec()]), tuple(outputs or [spec("value")])
    zeros = example(_zeros(inputs), _zeros(outputs))
    return Manifest(
        model="tiny",
        version=3,
        description="A model of a test.",
        inputs=inputs,
        outputs=outputs,
        codec=codec or TensorCodecSpec(),
        golden=tuple(golden) or (zeros,),
        example=[0.5],
        variants={
            "script": Variant(
                file="script.pt",
                format="torchscript",
                precision="float32",
                made_by="torch.jit.script",
                torch_version="2.13.0",
                device_kinds=("cpu",),
                tolerance=Tolerance(absolute=1e-5, relative=1e-4),
                parity=Parity(
                    outputs={"value": Difference(max_absolute=1e-7, max_relative=1e-6)},
                    batch_sizes=(1, 2),
                    batch_invariance=0,
                ),
                accuracy=0.75,
            )
        },
        files={"script.pt": FileDigest(sha256="ab" * 32, bytes=12)},
        accuracy=0.75,
        created_at=dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC),
        git_commit="0" * 40,
    )


def _zeros(specs: Sequence[TensorSpec]) -> Arrays:
    return {
        each.name: np.zeros([max(size, 1) for size in each.item_shape], each.dtype)
        for each in specs
    }
