"""Manifests in memory, for tests that need no file."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import numpy as np

from models.choices import Precision
from models.codec_specs import CodecSpec, TensorCodecSpec
from models.manifest import (
    SCHEMA_VERSION,
    Difference,
    FileDigest,
    GoldenExample,
    Manifest,
    NativeCode,
    Parity,
    Variant,
)
from models.plan import DevicePlan, Form, Plan, Step
from models.processor import DeviceKind, Processor
from models.tensors import Arrays, Dtype, EncodedArray, TensorSpec, Tolerance

EXACT = Tolerance(absolute=0, relative=0)
CLOSE = Tolerance(absolute=1e-5, relative=1e-4)
XEON = Processor(kind="cpu", name="A Xeon (x86_64)", threads=3)
SMALL_DIFFERENCE = Parity(
    outputs={"value": Difference(max_absolute=1e-7, max_relative=1e-6)},
    batch_sizes=(1, 2),
    batch_invariance=0,
)


def spec(name: str = "x", dtype: Dtype = "float32", shape: Sequence[int] = (-1, 1)) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=tuple(shape))


def example(inputs: Arrays, outputs: Arrays) -> GoldenExample:
    return GoldenExample(
        inputs={name: EncodedArray.of(array) for name, array in inputs.items()},
        outputs={name: EncodedArray.of(array) for name, array in outputs.items()},
    )


def form(variant: str = "script", optimized: bool = False) -> Form:
    return Form(variant=variant, optimized=optimized)


def steps(*pairs: tuple[int, Form]) -> tuple[Step, ...]:
    """Of (up to which batch size, which form)."""
    return tuple(Step(up_to=up_to, form=each) for up_to, each in pairs)


def make_variant(
    file: str = "script.pt",
    precision: Precision = "float32",
    *,
    optimized: bool = False,
    native: NativeCode | None = None,
    device_kinds: tuple[DeviceKind, ...] = ("cpu",),
    torch_version: str = "2.13.0",
    tolerance: Tolerance = CLOSE,
) -> Variant:
    """Compiled where it has native code, else TorchScript; not proved."""
    return Variant(
        file=file,
        format="torchscript" if native is None else "aotinductor",
        precision=precision,
        made_by="a test",
        torch_version=torch_version,
        device_kinds=device_kinds,
        tolerance=tolerance,
        parity=SMALL_DIFFERENCE,
        optimized=SMALL_DIFFERENCE if optimized else None,
        native=native,
    )


def make_plan(
    by_precision: Mapping[Precision, tuple[Step, ...]],
    processor: Processor = XEON,
    *,
    precision: Precision = "float32",
    torch_version: str = "2.13.0",
) -> Plan:
    """Of one processor, without times."""
    device = DevicePlan(
        processor=processor, torch_version=torch_version, times=(), steps=dict(by_precision)
    )
    return Plan(precision=precision, devices=(device,))


def make_manifest(
    inputs: Sequence[TensorSpec] | None = None,
    outputs: Sequence[TensorSpec] | None = None,
    codec: CodecSpec | None = None,
    golden: Sequence[GoldenExample] = (),
    *,
    variants: Mapping[str, Variant] | None = None,
    plan: Plan | None = None,
    files: Sequence[str] = (),
) -> Manifest:
    """By default x [n, 1] -> value [n, 1], one golden example of zeros, and `script` alone."""
    inputs, outputs = tuple(inputs or [spec()]), tuple(outputs or [spec("value")])
    zeros = example(_zeros(inputs), _zeros(outputs))
    alone = make_variant().model_copy(update={"made_by": "torch.jit.script", "accuracy": 0.75})
    variants = dict(variants or {"script": alone})
    return Manifest(
        schema_version=SCHEMA_VERSION,
        model="tiny",
        version=3,
        description="A model of a test.",
        inputs=inputs,
        outputs=outputs,
        codec=codec or TensorCodecSpec(),
        golden=tuple(golden) or (zeros,),
        example=[0.5],
        variants=variants,
        plan=plan,
        files={
            name: FileDigest(sha256="ab" * 32, bytes=12)
            for name in [*files, *(each.file for each in variants.values())]
        },
        accuracy=0.75,
        created_at=dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC),
        git_commit="0" * 40,
    )


def with_variants(manifest: Manifest, **variants: Variant) -> Manifest:
    """The same with other variants, whose files need not exist."""
    files = {
        name: FileDigest(sha256="ab" * 32, bytes=12)
        for each in variants.values()
        for name in each.files
    }
    return manifest.model_copy(update={"variants": variants, "files": files | manifest.files})


def _zeros(specs: Sequence[TensorSpec]) -> Arrays:
    return {
        each.name: np.zeros([max(size, 1) for size in each.item_shape], each.dtype)
        for each in specs
    }
