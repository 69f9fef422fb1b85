"""Every way to train with several processes, and what happens when one of them is lost."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.unit.export.training import runs

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

STRATEGIES = {
    "ddp": ("--devices", 2, "--strategy", "ddp"),
    "fsdp": ("--devices", 2, "--strategy", "fsdp"),
    "pipeline": ("--devices", 2, "--strategy", "pipeline"),
    "ddp-of-pipelines": ("--devices", 4, "--strategy", "pipeline"),
}
Alone = Callable[[str], Path]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """The run of a model by one process, made once."""
    folder = tmp_path_factory.mktemp("alone")

    def made(model: str) -> Path:
        if not (folder / model).exists():
            runs.train(model, folder / model)
        return folder / model

    return made


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", ["digits", "residual"])
def test_accuracy_matches_a_single_process(
    model: str, strategy: str, alone: Alone, tmp_path: Path
) -> None:
    runs.train(model, tmp_path / "run", *STRATEGIES[strategy])
    assert runs.accuracy(tmp_path / "run") > runs.accuracy(alone(model)) - 0.005


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", ["digits-step", "residual-step"])
def test_gradients_match_a_single_process(
    model: str, strategy: str, alone: Alone, tmp_path: Path
) -> None:
    """Batch norms of `residual-step` keep their statistics: those of a part of a batch differ."""
    runs.train(model, tmp_path / "run", *STRATEGIES[strategy])
    assert runs.largest_difference(tmp_path / "run", alone(model)) < 1e-5


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_clipped_and_accumulated_gradients_match_a_single_process(
    strategy: str, tmp_path: Path
) -> None:
    options = ("--accumulate-grad-batches", 2, "--gradient-clip-val", 0.1, "--epochs", 2)
    stopping = ("--early-stopping", "accuracy", "--logger", "csv")
    runs.train("tiny", tmp_path / "alone", *options)
    runs.train("tiny", tmp_path / "run", *options, *stopping, *STRATEGIES[strategy])
    assert runs.largest_difference(tmp_path / "run", tmp_path / "alone") < 1e-5
    assert (tmp_path / "run/csv/version_0/metrics.csv").exists()


def test_fsdp_needs_less_memory_for_large_weights(tmp_path: Path) -> None:
    peaks = {}
    for strategy in ("ddp", "fsdp"):
        runs.train("wide", tmp_path / strategy, *STRATEGIES[strategy])
        peaks[strategy] = json.loads((tmp_path / strategy / "curves.json").read_bytes())[
            "peak_bytes"
        ]
    assert peaks["fsdp"] < 0.7 * peaks["ddp"], peaks


def test_checkpoint_resumes_under_any_strategy(alone: Alone, tmp_path: Path) -> None:
    """Interrupted under one strategy, taken up by the next."""
    out = tmp_path / "run"
    options: tuple[object, ...] = STRATEGIES["pipeline"]
    for following in ("fsdp", "ddp-of-pipelines", "ddp", None):
        resume = ("--resume",) if out.exists() else ()
        process = runs.start("train", "paced", "--out", out, *options, *resume)
        if following is not None:
            runs.wait_for(runs.reached(out) + 10, out, process)
            os.kill(process.pid, signal.SIGINT)
            options = STRATEGIES[following]
        printed, _ = process.communicate()
        assert process.returncode == (130 if following else 0), printed
    assert runs.accuracy(out) == pytest.approx(runs.accuracy(alone("paced")), abs=0.005)


def test_worker_killed_mid_epoch_is_restarted(alone: Alone, tmp_path: Path) -> None:
    out = tmp_path / "run"
    torchrun = (*runs.TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1")
    process = runs.start("train", "paced", "--out", out, launcher=torchrun)
    runs.wait_for(40, out, process)  # in the third epoch
    worker = psutil.Process(process.pid).children()[-1]
    worker.send_signal(signal.SIGKILL)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    assert re.search(r"resumes after step 32 of 96; steps 33 to \d+ are repeated", printed)
    assert runs.curve(out)[-1]["epoch"] == 6
    assert runs.accuracy(out) == pytest.approx(runs.accuracy(alone("paced")), abs=0.005)


def test_machines_may_join_and_leave(alone: Alone, tmp_path: Path) -> None:
    """Two agents of torchrun are two machines; the second one comes later, and is killed."""
    out, port = tmp_path / "run", "29611"
    agents = ("-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1")
    meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "t")
    launcher = (*agents, *meet, "--max-restarts", "3")
    arguments = ("train", "paced", "--out", out, "--checkpoint-every", 8)
    first = runs.start(*arguments, launcher=launcher)
    runs.wait_for(10, out, first)
    second = runs.start(*arguments, launcher=launcher)
    runs.wait_for(60, out, second)
    os.killpg(second.pid, signal.SIGKILL)
    second.communicate()
    printed, _ = first.communicate()
    assert first.returncode == 0, printed
    assert printed.count("resumes after step") >= 1
    assert runs.accuracy(out) == pytest.approx(runs.accuracy(alone("paced")), abs=0.005)


def test_two_workers_load_slow_data_in_less_time(tmp_path: Path) -> None:
    seconds: dict[int, list[float]] = {0: [], 2: []}
    for turn in range(3):
        for workers, took in seconds.items():
            out = tmp_path / f"{workers}-{turn}"
            runs.train("slow-data", out, "--workers", workers)
            (epoch,) = json.loads((out / "curves.json").read_bytes())["epochs"]
            took.append(epoch["seconds"])
    assert min(seconds[0]) > 1.6 * min(seconds[2]), seconds
