"""The CPU layout of a plan: measured with the forms that a server would run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from export.timing import layout as module
from export.timing import tune
from export.timing.layout import best_layout
from export.timing.tune import TuneOptions
from models.cpu_layout import Layout, MeasuredLayout, layouts
from models.manifest import Manifest
from models.plan import DevicePlan, Form, Step
from tests.artifacts import write_artifact
from tests.unit.export.definitions import quiet
from tests.unit.export.measured import (
    COMPILED,
    INT8,
    MIXED,
    OPTIMIZED,
    SCRIPT,
    device_plan,
    measured_manifest,
    on_cpu,
    per_item,
)

FORMS = (SCRIPT, OPTIMIZED, COMPILED, INT8)
FOUR_CORES = layouts(4)


class Comparison:
    """Stands for `best`: notes which form ran each layout, and finds the last layout the best."""

    def __init__(self, others: float = 0.0) -> None:
        self.others = others
        self.forms: dict[Layout, Form] = {}
        self.ran: list[tuple[Form, int]] = []

    def forward(self, form: Form) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            self.ran.append((form, len(x)))
            return x

        return run

    def best(
        self, candidates: Mapping[Layout, Callable[[], object]], items: int, *_: object
    ) -> tuple[MeasuredLayout, float]:
        for layout, forward in candidates.items():
            forward()
            self.forms[layout], size = self.ran[-1]
            assert size == items
        layouts = tuple(candidates)
        rates = tuple(float(n) for n in range(len(layouts)))
        return MeasuredLayout(
            chosen=layouts[-1], layouts=layouts, items_per_s=rates, batch_size=items
        ), self.others


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> Comparison:
    """Of a machine with four cores."""
    fake = Comparison()
    monkeypatch.setattr(module, "best", fake.best)
    monkeypatch.setattr(module, "usable_cores", lambda: 4)
    return fake


def measure(
    comparison: Comparison, plan: DevicePlan = MIXED, manifest: Manifest | None = None
) -> tuple[MeasuredLayout | None, list[str]]:
    calls: list[str] = []
    forms = {form: comparison.forward(form) for form in FORMS}
    manifest = manifest or measured_manifest(plan)
    return best_layout(manifest, plan, "float32", forms.__getitem__, calls.append), calls


def test_every_layout_runs_the_plans_form(comparison: Comparison) -> None:
    layout, message = measure(comparison)
    assert layout is not None
    assert (layout.layouts, layout.batch_size) == (FOUR_CORES, 4)
    assert comparison.forms == dict.fromkeys(FOUR_CORES, OPTIMIZED)
    assert not message


def test_a_slow_model_is_measured_with_single_items(comparison: Comparison) -> None:
    """No batch takes less than 50 ms."""
    plan = device_plan([per_item(SCRIPT, (60_000, 60_000))], Step(up_to=2, form=SCRIPT))
    layout, _ = measure(comparison, plan)
    assert layout is not None
    assert layout.batch_size == 1


def test_uncertain_layout_is_not_stored(comparison: Comparison) -> None:
    comparison.others = 0.3
    layout, message = measure(comparison)
    assert layout is None
    assert message == [
        "cpu layout: not stored, other processes used 30% of the cores; the server measures it"
    ]


def test_layout_failure_does_not_fail_the_export(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> object:
        raise RuntimeError("one at a time")

    monkeypatch.setattr(module, "best", fails)
    layout, message = measure(comparison)
    assert layout is None
    assert message == ["cpu layout: not measured: one at a time"]


def test_single_layout_is_not_measured(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = measured_manifest()
    script = staged.variants["script"].model_copy(update={"later_stages": ("rest.pt",)})
    staged = staged.model_copy(update={"variants": staged.variants | {"script": script}})
    in_stages = device_plan(MIXED.times, Step(up_to=4, form=SCRIPT))
    assert measure(comparison, in_stages, staged) == (None, [])
    assert measure(comparison, device_plan(MIXED.times)) == (None, [])
    monkeypatch.setattr(module, "usable_cores", lambda: 1)
    assert measure(comparison) == (None, [])
    assert not comparison.ran


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinity")
def test_replica_uses_its_threads_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(module, "cores_of", lambda *_: frozenset({core}))
    seen: list[tuple[int, set[int]]] = []

    def look() -> None:
        module.begin_replica(0, Layout(1, 2))
        seen.append((torch.get_num_threads(), os.sched_getaffinity(0)))

    before = torch.get_num_threads(), os.sched_getaffinity(0)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [(2, {core})]
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == before


@pytest.mark.parametrize(("threads", "stored"), [(None, True), (1, False)])
def test_plan_stores_layout_unless_threads_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int | None, stored: bool
) -> None:
    """With real forwards on two cores; a server with a fixed number of threads has no choice."""
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    folder = write_artifact(tmp_path, "double")
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    options = TuneOptions(max_batch=2, threads=threads)
    device = on_cpu(tune.measure(folder, manifest, options, quiet))
    assert (device.layout is not None) == stored
    if device.layout is not None:
        assert device.layout.layouts == layouts(2)
        assert device.layout.chosen in device.layout.layouts
