"""Device specifications to devices, and the cores shared among them."""

from __future__ import annotations

import os
import re
import threading

import pytest
import torch

from app.backends.devices import compute_with, cpu_threads, find_devices, share_one_core
from app.types import Device

CPU = Device("cpu")
VISIBLE = torch.cuda.device_count() if torch.cuda.is_available() else 0


@pytest.mark.parametrize(
    ("spec", "replicas", "count"),
    [
        ("cpu", 1, 1),
        ("cpu", 3, 3),
        ("cpu*1", 1, 1),
        ("cpu*2", 1, 2),
        ("cpu*12", 2, 24),
        ("cpu,cpu", 1, 2),
        ("cpu,cpu*2", 2, 6),
    ],
)
def test_cpu_replicas(spec: str, replicas: int, count: int) -> None:
    assert find_devices(spec, replicas) == (CPU,) * count


def test_auto_prefers_cuda_devices() -> None:
    every = tuple(Device("cuda", index) for index in range(VISIBLE))
    assert find_devices("auto", 1) == (every or (CPU,))
    assert len(find_devices("auto", 2)) == 2 * max(1, VISIBLE)


@pytest.mark.parametrize("extra", ["", "cuda:0,"])
def test_missing_device_is_refused(extra: str) -> None:
    spec = f"{extra}cuda:{VISIBLE}"
    with pytest.raises(ValueError, match=f"'{spec}': {VISIBLE} CUDA devices are visible"):
        find_devices(spec, 1)


@pytest.mark.parametrize(
    "spec",
    [
        *("", "gpu", "CPU", "cpu*", "cpu*0", "cpu*100", "cpu*-1", "cuda", "cuda:", "cuda:x"),
        *("cuda:0,", "cuda:0,auto", "cuda:0, cuda:1", "auto,cpu", "cpu\n", "cuda:-1", ",cpu"),
    ],
)
def test_invalid_spec_error_lists_valid_forms(spec: str) -> None:
    forms = "auto, cpu, cpu*2 (two CPU replicas), cuda:0,cuda:1, or cuda:0,cpu"
    message = f"{spec!r} is not one of: {forms}"
    with pytest.raises(ValueError, match=re.escape(message)):
        find_devices(spec, 1)


def test_processes_share_cores_and_leave_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.backends.devices.usable_cores", lambda: 8)
    assert [cpu_threads((CPU,), processes) for processes in (1, 2, 4, 8, 100)] == [7, 3, 1, 1, 1]
    assert cpu_threads((CPU, CPU, CPU), 2) == 1


def test_single_core_process_shares_it_with_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.backends.devices.usable_cores", lambda: 4)
    shared = [share_one_core((CPU,), processes) for processes in (1, 2, 3, 4, 8)]
    assert shared == [False, False, True, True, True]
    assert not share_one_core((Device("cuda", 0),), 4)


def test_cuda_replicas_use_no_share_of_cores() -> None:
    cuda = (Device("cuda", 0), Device("cuda", 1))
    assert cpu_threads((CPU, *cuda)) == cpu_threads((CPU,)) == cpu_threads(cuda)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinity")
def test_only_the_replica_thread_is_pinned() -> None:
    core = min(os.sched_getaffinity(0))
    seen, before = list[set[int]](), os.sched_getaffinity(0)

    def look() -> None:
        compute_with(1, {core})
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [{core}]
    assert os.sched_getaffinity(0) == before
