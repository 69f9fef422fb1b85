"""The backend of a selection: the stored plan if it applies, else a measured one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from app.backends.base import Backend
from app.backends.devices import cpu_threads
from app.backends.factory import TorchBackends
from app.backends.forward import run_forward
from app.backends.golden import Golden
from app.backends.selection import Preference, select
from app.errors import VariantUnusable
from app.registry.repository import Artifact, Repository
from app.types import Arrays, Device, ModelId, ServedStep
from models.plan import Plan
from models.processor import Processor, this_cpu
from models.runtimes.forms import CompiledForm, Forward
from tests.artifacts import Made, small_answer, small_batch, small_variant, write_small
from tests.unit.models.manifests import form, make_plan, steps
from tests.unit.models.stopwatch import Stopwatch

CPU = Device("cpu")
HERE = this_cpu(cpu_threads((CPU,)))
STEPS = steps((2, form("script")), (8, form("script", optimized=True)))


def plan(processor: Processor = HERE, torch_version: str = torch.__version__) -> Plan:
    return make_plan({"float32": STEPS}, processor, torch_version=torch_version)


def written(root: Path, stored: Plan | None, **changed: Made) -> Artifact:
    write_small(root, ["script"], plan=stored, changed=changed)
    return Repository(root).open(ModelId("small", 1))


def made(
    artifact: Artifact,
    preference: Preference | None = None,
    *,
    backends: TorchBackends | None = None,
    device: Device = CPU,
) -> tuple[Backend, list[Any]]:
    """A backend, and what was logged while it was made."""
    selection = select(artifact.manifest, preference or Preference())
    with capture_logs() as logs:
        backend = (backends or TorchBackends((CPU,), 8, cpu_threads((CPU,)))).make(
            artifact.folder, artifact.manifest, artifact.digest, selection, device
        )
    return backend, logs


def warm(backend: Backend, artifact: Artifact) -> Backend:
    backend.load()
    golden = Golden(artifact.manifest, artifact.manifest.variants["script"].tolerance)
    backend.warm_up(golden.batches((1, 2, 4, 8)))
    return backend


class TestStoredPlan:
    def test_stored_plan_is_used_on_its_processor(self, tmp_path: Path) -> None:
        artifact = written(tmp_path, plan())
        backend, logs = made(artifact)
        assert logs == []
        serving = warm(backend, artifact).serving()
        assert serving.measured_by == "export"
        assert serving.measured_on == str(HERE)
        assert serving.steps == (ServedStep(2, "script"), ServedStep(8, str(STEPS[1].form)))
        assert not serving.median_us

    @pytest.mark.parametrize(
        ("stored", "largest", "reason"),
        [
            (plan(HERE.model_copy(update={"name": "Other"})), 8, "it was measured on Other, "),
            (
                plan(HERE.model_copy(update={"threads": HERE.threads + 1})),
                *(8, f"{HERE.threads + 1} threads; here is {HERE}"),
            ),
            (plan(torch_version="2.1.0"), 8, "it was measured with torch 2.1.0; here is "),
            (plan(), 16, "it ends at batches of 8; here they reach 16"),
            (None, 8, "the artifact has no plan of float32 for cpu"),
        ],
        ids=["processor", "threads", "torch", "batch", "none"],
    )
    def test_unsuitable_plan_is_measured_again_and_logged(
        self, tmp_path: Path, stored: Plan | None, largest: int, reason: str
    ) -> None:
        artifact = written(tmp_path, stored)
        backend, logs = made(artifact, backends=TorchBackends((CPU,), largest, cpu_threads((CPU,))))
        assert [(log["event"], log["log_level"]) for log in logs] == [("plan_not_used", "info")]
        assert logs[0]["model"] == "small/1"
        assert reason in logs[0]["reason"]
        serving = warm(backend, artifact).serving()
        assert serving.measured_by == "server"
        assert serving.measured_on == str(HERE)
        assert set(serving.median_us) == {str(step.form) for step in STEPS}
        assert all(list(times) == [1, 2, 4, 8] for times in serving.median_us.values())

    def test_single_form_needs_no_plan(self, tmp_path: Path) -> None:
        alone = small_variant("script")
        alone = Made(alone.entry.model_copy(update={"optimized": None}), alone.data)
        artifact = written(tmp_path, None, script=alone)
        backend, logs = made(artifact)
        assert logs == []
        serving = warm(backend, artifact).serving()
        assert serving.steps == (ServedStep(None, "script"),)
        assert serving.measured_by is None


class TestForms:
    def test_compiled_forms_run_alongside_torchscript(self, tmp_path: Path) -> None:
        mixed = steps((1, form("compiled")), (8, form("script")))
        stored = make_plan({"float32": mixed}, HERE, torch_version=torch.__version__)
        artifact = written(tmp_path, stored, compiled=small_variant("compiled"))
        backend = warm(made(artifact)[0], artifact)
        assert [step.form for step in backend.serving().steps] == ["compiled", "script"]
        for size in (1, 2, 8):
            batch = small_batch(size)
            wanted = small_answer(batch)["y"]
            np.testing.assert_allclose(backend.run(batch)["y"], wanted, rtol=1e-4, atol=1e-5)

    def test_compiled_forms_are_chosen_if_they_are_faster(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watch = Stopwatch(monkeypatch)

        def run(forward: Forward, *others: Any) -> Arrays:
            watch.now += 0.01 if isinstance(forward, CompiledForm) else 0.09
            return run_forward(forward, *others)

        monkeypatch.setattr("app.backends.forward.run_forward", run)
        artifact = written(tmp_path, None, compiled=small_variant("compiled"))
        serving = warm(made(artifact)[0], artifact).serving()
        assert serving.median_us["compiled"][1] == 10_000
        assert serving.steps == (ServedStep(8, "compiled"),)

    def test_selection_without_a_form_for_the_device(self, tmp_path: Path) -> None:
        artifact = written(tmp_path, None, int8=small_variant("int8"))
        message = "int8.zip runs on cpu, not on cuda:0"
        with pytest.raises(VariantUnusable, match=f"^{re.escape(message)}$"):
            made(artifact, Preference(precision="int8"), device=Device("cuda", 0))

    def test_plan_applies_to_one_device_kind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
        stored = plan(Processor(kind="cuda", name="GPU 1", threads=1))
        only_script = steps((8, form("script")))
        device = stored.devices[0].model_copy(update={"steps": {"float32": only_script}})
        artifact = written(
            tmp_path, stored.model_copy(update={"devices": (device,)}), trace=small_variant("trace")
        )
        assert made(artifact, device=Device("cuda", 1))[1] == []
        other = made(artifact, device=Device("cuda", 0))[1]
        assert other[0]["log_level"] == "info"
        assert other[0]["reason"] == "it was measured on GPU 1; here is GPU 0"
        on_cpu = made(artifact)[1]
        assert on_cpu[0]["reason"] == "the artifact has no plan of float32 for cpu"
