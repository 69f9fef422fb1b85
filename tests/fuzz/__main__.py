"""Fuzzes the targets one after the other, each in a process of its own, and says what came of it.

python -m tests.fuzz [--seconds 60] [--corpus FOLDER] [--sanitize | TARGET ...]

The seconds are those of all targets together. Exit code 1: a crash, a hang, or memory that grows.
With --sanitize the C++ is compiled with sanitizers, and its target alone runs.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests import native
from tests.fuzz.names import MODULES

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
MEMORY = Path("/dev/shm")  # cases that write files are ten times as many there
WARM_SHARE = 0.25  # of the time of a target, after which its memory should grow no more
# What the fuzzer itself keeps grows too: its cases, and what it knows of them.
MAX_GROWTH_MIB = 64.0
START_LIMIT_S = 180.0
EVERY_S = 0.25
NATIVE = "numbers"  # the target of the C++
MOST_SAID = 4000  # characters, of a finding


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one target.

    Attributes:
        exit_code: of the process; 0: nothing was found.
        grown_mib: from a quarter of the time to its end.
        finding: the last lines that were said, where something was found.
    """

    target: str
    seconds: float
    cases: int
    exit_code: int
    peak_mib: float
    grown_mib: float
    finding: str

    @property
    def ok(self) -> bool:
        """Neither crashed nor hung, and memory stayed."""
        return self.exit_code == 0 and self.cases > 0 and self.grown_mib <= MAX_GROWTH_MIB

    def __str__(self) -> str:
        verdict = "ok" if self.ok else f"FOUND (exit code {self.exit_code})"
        return (
            f"{self.target:<10} {self.cases:>12,} {self.cases / self.seconds:>9,.0f} "
            f"{self.peak_mib:>9.0f} {self.grown_mib:>+9.1f}  {verdict}"
        )


SANITIZERS = (
    *("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"),
    *("-fsanitize-undefined-trap-on-error", "-fsanitize-coverage=trace-cmp"),
)
# The fuzzer is told of all comparisons but these, which clang does not report.
TRACES = """
extern "C" void __sanitizer_cov_trace_cmpd(double, double) {}
extern "C" void __sanitizer_cov_trace_cmpf(float, float) {}
"""

HEAD = f"{'target':<10} {'cases':>12} {'cases/s':>9} {'peak MiB':>9} {'grown MiB':>9}"


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60, help="all targets together (60)")
    parser.add_argument("--corpus", type=Path, help="where cases are kept (.fuzz)")
    parser.add_argument("--sanitize", action="store_true", help=f"the target {NATIVE} with ASan")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(MODULES)}")
    given = parser.parse_args(arguments)
    names = given.targets or ([NATIVE] if given.sanitize else available())
    unknown = [name for name in names if name not in MODULES]
    if unknown:
        parser.error(f"there is no target {unknown[0]!r}; there are {', '.join(MODULES)}")
    if NATIVE in names and NATIVE not in available():
        parser.error(f"the target {NATIVE!r} needs a C++ compiler, and there is no {native.CXX[0]}")
    try:
        import atheris  # noqa: F401, PLC0415 - only to say why it cannot be
    except ImportError as error:
        sys.stderr.write(f"the fuzzer needs atheris, which is not there: {error}\n")
        return 2
    corpus: Path = given.corpus or ROOT / ".fuzz"
    sys.stdout.write(f"{HEAD}\n")
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        environment = sanitized(Path(folder)) if given.sanitize else {}
        for name in names:
            runs.append(fuzz(name, corpus, given.seconds / len(names), environment))
            sys.stdout.write(f"{runs[-1]}\n{runs[-1].finding}")
            sys.stdout.flush()
    return 0 if all(run.ok for run in runs) else 1


def available() -> list[str]:
    """The targets that this machine can run: that of the C++ needs a compiler."""
    return [name for name in MODULES if name != NATIVE or native.HAS_COMPILER]


def sanitized(folder: Path, code: str | None = None) -> Mapping[str, str]:
    """Compile the C++ with sanitizers; returns the environment in which its target runs on that."""
    import atheris  # noqa: PLC0415 - it ships the runtime that works together with the fuzzer

    source = folder / "json_numbers.cpp"
    source.write_text((code or native.SOURCE.read_text()) + TRACES)
    return {
        native.VARIABLE: str(native.compiled(folder, source, SANITIZERS)),
        "LD_PRELOAD": str(Path(atheris.path()) / "asan_with_fuzzer.so"),
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16",  # Python itself leaks
        "PYTHONMALLOC": "malloc",  # else small bodies lie in arenas, of which ASan knows nothing
    }


def fuzz(
    name: str, corpus: Path, seconds: float, environment: Mapping[str, str] | None = None
) -> Run:
    """Run one target; new cases are kept in `corpus`, what is found beside it."""
    cases = corpus / name
    cases.mkdir(parents=True, exist_ok=True)
    found = corpus / f"found-{name}-"
    options = [f"-max_total_time={max(1, round(seconds))}", f"-artifact_prefix={found}"]
    command = [sys.executable, "-m", "tests.fuzz.child", name, str(cases), *options]
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        log = Path(scratch) / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "TMPDIR": scratch, **(environment or {})},
                stdout=file,
                stderr=file,
            )
            memory = _watch(process, log, seconds)
        text = log.read_text(errors="replace")
    executed = re.search(r"number_of_executed_units: (\d+)", text)
    return Run(
        target=name,
        seconds=max(len(memory), 1) * EVERY_S,
        cases=int(executed[1]) if executed else 0,
        exit_code=process.returncode,
        peak_mib=max(memory, default=0.0),
        grown_mib=_growth(memory),
        finding="" if process.returncode == 0 else _finding(text),
    )


def _finding(text: str) -> str:
    """Beginning and end of the exception or of AddressSanitizer's report, else what came last."""
    at = max(map(text.find, ("=== Uncaught Python exception", "ERROR: AddressSanitizer")))
    said = text[max(at, 0) :]
    if len(said) > MOST_SAID:
        said = (said[: MOST_SAID // 2] if at >= 0 else "") + said[-MOST_SAID // 2 :]
    return f"{said}\n"


def _watch(process: subprocess.Popen[bytes], log: Path, seconds: float) -> list[float]:
    """MiB that the process has resident, from time to time from its first case to its end."""
    memory: list[float] = []
    deadline = time.monotonic() + seconds + START_LIMIT_S
    child = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            if memory or b"INITED" in log.read_bytes():
                memory.append(child.memory_info().rss / MIB)
        except psutil.Error:
            break
        if time.monotonic() > deadline:
            process.kill()
        time.sleep(EVERY_S)
    process.wait()
    return memory


def _growth(memory: list[float]) -> float:
    """From a quarter of the time to the end; single moments may catch a picture being decoded."""
    warm = memory[int(len(memory) * WARM_SHARE) : -1]  # the last one may be of a process that ends
    if not warm:
        return 0.0
    few = max(3, len(warm) // 10)
    return statistics.median(warm[-few:]) - statistics.median(warm[:few])


if __name__ == "__main__":
    sys.exit(main())
