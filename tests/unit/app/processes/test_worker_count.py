"""How many processes serve if TORCHLANE_WORKERS is `auto`."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.processes import worker_count
from app.processes.worker_count import PROCESS_BYTES, Choice, Served, choose, may_have_gpu
from app.serving.version_policy import VersionPolicy
from models.choices import Precision
from models.manifest import MANIFEST_FILE
from models.plan import DevicePlan, Form, FormTimes, Plan
from models.processor import this_cpu
from tests.artifacts import change_manifest, write_artifact

SMALL_US, LARGE_US = 30.0, 40.0  # of an item, on both sides of the limit


def plan_of(item_us: float, precision: Precision = "float32") -> Plan:
    """A plan measured on a CPU, whose batches of four take as long as four items."""
    times = FormTimes(
        form=Form(variant="script"),
        precision=precision,
        batch_sizes=(1, 4),
        median_us=(10 * item_us, 4 * item_us),
        low_us=(1.0, 1.0),
        high_us=(1.0, 1.0),
    )
    other = times.model_copy(update={"form": Form(variant="int8"), "precision": "int8"})
    other = other.model_copy(update={"median_us": (10 * SMALL_US, 4 * SMALL_US)})
    device = DevicePlan(
        processor=this_cpu(1), torch_version="2.13.0", times=(times, other), steps={}
    )
    return Plan(precision=precision, devices=(device,))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, enough memory, and no GPU."""
    monkeypatch.setattr(worker_count, "usable_cores", lambda: 2)
    monkeypatch.setattr(worker_count, "memory_left_bytes", lambda: 100 * PROCESS_BYTES)
    monkeypatch.setattr(worker_count, "may_have_gpu", lambda: False)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    """A repository with one small model."""
    write_artifact(tmp_path / "models", "small", plan=plan_of(SMALL_US))
    return Served(tmp_path / "models", VersionPolicy.parse("latest"), None, None, 64)


def chosen(served: Served, *, layout: bool = False, limits: bool = False) -> Choice:
    return choose(served, has_own_layout=layout, has_rate_limits=limits)


def test_a_small_model_gets_a_process_per_core(served: Served) -> None:
    assert chosen(served) == Choice(2, "2 cores, and a forward of small/1 takes 30 us an item")


@pytest.mark.parametrize(("us", "said"), [(0.27, "0.27"), (3.14, "3.1"), (1234.5, "1,234")])
def test_reason_prints_the_time_readably(tmp_path: Path, us: float, said: str) -> None:
    write_artifact(tmp_path / "models", "small", plan=plan_of(us))
    served = Served(tmp_path / "models", VersionPolicy.parse("latest"), None, None, 64)
    assert f"a forward of small/1 takes {said} us an item" in chosen(served).reason


def test_one_core_gets_one(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_count, "usable_cores", lambda: 1)
    assert chosen(served) == Choice(1, "there is one core")


def test_a_gpu_gets_one(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_count, "may_have_gpu", lambda: True)
    assert chosen(served) == Choice(1, "there may be a GPU")


def test_settings_for_one_process_get_one(served: Served) -> None:
    assert chosen(served, layout=True) == Choice(1, "devices, replicas or threads are set")
    assert chosen(served, limits=True).reason == "rate limits are exact in one process only"


def test_one_large_model_among_small_ones_gets_one(served: Served) -> None:
    write_artifact(served.root, "large", plan=plan_of(LARGE_US))
    assert chosen(served) == Choice(1, "a forward of large/1 takes 40 us an item, more than 35")


def test_only_usable_variants_count(served: Served) -> None:
    assert chosen(replace(served, max_batch_size=3)).workers == 1  # singles take 300 us
    write_artifact(served.root, "small", 2, plan=plan_of(LARGE_US))
    assert chosen(replace(served, precision="int8")).workers == 2
    assert chosen(replace(served, variant="int8")).workers == 2
    assert chosen(replace(served, variant="script")).workers == 1


def test_missing_measured_times_get_one(served: Served) -> None:
    write_artifact(served.root, "foreign")
    assert chosen(served) == Choice(1, "foreign/1 has no measured times on a CPU")
    assert chosen(replace(served, precision="bf16")).workers == 1


def test_an_empty_repository_gets_one(served: Served, tmp_path: Path) -> None:
    assert chosen(replace(served, root=tmp_path / "none")) == Choice(1, "there is no model yet")


def test_unreadable_version_does_not_count(served: Served) -> None:
    folder = write_artifact(served.root, "broken")
    (folder / MANIFEST_FILE).write_text("{")
    assert chosen(served).workers == 2


@pytest.mark.parametrize(("left", "workers"), [(None, 1), (3.0, 1), (4.5, 2), (6.5, 3), (99.0, 4)])
def test_processes_fit_into_half_of_the_free_memory(
    served: Served, monkeypatch: pytest.MonkeyPatch, left: float | None, workers: int
) -> None:
    monkeypatch.setattr(worker_count, "usable_cores", lambda: 4)
    nbytes = None if left is None else int(left * PROCESS_BYTES)
    monkeypatch.setattr(worker_count, "memory_left_bytes", lambda: nbytes)
    assert chosen(served).workers == workers


def test_processes_need_memory_for_the_shapes_of_free_sizes(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_count, "memory_left_bytes", lambda: int(4.5 * PROCESS_BYTES))
    assert chosen(served).workers == 2
    free = {"shape": [-1, -1], "dimensions": [{"least": 1, "most": 9}]}
    folder = served.root / "small" / "1"
    change_manifest(folder, lambda content: content["inputs"][0].update(free))
    assert chosen(served).workers == 1


def test_unknown_memory_is_given_as_the_reason(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_count, "memory_left_bytes", lambda: None)
    assert chosen(served) == Choice(1, "this system does not report its free memory")


def test_driver_file_indicates_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = tmp_path / "driver"
    monkeypatch.setattr(worker_count, "GPUS", (str(driver),))
    monkeypatch.setattr(worker_count, "installed_version", lambda _: "2.13.0")
    assert not may_have_gpu()
    driver.touch()
    assert may_have_gpu()
    monkeypatch.setattr(worker_count, "installed_version", lambda _: "2.13.0+cpu")
    assert not may_have_gpu()


def test_the_choice_is_made_without_torch() -> None:
    code = "import sys, app.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
