"""`python -m tests.chaos.mishaps`: a real server for half an hour, around which much goes wrong.

Its log is read slowly or not at all, its TMPDIR is full, a model's folder cannot be read, served
files are overwritten in place, and workers are killed. No answer may be wrong or late, no request
may stay without one, and memory stays flat.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.artifacts import write_artifact
from tests.chaos.aftermath import BUGS
from tests.chaos.report import header
from tests.chaos.steady_caller import OTHER, STALL_S, STEADY, Scaled, SteadyCaller, factor_of
from tests.chaos.surroundings import Mishaps
from tests.e2e.test_unread_output import small_pipe, started

ROOT = Path(__file__).parents[2]
COMPILE = ROOT / "deploy/compile.py"
PACED_S = 600.0  # in shorter runs things happen more often
MIB = 1 << 20
TMP_BYTES = 16 * MIB
MEMORY_S = 120.0  # shorter runs do not judge it
WARM = 0.2  # of the time; memory counts after it
GROWN_RATIO, GROWN_BYTES = 1.1, 30 * MIB
TRACEBACK = "Traceback (most recent call last)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once; returns the exit code: 1 if a bound is broken."""
    warnings.filterwarnings("ignore", "`torch.jit.*is deprecated")
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mishaps", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument(
        "--workers", type=int, default=2, help="none is killed if it is the only one"
    )
    parser.add_argument("--seed", type=int, help="of everything that is drawn; default: any")
    asked = parser.parse_args(arguments)
    seed = secrets.randbelow(1 << 31) if asked.seed is None else asked.seed
    print(header(seed), flush=True)  # noqa: T201  # the report is what this program is for
    folder = Path(tempfile.mkdtemp(prefix="mishaps-"))
    for model in (STEADY, OTHER):
        good = write_artifact(folder / "good", model, 1, Scaled(factor_of(model, 1)))
        shutil.copytree(good, folder / "models" / model / "1")
    launcher = ""
    if (ROOT / ".compiled").exists():
        subprocess.run([sys.executable, str(COMPILE)], check=True)  # for these sources
        launcher = f"{COMPILE} --run"
    settings = {"workers": str(asked.workers), "reload_s": "0.5", "log_format": "json"}
    settings["cache_bytes"] = str(MIB)  # full before memory counts
    seconds = asked.minutes * 60
    with (
        small_disk(folder / "tmp"),
        small_pipe() as (reading, writing),
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("TMPDIR", str(folder / "tmp"))
        os.set_blocking(reading, False)
        with started(
            folder / "models", folder / "log", writing, launcher=launcher, **settings
        ) as server:
            caller = SteadyCaller(server, random.Random(f"{seed}/caller"))
            pace = min(1.0, seconds / PACED_S)
            mishaps = Mishaps(server, asked.workers, reading, caller, random.Random(seed), pace)
            stopped = asyncio.run(mishaps.run(seconds))
    told, is_good = report(mishaps, caller, server.log, stopped, seconds)
    print(told)  # noqa: T201
    if is_good:
        shutil.rmtree(folder)
    else:
        print(f"log of the server: {server.log_file}")  # noqa: T201
    return 0 if is_good else 1


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of its own at a folder, where this user may mount one; prints why it may not."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={TMP_BYTES}", "torchlane-test", str(folder)]
    done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"TMPDIR is not filled: {done.stderr.strip()}", flush=True)  # noqa: T201
    try:
        yield
    finally:
        if not done.returncode:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def report(
    mishaps: Mishaps,
    caller: SteadyCaller,
    log: str,
    stopped: tuple[int | None, float],
    seconds: float,
) -> tuple[str, bool]:
    """A table of all that was counted, and whether it is within the bounds."""
    tally, (code, stop_s) = caller.tally, stopped
    for role, values in zip(("parent", "workers"), zip(*mishaps.memory, strict=True), strict=True):
        warm = values[int(WARM * len(values)) :]
        first, second = max(warm[: len(warm) // 2]), max(warm[len(warm) // 2 :])
        if seconds >= MEMORY_S and second > max(first * GROWN_RATIO, first + GROWN_BYTES):
            tally.problem("memory", f"of {role} grew from {first // MIB} to {second // MIB} MiB")
        mishaps.counts[f"MiB of {role}, first half"] = first // MIB
        mishaps.counts[f"MiB of {role}, second half"] = second // MIB
    if code != 0:
        tally.problem("stop", f"the exit code is {code} after {stop_s:.1f} s")
    for sign in (TRACEBACK, *(f'"event": "{bug}"' for bug in sorted(BUGS))):
        if count := log.count(sign):
            tally.problem("log", f"{count} times {sign}")
    rows = {
        **{f"answers: {kind}": count for kind, count in sorted(tally.answers.items())},
        **{kind: tally.found[kind] for kind in ("wrong", "refused", "unanswered")},
        f"waits above {STALL_S:g} s": tally.found["late"],
        "of others, the machine was busy": tally.late_on_busy_machine,
        "longest wait, ms": round(tally.longest_s * 1000),
        **dict(sorted(mishaps.counts.items())),
        "dropped log lines": mishaps.dropped,
        "exit code": code,
        "stop, ms": round(stop_s * 1000),
    }
    lines = [f"{name:<45} {value!s:>10}" for name, value in rows.items()]
    lines += tally.problems or ["nothing is wrong"]
    return "\n".join(lines), not tally.found.total()


if __name__ == "__main__":
    sys.exit(main())
