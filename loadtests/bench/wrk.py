"""Closed-loop load by wrk, a compiled generator: one thread, requests from `wrk/requests.lua`."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import orjson

from loadtests.bench.generator import LoadError, LoadPlan, Run

SCRIPT = Path(__file__).resolve().parent / "wrk" / "requests.lua"
TIMEOUT_S = 30
GRACE_S = 60.0  # beyond its time: it waits for nothing, so this much means that it hangs


def find() -> str | None:
    """Where wrk is, if it is installed."""
    return shutil.which("wrk")


async def load(port: int, requests: Path, first: int, plan: LoadPlan) -> Run:
    """Load the server on 127.0.0.1 and count.

    Args:
        port: where it listens.
        requests: a file that `Bodies.write` wrote.
        first: the number of the first request.
        plan: how hard and how long, in whole seconds.

    Raises:
        LoadError: if connections break or answers stay out, or wrk says nothing that can be read.
    """
    command = ["wrk", "--threads", "1", "--connections", str(plan.connections)]
    command += ["--duration", f"{round(plan.seconds)}s", "--timeout", f"{TIMEOUT_S}s"]
    command += ["--script", str(SCRIPT), f"http://127.0.0.1:{port}", "--", str(requests)]
    process = await asyncio.create_subprocess_exec(
        *command, str(first), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(plan.seconds + GRACE_S):
            output, _ = await process.communicate()
    except TimeoutError as error:
        raise LoadError(f"wrk did not end within {GRACE_S:g} s after its time") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return parsed(output.decode(errors="replace"))


def parsed(output: str) -> Run:
    """The run that wrk's output tells.

    Raises:
        LoadError: if it tells none, or one whose figures would not count.
    """
    lines = [line for line in output.splitlines() if line.startswith('{"sent"')]
    try:
        told: dict[str, Any] = orjson.loads(lines[-1])
    except (IndexError, orjson.JSONDecodeError) as error:
        raise LoadError(f"wrk said: {output.strip()[-500:] or 'nothing'}") from error
    if told["broken"] or told["timeouts"]:
        raise LoadError(
            f"{told['broken']:.0f} connections broke and {told['timeouts']:.0f} answers stayed out "
            f"for {TIMEOUT_S} s"
        )
    return Run(
        seconds=told["seconds"],
        answered=told["answered"],
        sent=told["sent"],
        not_200=told["not_200"],
        p50_ms=told["p50_ms"],
        p99_ms=told["p99_ms"],
    )
