"""Closed-loop load with wrk, a compiled generator: one thread, requests from `wrk/requests.lua`."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from loadtests.errors import LoadTestError

SCRIPT = Path(__file__).resolve().parent / "wrk" / "requests.lua"
TIMEOUT_S = 30
GRACE_S = 60.0  # beyond its time: wrk waits for nothing, so after this it hangs


class LoadError(LoadTestError):
    """The load failed; the message says what happened."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How to load a server.

    Attributes:
        seconds: measured time, a whole number.
    """

    connections: int
    seconds: int


@dataclass(frozen=True, slots=True)
class WrkResult:
    """The result of a load.

    Attributes:
        answered: answers within that time.
        sent: requests, including those without an answer; at most one more for each connection.
        not_200: answers with another status.
        p50_ms: from the write of a request to the last byte of its answer.
        p99_ms: the same.
    """

    seconds: float
    answered: int
    sent: int
    not_200: int
    p50_ms: float
    p99_ms: float

    @property
    def requests_per_s(self) -> float:
        return self.answered / self.seconds


def find() -> str:
    """Find wrk.

    Raises:
        LoadError: if it is not installed.
    """
    path = shutil.which("wrk")
    if path is None:
        raise LoadError(
            "wrk, the load generator, is not installed: `apt-get install wrk`, `brew install "
            "wrk`, or https://github.com/wg/wrk"
        )
    return path


def version() -> str:
    result = subprocess.run(  # nosec B603 # wrk, as shutil.which found it
        [find(), "-v"], capture_output=True, text=True, check=False
    )
    return (result.stdout or result.stderr).splitlines()[0].partition("[")[0].strip()


def load(port: int, requests: Path, first: int, plan: LoadPlan) -> WrkResult:
    """Load the server on 127.0.0.1, and count.

    Args:
        port: of the server.
        requests: a file by `Bodies.write`.
        first: the number of the first request.
        plan: of the load.

    Raises:
        LoadError: if wrk is not installed, connections break, answers are missing, or wrk's output
            is unreadable.
    """
    command = [find(), "--threads", "1", "--connections", str(plan.connections)]
    command += ["--duration", f"{plan.seconds}s", "--timeout", f"{TIMEOUT_S}s"]
    command += ["--script", str(SCRIPT), f"http://127.0.0.1:{port}", "--", str(requests)]
    try:
        result = subprocess.run(  # nosec B603 # wrk, as shutil.which found it
            [*command, str(first)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=plan.seconds + GRACE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"wrk did not end within {GRACE_S:g} s after its time") from error
    return parse(result.stdout.decode(errors="replace"))


def parse(output: str) -> WrkResult:
    """Parse the run from wrk's output.

    Raises:
        LoadError: if there is none, or its figures would be invalid.
    """
    lines = [line for line in output.splitlines() if line.startswith('{"sent"')]
    try:
        fields: dict[str, Any] = orjson.loads(lines[-1])
    except (IndexError, orjson.JSONDecodeError) as error:
        raise LoadError(f"wrk said: {output.strip()[-500:] or 'nothing'}") from error
    broken, timeouts = fields.pop("broken"), fields.pop("timeouts")
    if broken or timeouts:
        raise LoadError(
            f"{broken:.0f} connections broke and {timeouts:.0f} answers stayed out for {TIMEOUT_S} "
            "s"
        )
    return WrkResult(**fields)
