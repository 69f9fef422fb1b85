"""Placement: what is set is done, the rest is measured where there is a choice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from app.registry.model_settings import ModelSettings
from app.registry.repository import Repository
from app.serving import placement as module
from app.serving.placement import Placement, Trial, measured_layout, place
from app.serving.version_policy import VersionPolicy
from app.types import Device
from models.cpu_layout import Layout, MeasuredLayout, layouts
from models.manifest import MANIFEST_FILE
from models.plan import DevicePlan, Form, FormTimes, Plan, Step
from models.processor import Processor, this_cpu
from models.system.cores import CoreTime
from tests.artifacts import write_artifact, write_small

CPU, GPU = Device("cpu"), Device("cuda", 0)
MEASURED = Layout(2, 3)


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cores(monkeypatch, 8)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def set_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr("app.backends.devices.usable_cores", lambda: cores)
    monkeypatch.setattr("app.serving.placement.usable_cores", lambda: cores)


def unasked(_: threading.Event) -> Layout:
    raise AssertionError("nothing is to be measured")


def test_layout_is_measured_by_default() -> None:
    assert place("auto", None, None, 1, lambda _: MEASURED) == Placement((CPU, CPU), 3)


@pytest.mark.parametrize(
    ("spec", "per_device", "threads", "processes", "wanted"),
    [
        ("cpu", None, None, 1, Placement((CPU,), 7)),
        ("cpu*2", None, None, 1, Placement((CPU, CPU), 3)),
        ("cpu,cpu", None, 2, 1, Placement((CPU, CPU), 2)),
        ("auto", 1, None, 1, Placement((CPU,), 7)),
        ("auto", 2, None, 1, Placement((CPU, CPU), 3)),
        ("auto", None, 5, 1, Placement((CPU,), 5)),
        (
            "auto",
            None,
            None,
            2,
            Placement((CPU,), 3, near_memory=False),
        ),  # they would measure each other
    ],
)
def test_given_settings_are_used_unmeasured(
    spec: str, per_device: int | None, threads: int | None, processes: int, wanted: Placement
) -> None:
    assert place(spec, per_device, threads, processes, unasked) == wanted


def test_one_core_needs_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cores(monkeypatch, 1)
    assert place("auto", None, None, 1, unasked) == Placement((CPU,), 1)


def test_failed_measurement_is_logged_and_default_kept() -> None:
    def broken(_: threading.Event) -> Layout:
        raise RuntimeError("the model 'mine' fails")

    with capture_logs() as logs:
        assert place("auto", None, None, 1, broken) == Placement((CPU,), 7)
    assert logs[0]["event"] == "cpu_layout_not_measured"
    assert logs[0]["reason"] == "RuntimeError: the model 'mine' fails"
    assert logs[0]["log_level"] == "warning"


def test_hanging_model_does_not_delay_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.05)
    gate, stopped = threading.Event(), list[bool]()

    def hangs(stop: threading.Event) -> Layout:
        gate.wait(30)
        stopped.append(stop.wait(30))
        return MEASURED

    with capture_logs() as logs:
        assert place("auto", None, None, 1, hangs) == Placement((CPU,), 7)
    gate.set()
    assert "longer than 0.05 s" in logs[0]["reason"]
    waited_until = time.monotonic() + 10
    while not stopped and time.monotonic() < waited_until:
        time.sleep(0.01)
    assert stopped == [True]  # should it come back, it goes no further


NODES = (frozenset({0, 1}), frozenset({2, 3}))


def test_gpu_replica_uses_no_numa_node(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, object]] = []
    monkeypatch.setattr("models.cpu_layout.numa_nodes", lambda: NODES)
    monkeypatch.setattr(module, "compute_with", lambda n, cores=None: seen.append((n, cores)))
    placement = Placement((CPU, GPU, CPU), 2)
    for replica in range(3):
        placement.begin(replica)()
    assert seen == [(2, NODES[0]), (2, None), (2, NODES[1])]


def measured(root: Path, default: str | None = None, **changes: Any) -> Layout:
    settings = ModelSettings(**{"max_batch_size": 8, **changes})
    trial = Trial(default, VersionPolicy.parse("latest"), lambda _: settings)
    return measured_layout(Repository(root), trial, threading.Event())


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores and no other process on them; slices are short."""
    set_cores(monkeypatch, 2)
    monkeypatch.setattr("models.cpu_layout.SLICE_S", 0.001)
    monkeypatch.setattr("models.cpu_layout.core_time", CoreTime)


@pytest.mark.usefixtures("two_cores")
def test_model_is_measured(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    with capture_logs() as logs:
        assert measured(tmp_path) in layouts(2)
    told = next(log for log in logs if log["event"] == "cpu_layout_measured")
    assert set(told["items_per_s"]) == {"1 x 1", "2 x 1", "1 x 2"}
    assert all(log["log_level"] == "info" for log in logs)  # it serves no requests


STORED = MeasuredLayout(
    chosen=Layout(2, 1), layouts=layouts(2), items_per_s=(10.0, 20.0, 5.0), batch_size=8
)
SCRIPT = Form(variant="script")
PLANNED = DevicePlan(
    processor=this_cpu(1),
    torch_version=torch.__version__,
    times=(
        FormTimes(
            form=SCRIPT,
            precision="float32",
            batch_sizes=(4, 8),
            median_us=(10.0, 20.0),
            low_us=(9.0, 19.0),
            high_us=(11.0, 21.0),
        ),
    ),
    steps={"float32": (Step(up_to=8, form=SCRIPT),)},
    layout=STORED,
)


def write_planned(root: Path, **changes: object) -> None:
    device = PLANNED.model_copy(update=changes)
    write_artifact(root, "double", plan=Plan(precision="float32", devices=(device,)))


@pytest.mark.usefixtures("two_cores")
class TestStoredLayout:
    """An artifact whose layout was measured by export."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Layout, ...]]:
        """The layouts of each measurement of the server, which finds that the last is the best."""
        asked: list[tuple[Layout, ...]] = []

        def best(candidates: Iterable[Layout], *_: object) -> tuple[MeasuredLayout, float]:
            asked.append(tuple(candidates))
            rates = tuple(range(len(asked[-1])))
            return MeasuredLayout(
                chosen=asked[-1][-1], layouts=asked[-1], items_per_s=rates, batch_size=1
            ), 0.0

        monkeypatch.setattr(module, "best", best)
        return asked

    def test_plan_is_used_under_the_same_conditions(
        self, tmp_path: Path, asked: list[tuple[Layout, ...]]
    ) -> None:
        write_planned(tmp_path)
        with capture_logs() as logs:
            assert measured(tmp_path) == (2, 1)
        assert not asked
        assert logs == [
            {
                "event": "cpu_layout_measured",
                "log_level": "info",
                "model": "double/1",
                "measured_by": "export",
                "chosen": "2 x 1",
                "items_per_s": {"1 x 1": 10, "2 x 1": 20, "1 x 2": 5},
                "batch": 8,
            }
        ]

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"layout": None}, "the plan has no layout"),
            (
                {"processor": Processor(kind="cpu", name="another CPU", threads=1)},
                "it was measured on another CPU, 1 thread; here is ",
            ),
            ({"processor": this_cpu(3)}, "it was measured on "),
            ({"torch_version": "1.0"}, "it was measured with torch 1.0; here is "),
            (
                {
                    "layout": STORED.model_copy(
                        update={"layouts": (*layouts(2)[:1], layouts(2)[2], STORED.chosen)}
                    )
                },
                "it was measured among 1 x 1, 1 x 2, 2 x 1",
            ),
            (
                {"layout": STORED.model_copy(update={"batch_size": 4})},
                "it was measured in batches of 4; here is 8",
            ),
        ],
    )
    def test_another_machine_or_another_plan_is_measured(
        self,
        tmp_path: Path,
        asked: list[tuple[Layout, ...]],
        changes: dict[str, object],
        reason: str,
    ) -> None:
        write_planned(tmp_path, **changes)
        with capture_logs() as logs:
            assert measured(tmp_path) == layouts(2)[-1]
        assert asked == [layouts(2)]
        (why,) = (log["reason"] for log in logs if log["event"] == "measuring_cpu_layout")
        assert why.startswith(reason)
        assert logs[-1]["measured_by"] == "server"

    def test_another_precision_is_measured(
        self, tmp_path: Path, asked: list[tuple[Layout, ...]]
    ) -> None:
        times = (*PLANNED.times, PLANNED.times[0].model_copy(update={"precision": "bf16"}))
        bf16 = (Step(up_to=8, form=Form(variant="bf16")),)
        device = PLANNED.model_copy(
            update={"times": times, "steps": {**PLANNED.steps, "bf16": bf16}}
        )
        write_small(tmp_path, ["script", "bf16"], plan=Plan(precision="float32", devices=(device,)))
        assert measured(tmp_path) == (2, 1)
        assert not asked
        measured(tmp_path, precision="bf16")
        assert asked == [layouts(2)]


@pytest.mark.usefixtures("two_cores")
def test_load_by_other_processes_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "best", lambda *_: (STORED, 0.3))
    write_artifact(tmp_path, "double")
    with capture_logs() as logs:
        assert measured(tmp_path) == STORED.chosen
    events = [log["event"] for log in logs]
    assert events[-2:] == ["cpu_layout_measured", "cpu_layout_measured_under_load"]
    assert [(log["chosen"], log["others"]) for log in logs[-2:]] == [("2 x 1", 0.3)] * 2


def test_missing_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no intact model"):
        measured(tmp_path)
    write_artifact(tmp_path, "double")
    with pytest.raises(LookupError, match="no version of 'other'"):
        measured(tmp_path, "other")


@pytest.mark.usefixtures("two_cores")
def test_older_version_replaces_a_damaged_one(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    (write_artifact(tmp_path, "double", 2) / MANIFEST_FILE).write_bytes(b"damaged")
    assert measured(tmp_path) in layouts(2)
