"""The model `Small` of tests/artifacts.py with all its variants, and how to ask for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from app.backends.devices import cpu_threads
from app.types import Array, Arrays, Device
from models.choices import Precision
from models.manifest import NativeCode
from models.plan import Plan, Step
from models.processor import Processor, this_cpu
from tests.artifacts import Made, small_variant
from tests.integration.harness import Api, settled
from tests.unit.models.manifests import form, make_plan, steps

CPU = Device("cpu")
HERE = this_cpu(cpu_threads((CPU,)))
PRECISIONS: tuple[Precision, ...] = ("float32", "bf16", "int8")
STEPS: dict[Precision, tuple[Step, ...]] = {
    "float32": steps((32, form("script")), (64, form("script", True))),
    "bf16": steps((4, form("bf16", True)), (64, form("bf16"))),
    "int8": steps((64, form("int8"))),
}
VARIANTS = ("script", "bf16", "int8")


def plan(
    *precisions: Precision, processor: Processor = HERE, default: Precision = "float32"
) -> Plan:
    """Steps of these precisions, as if they had been measured on this processor."""
    by_precision = {precision: STEPS[precision] for precision in precisions}
    return make_plan(by_precision, processor, precision=default, torch_version=torch.__version__)


def item(batch: Arrays, row: int) -> dict[str, Any]:
    """One row as a client sends it."""
    return {name: array[row].tolist() for name, array in batch.items()}


async def answers(api: Api, batch: Arrays) -> Array:
    """Of all rows in one request."""
    inputs = [item(batch, row) for row in range(len(batch["shift"]))]
    answer = await api.client.post("/batch-predict", json={"inputs": inputs})
    assert answer.status_code == 200, answer.text
    return np.array([each["outputs"]["y"] for each in answer.json()["predictions"]])


async def info(api: Api) -> dict[str, Any]:
    """The answer of /models."""
    found: dict[str, Any] = (await api.client.get("/models/small?full=true")).json()
    return found


async def reason(api: Api) -> str:
    """Why it is live and not ready."""
    await settled(api)
    assert (await api.client.get("/health/live")).status_code == 200
    answer = await api.client.get("/health/ready")
    assert answer.status_code == 503
    (found,) = answer.json()["reasons"]
    return str(found)


def foreign() -> Made:
    """A package compiled for another machine, which nobody opens."""
    made = small_variant("script").entry
    native = NativeCode(architecture="riscv64", requires=("v",))
    changes = {"file": "compiled.pt2", "format": "aotinductor", "device_kinds": ("cpu",)}
    changed = made.model_copy(update={**changes, "native": native, "optimized": None})
    return Made(changed, b"machine code")
