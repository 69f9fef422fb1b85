"""Several variants and a plan, served: what is chosen, and what /models tells of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from app.backends.base import Backend
from app.backends.devices import cpu_threads
from app.backends.factory import TorchBackends
from app.backends.selection import Selection
from app.errors import ReplicaError
from app.registry.repository import Artifact
from app.types import Arrays, Device, Serving
from models.choices import Precision
from models.processor import Processor, this_cpu
from tests.artifacts import small_answer, small_batch, small_variant, write_small
from tests.integration.harness import serving
from tests.integration.small import (
    CPU,
    HERE,
    PRECISIONS,
    STEPS,
    VARIANTS,
    answers,
    foreign,
    info,
    item,
    plan,
)


async def test_the_stored_plan_is_followed_and_shown(tmp_path: Path) -> None:
    write_small(tmp_path, VARIANTS, plan=plan(*PRECISIONS))
    async with serving(tmp_path, devices="cpu") as api:
        found = await info(api)
        assert (found["variant"], found["precision"]) == (None, "float32")
        assert found["replicas"][0]["plan"] == {
            "steps": [
                {"up_to": 4, "form": "compiled"},
                {"up_to": 32, "form": "script"},
                {"up_to": 64, "form": "script, optimized at load"},
            ],
            "measured_on": str(HERE),
            "measured_by": "export",
            "median_us": {},
        }
        listed = (await api.client.get("/models?full=true")).json()["models"][0]
        assert listed["replicas"] == found["replicas"]
        for size in (1, 5, 64):
            batch = small_batch(size, seed=size)
            wanted = small_answer(batch)["y"]
            np.testing.assert_allclose(await answers(api, batch), wanted, rtol=1e-4, atol=1e-5)


async def test_the_server_measures_on_another_processor(
    tmp_path: Path,
) -> None:
    elsewhere = Processor(kind="cpu", name="A CPU of somebody else", threads=64)
    write_small(tmp_path, VARIANTS, plan=plan(*PRECISIONS, processor=elsewhere))
    with capture_logs() as logs:
        async with serving(tmp_path, devices="cpu*2", max_batch_size=8) as api:
            one, other = [each["plan"] for each in (await info(api))["replicas"]]
            wanted = small_answer(small_batch(8))["y"]
            np.testing.assert_allclose(
                await answers(api, small_batch(8)), wanted, rtol=1e-4, atol=1e-5
            )
    assert one["measured_by"] == "server"
    assert one["measured_on"] == str(this_cpu(cpu_threads((CPU, CPU))))
    assert one["steps"][-1]["up_to"] == 8
    forms = {"compiled", "script", "script, optimized at load"}
    assert set(one["median_us"]) == forms >= {step["form"] for step in one["steps"]}
    assert all(list(times) == ["1", "2", "4", "8"] for times in one["median_us"].values())
    assert other == one  # measured once for both
    told = [log for log in logs if log["event"] == "plan_not_used"]
    assert len(told) == 2
    assert told[0]["reason"] == f"it was measured on {elsewhere}; here is {one['measured_on']}"


@pytest.mark.parametrize(
    ("variant", "forms"),
    [
        ("script", {"script", "script, optimized at load"}),
        ("compiled", {"compiled"}),
        ("int8", {"int8"}),
    ],
)
async def test_a_pinned_variant_is_the_only_one(
    tmp_path: Path, variant: str, forms: set[str]
) -> None:
    write_small(tmp_path, VARIANTS, plan=plan(*PRECISIONS))
    async with serving(tmp_path, devices="cpu", variant=variant, max_batch_size=4) as api:
        found = await info(api)
        assert found["variant"] == variant
        assert found["precision"] == ("int8" if variant == "int8" else "float32")
        shown = found["replicas"][0]["plan"]
        assert {step["form"] for step in shown["steps"]} <= forms
        if len(forms) == 1:
            assert shown["steps"] == [{"up_to": None, "form": variant}]
            assert shown["measured_by"] is None
        else:
            assert set(shown["median_us"]) == forms
        assert (await answers(api, small_batch(6))).shape == (6, 3)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("by", ["setting", "artifact"])
async def test_answers_do_not_depend_on_the_batch(
    tmp_path: Path, precision: Precision, by: str
) -> None:
    default: Precision = precision if by == "artifact" else "bf16"
    write_small(tmp_path, VARIANTS, plan=plan(*PRECISIONS, default=default))
    chosen: dict[str, Any] = {"plan_precision": precision} if by == "setting" else {}
    batch = small_batch(64, seed=9)
    async with serving(tmp_path, devices="cpu", cache_bytes=0, **chosen) as api:
        found = await info(api)
        assert found["precision"] == precision
        shown = found["replicas"][0]["plan"]
        assert shown["measured_by"] == "export"
        assert [step["up_to"] for step in shown["steps"]] == [s.up_to for s in STEPS[precision]]
        together = await answers(api, batch)
        alone = [
            (await api.client.post("/predict", json={"input": item(batch, row)})).json()
            for row in range(0, 64, 7)
        ]
        few = await answers(api, {name: array[:7] for name, array in batch.items()})
    got = np.array([each["prediction"]["outputs"]["y"] for each in alone])
    # Other kernels round otherwise; bf16 keeps 8 bits of the sums.
    spread = {"float32": 1e-5, "bf16": 0.02, "int8": 1e-5}[precision]
    np.testing.assert_allclose(together[::7], got, rtol=0, atol=spread)
    np.testing.assert_allclose(together[:7], few, rtol=0, atol=spread)
    tolerance = small_variant({"float32": "script"}.get(precision, precision)).entry.tolerance
    for row, wanted in enumerate(small_answer(batch)["y"]):
        assert tolerance.excess(wanted, together[row].astype(np.float32)) is None


async def test_a_package_for_another_machine_is_skipped(
    tmp_path: Path,
) -> None:
    write_small(tmp_path, ["script"], plan=plan("float32"), changed={"compiled": foreign()})
    with capture_logs() as logs:
        async with serving(tmp_path, devices="cpu", max_batch_size=4) as api:
            shown = (await info(api))["replicas"][0]["plan"]
            wanted = small_answer(small_batch(3))["y"]
            np.testing.assert_allclose(
                await answers(api, small_batch(3)), wanted, rtol=1e-4, atol=1e-5
            )
    assert shown["measured_by"] == "server"
    assert set(shown["median_us"]) == {"script", "script, optimized at load"}
    (told,) = [log for log in logs if log["event"] == "variant_unusable"]
    assert told["form"] == "compiled"
    assert told["reason"].startswith("compiled.pt2 is compiled for riscv64 with v; cpu here is")


async def test_a_rebuilt_replica_reuses_the_measured_plan(
    tmp_path: Path,
) -> None:
    write_small(tmp_path, ["script", "compiled"])
    backends = TorchBackends((CPU,), 4, cpu_threads((CPU,)))
    made: list[Breakable] = []

    def make(artifact: Artifact, selection: Selection, device: Device) -> Backend:
        inner = backends.make(
            artifact.folder, artifact.manifest, artifact.digest, selection, device
        )
        made.append(Breakable(inner))
        return made[-1]

    batch = small_batch(3)
    async with serving(
        tmp_path, make_backend=make, devices="cpu", cache_bytes=0, max_batch_size=4
    ) as api:
        before = (await info(api))["replicas"][0]["plan"]
        assert before["measured_by"] == "server"
        kept = await answers(api, batch)
        made[0].broken = True
        answer = await api.client.post("/predict", json={"input": item(batch, 0)})
        assert answer.json()["code"] == "backend_failed"
        async with asyncio.timeout(10):
            while (await api.client.get("/health/ready")).status_code != 200:
                await asyncio.sleep(0.05)
        assert len(made) == 2
        assert (await info(api))["replicas"][0]["plan"] == before
        np.testing.assert_array_equal(await answers(api, batch), kept)


class Breakable:
    """A backend that stops working on command."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.broken = False
        self.load, self.warm_up, self.close = inner.load, inner.warm_up, inner.close
        self.shares = inner.shares

    def run(self, inputs: Arrays) -> Arrays:
        if self.broken:
            raise ReplicaError("the replica broke")
        return self.inner.run(inputs)

    def serving(self) -> Serving:
        return self.inner.serving()
