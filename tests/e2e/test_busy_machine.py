"""An export next to busy processes makes the plan of a quiet machine, or reports the doubt.

The figures are printed: `make nightly PYTEST_ARGS='-s -k busy_machine'`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from export.reports.timing_sections import load_lines
from export.timing.timings import plan_line
from models.manifest import MANIFEST_FILE, Manifest
from models.plan import DevicePlan, FormTimes, batch_sizes, form_at

RUNS = 3
BUSY = 2
NEAR = 1.15  # times as long: forms nearer to each other may change places from run to run
SPIN = "import time\nend = time.monotonic() + 600\nwhile time.monotonic() < end: pass"


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def exported(weights: Path, out: Path) -> Manifest:
    options = ["--weights", str(weights), "--out", str(out)]
    command = [sys.executable, "-m", "export", "digits", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Manifest.model_validate_json((out / "digits" / "1" / MANIFEST_FILE).read_bytes())


def cpu_plan(manifest: Manifest) -> DevicePlan:
    assert manifest.plan is not None
    plan = manifest.plan.on("cpu")
    assert plan is not None
    return plan


def differ(quiet: DevicePlan, busy: DevicePlan) -> list[str]:
    """Where the busy plan's form is slower by the quiet one's own times, by more than a little."""

    def at(size: int, times: FormTimes) -> float:
        return dict(zip(times.batch_sizes, times.median_us, strict=True))[size]

    found = []
    for precision, steps in quiet.steps.items():
        for size in set(batch_sizes(64)) - set(busy.unsettled):
            us = {times.form: at(size, times) for times in quiet.times}
            one, other = form_at(steps, size), form_at(busy.steps[precision], size)
            if us[other] > NEAR * us[one]:
                found.append(f"{precision}, batch {size}: {one} quiet, {other} busy")
    return found


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("run", range(RUNS))
def test_a_busy_machine_makes_the_same_plan(run: int, trained_digits: Path, tmp_path: Path) -> None:
    load = os.getloadavg()[0]
    quiet = exported(trained_digits, tmp_path / "quiet")
    with busy_processes(BUSY):
        busy = exported(trained_digits, tmp_path / "busy")
    plans = {"quiet": cpu_plan(quiet), "busy": cpu_plan(busy)}
    for name, plan in plans.items():
        sys.stdout.write(f"\nrun {run}, load average {load:.1f} at first, {name}:\n")
        for precision, steps in plan.steps.items():
            sys.stdout.write(f"  {precision}: {plan_line(steps)}\n")
        sys.stdout.writelines(f"  {line}\n" for line in load_lines(plan, "FOLDER"))
    assert busy.variants.keys() == quiet.variants.keys()
    assert plans["busy"].kept_waiting is not None
    assert not differ(plans["quiet"], plans["busy"])
