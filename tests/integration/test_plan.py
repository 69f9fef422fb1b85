"""Several variants and a plan, served: what is chosen, and what /models tells of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from app.backends.devices import cpu_threads
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


async def test_the_server_measures_on_another_processor(tmp_path: Path) -> None:
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
    forms = {"script", "script, optimized at load"}
    assert set(one["median_us"]) == forms >= {step["form"] for step in one["steps"]}
    assert all(list(times) == ["1", "2", "4", "8"] for times in one["median_us"].values())
    assert other == one  # measured once for both
    told = [log for log in logs if log["event"] == "plan_not_used"]
    assert len(told) == 2
    assert told[0]["reason"] == f"it was measured on {elsewhere}; here is {one['measured_on']}"


async def test_a_pinned_variant_is_the_only_one(tmp_path: Path) -> None:
    write_small(tmp_path, VARIANTS, plan=plan(*PRECISIONS))
    forms = {"script", "script, optimized at load"}
    async with serving(tmp_path, variant="script", max_batch_size=4) as api:
        shown = (await info(api))["replicas"][0]["plan"]
        assert set(shown["median_us"]) == forms >= {step["form"] for step in shown["steps"]}
    async with serving(tmp_path, variant="int8", max_batch_size=4) as api:
        found = await info(api)
        assert (found["variant"], found["precision"]) == ("int8", "int8")
        shown = found["replicas"][0]["plan"]
        assert shown["steps"] == [{"up_to": None, "form": "int8"}]
        assert shown["measured_by"] is None
        assert (await answers(api, small_batch(6))).shape == (6, 3)


@pytest.mark.parametrize(
    ("precision", "by"), [("float32", "setting"), ("bf16", "artifact"), ("int8", "setting")]
)
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


async def test_a_package_for_another_machine_is_skipped(tmp_path: Path) -> None:
    write_small(tmp_path, ["script"], changed={"compiled": foreign()})
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
