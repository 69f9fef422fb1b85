"""Manifests with timed variants, for reports."""

from __future__ import annotations

from collections.abc import Sequence

from models.choices import Precision
from models.manifest import (
    Difference,
    FileDigest,
    Manifest,
    NativeCode,
    OmittedVariant,
    Parity,
    Variant,
)
from models.plan import DevicePlan, Form, FormTimes, Plan, Step
from models.processor import Processor
from models.tensors import Tolerance
from tests.unit.models.manifests import make_manifest

SIZES = (1, 2, 4)
SCRIPT, OPTIMIZED = Form(variant="script"), Form(variant="script", optimized=True)
COMPILED, INT8 = Form(variant="compiled"), Form(variant="int8")
FLOAT32, LOSSY = Tolerance(absolute=1e-5, relative=1e-4), Tolerance(absolute=0.05, relative=0)


def per_item(
    form: Form, us_per_item: Sequence[float], precision: Precision = "float32", spread: float = 0.01
) -> FormTimes:
    """Times at batch 1, 2, 4; the quartiles lie `spread` (a share) around the median."""
    medians = [us * size for us, size in zip(us_per_item, SIZES, strict=False)]
    return FormTimes(
        form=form,
        precision=precision,
        batch_sizes=SIZES[: len(medians)],
        median_us=tuple(medians),
        low_us=tuple(median * (1 - spread) for median in medians),
        high_us=tuple(median * (1 + spread) for median in medians),
    )


def device_plan(
    times: Sequence[FormTimes], *float32: Step, int8: Sequence[Step] = ()
) -> DevicePlan:
    """A plan of float32, and of int8 where it has steps."""
    steps: dict[Precision, tuple[Step, ...]] = {"float32": float32, "int8": tuple(int8)}
    return DevicePlan(
        processor=Processor(kind="cpu", name="A processor", threads=2),
        torch_version="2.13.0",
        times=tuple(times),
        steps={precision: each for precision, each in steps.items() if each},
    )


MIXED = device_plan(
    [
        per_item(SCRIPT, (80, 75, 70)),
        per_item(OPTIMIZED, (200, 100, 30)),
        per_item(COMPILED, (40, 50, 60)),
        per_item(INT8, (90, 60, 31), "int8"),
    ],
    Step(up_to=2, form=COMPILED),
    Step(up_to=4, form=OPTIMIZED),
    int8=[Step(up_to=4, form=INT8)],
)
# The first form wins everywhere.
ONE_WINS = device_plan(
    [per_item(SCRIPT, (40, 30, 20)), per_item(OPTIMIZED, (60, 36, 22))],
    Step(up_to=4, form=SCRIPT),
)


def on_cpu(plan: Plan | None) -> DevicePlan:
    """The plan of the CPU, which must be there."""
    assert plan is not None
    device = plan.on("cpu")
    assert device is not None
    return device


def measured_manifest(
    *devices: DevicePlan, description: str = "A model of a test.", reason: str = "no such device"
) -> Manifest:
    """Four forms of three variants, one left out; MIXED unless told otherwise."""
    return make_manifest().model_copy(
        update={
            "description": description,
            "variants": {
                "script": _variant("script.pt", FLOAT32, 1e-7, accuracy=0.98, optimized=2e-7),
                "int8": _variant("int8.pt", LOSSY, 0.03, "int8", accuracy=0.9775),
                "compiled": _variant("compiled.pt2", FLOAT32, 3e-7, accuracy=0.981).model_copy(
                    update={
                        "format": "aotinductor",
                        "native": NativeCode(architecture="x86_64", requires=("avx2", "fma")),
                    }
                ),
            },
            "left_out": (OmittedVariant(variant="fp16", reason=reason),),
            "plan": Plan(precision="float32", devices=devices or (MIXED,)),
            "files": {
                "script.pt": FileDigest(sha256="ab" * 32, bytes=100_000),
                "int8.pt": FileDigest(sha256="ab" * 32, bytes=31_000),
                "compiled.pt2": FileDigest(sha256="ab" * 32, bytes=1_500_000),
                "profile-script.txt": FileDigest(sha256="ab" * 32, bytes=777),
            },
            "accuracy": 0.981,
        }
    )


def _variant(
    file: str,
    tolerance: Tolerance,
    error: float,
    precision: Precision = "float32",
    accuracy: float | None = None,
    optimized: float | None = None,
) -> Variant:
    return Variant(
        file=file,
        format="torchscript",
        precision=precision,
        made_by=f"made as {precision}",
        torch_version="2.13.0",
        device_kinds=("cpu",),
        tolerance=tolerance,
        parity=_parity(error),
        optimized=None if optimized is None else _parity(optimized),
        accuracy=accuracy,
    )


def _parity(error: float) -> Parity:
    return Parity(
        outputs={"value": Difference(max_absolute=error, max_relative=10 * error)},
        batch_sizes=(1, 2, 3, 8),
        batch_invariance=error / 2,
        padded_to=(2, 4, 40),
    )
