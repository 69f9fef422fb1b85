"""`python -m loadtests cold-start`: the parts from process start to the first answer."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import os
import subprocess
import sys
import time
from collections.abc import Mapping

import numpy as np
import orjson
from rich.console import Console

from loadtests.arguments import at_least_one
from loadtests.bench.answers import OK, CheckError
from loadtests.bench.bodies import bodies_of
from loadtests.bench.dialects import TORCHLANE
from loadtests.bench.launch import Contestant, Serving, spec_of
from loadtests.bench.machine import prepare
from loadtests.bench.options import add_common
from loadtests.bench.own_models import manifest_of, newest_artifact
from loadtests.bench.results import Spread
from loadtests.bench.servers import READY_WITHIN_S, Server, ServerError, ServerSpec, launched
from loadtests.bench.stalls import share_stalled, verdict_of
from loadtests.bench.workloads import OURS, WORKLOADS
from loadtests.reports import Judged, print_judged, table_of, write
from loadtests.traffic.credentials import with_key
from loadtests.traffic.target import exchange
from loadtests.wire import HEAD_END, Response
from models.manifest import Manifest
from models.tensors import Array

READY_MS = 2000.0
LOOK_S = 0.005
STALL_S = 0.5
NONE: Array = np.zeros(2)
SHARED = next(each for each in WORKLOADS if each.shared)  # its servers use all cores
# A process that only imports, and prints the time and processor time after each step.
IMPORTS = """
import time
def mark(): print(time.perf_counter(), time.process_time())
mark()
import torch
mark()
import app.__main__, app.main
mark()
"""
IMPORTED = ("interpreter", "import of torch", "our own imports")
LISTENS, READY, ANSWER = "until it listens, with all of these", "ready", "first answer"
OTHERS = "other workers"  # still loading
VERIFY = "verify"  # the first part, before any is reported
STAGES = {VERIFY: "files checked", "load": "load", "warm": "warm-up", "prove": "proof"}
Round = dict[str, Array]  # milliseconds of each part, and of its processor time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the number of rounds."""
    parser.add_argument("--rounds", type=at_least_one, default=5, help="default: 5")
    add_common(parser)


def cold_start(given: argparse.Namespace, console: Console, command: str) -> int:
    """Measure, print, write; return the exit code."""
    place, folder = prepare(given, console, command), newest_artifact(given.artifacts)
    serving = Serving(folder.absolute(), place.cores, place.package)
    spec, manifest = spec_of(Contestant(OURS), SHARED, serving), manifest_of(folder)
    stalled = share_stalled(place.cores, STALL_S)
    rounds = [_round(spec, manifest) for _ in range(given.rounds)]
    names = dict.fromkeys(name for each in rounds for name in each)
    parts, cpu = (
        {name: Spread.of([float(each.get(name, NONE)[at]) for each in rounds]) for name in names}
        for at in (0, 1)
    )
    table = table_of(("part", "ms", "min..max", "CPU ms"), "cold start of digits")
    for name, of in parts.items():
        told = f"{of.median:,.0f}", f"{of.low:,.0f}..{of.high:,.0f}", f"{cpu[name].median:,.0f}"
        table.add_row(name, *told)
    console.print(table)
    console.print(f"medians of {given.rounds}; the core was stalled for {stalled:.1%} of the time")
    median_ms = parts[READY].median
    verdict, doubt = verdict_of(median_ms <= READY_MS, stalled)
    wanted, measured = f"<= {READY_MS / 1000:g} s", f"{median_ms / 1000:.2f} s"
    line = Judged("cold start", READY, wanted, measured, verdict, doubt)
    print_judged(console, [line])
    found = place.conditions | {"stalled": stalled, "parts": parts, "cpu": cpu}
    write(given.out, "cold-start", found | {"acceptance": [dataclasses.asdict(line)]}, console)
    return 0


def _round(spec: ServerSpec, manifest: Manifest) -> Round:
    """Time the imports in a separate process, then a whole start and the first answer."""
    took = _imports(dict(spec.environment))
    began = time.perf_counter()
    with launched(spec) as server, contextlib.closing(_connection(server)) as connection:
        part, last = LISTENS, NONE
        while part != READY:
            if time.perf_counter() - began > READY_WITHIN_S:
                raise ServerError(f"{spec.name} is not ready; its log ends:\n{server.log_tail()}")
            now = _part(server, connection, manifest.model, part)
            if now != part:
                at = np.array([time.perf_counter() - began, server.cpu_s()]) * 1000
                took[part] = took.get(part, NONE) + at - last
                part, last = now, at
            time.sleep(LOOK_S)
        took[READY] = last
        head, _, body = bodies_of(SHARED, manifest, TORCHLANE, 0).request(0).partition(HEAD_END)
        began = time.perf_counter()
        answer = exchange(server.url, "POST", "/predict", Response(OK, b"", head).headers(), body)
        answer_ms = (time.perf_counter() - began) * 1000
        took[ANSWER] = np.array([answer_ms, server.cpu_s() * 1000 - last[1]])
    if answer.status != OK:
        raise CheckError(f"the first answer is {answer.status}")
    return took


def _imports(environment: Mapping[str, str]) -> Round:
    began = time.perf_counter()
    done = subprocess.run(  # nosec B603 # the program above
        [sys.executable, "-c", IMPORTS],
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    # For each mark: time and processor time.
    at = np.array(done.stdout.split(), np.float64).reshape(-1, 2)
    took_ms = np.diff(at, axis=0, prepend=[(began, 0.0)]) * 1000
    return dict(zip(IMPORTED, took_ms, strict=True))


def _connection(server: Server) -> http.client.HTTPConnection:
    """Return a persistent connection, so that one worker reports all stages; it opens at use."""
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=READY_WITHIN_S)


def _part(server: Server, connection: http.client.HTTPConnection, model: str, part: str) -> str:
    """Return the current part; the previous one if the server does not report it.

    Raises:
        ServerError: if it has ended.
    """
    if server.process.poll() is not None:
        raise ServerError(f"{server.name} ended; its log ends with:\n{server.log_tail()}")
    try:
        if _get(connection, "/health/ready")[0] == OK:
            return READY
        status, body = _get(connection, f"/models/{model}")
    except (OSError, http.client.HTTPException):
        connection.close()  # the server does not listen yet
        return part
    told = orjson.loads(body) if status == OK else {}
    if told.get("state") == "ready":
        return OTHERS
    stages = [each["stage"] for each in told.get("versions", ())]
    return STAGES[stages[0] or VERIFY] if stages else part


def _get(connection: http.client.HTTPConnection, path: str) -> tuple[int, bytes]:
    connection.request("GET", path, headers=with_key({}))
    response = connection.getresponse()
    return response.status, response.read()
