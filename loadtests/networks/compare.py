"""Compares this server with one that a user would write, on real networks: `make bench-networks`.

Both are up all the time, share all cores with the load, and get the same bodies, in turns of a
second. No body repeats, so nothing is cached.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table

from loadtests.bench import wrk
from loadtests.bench.bodies import Bodies
from loadtests.bench.environments import COMPILED, ENVIRONMENTS, ROOT, check_sources
from loadtests.bench.launch import Serving, own_environment
from loadtests.bench.own_models import manifest_of
from loadtests.bench.results import Spread, turns
from loadtests.bench.servers import Cores, Fleet, Server, ServerSpec
from loadtests.errors import LoadTestError
from loadtests.networks.sizes import (
    BERT,
    CLASSES,
    LONGEST,
    MOBILENET,
    RESNET,
    SIDE,
    TOKENS,
    WORDS,
)
from loadtests.reports import Json, check_writable, conditions, warnings, write
from loadtests.traffic.target import exchange
from models.local_paths import local_path
from models.manifest import MANIFEST_FILE
from models.resources import usable_cores

FOLDER = ENVIRONMENTS / "networks"
OURS, THEIRS = "torchlane", "fastapi_onnx"
CONNECTIONS = (1, 16)
ROUNDS, TURN_S, WARM_UP_S = 7, 1, 2
COMPARED = 4  # answers of both, before the load
WIDTH, HEIGHT = 500, 375  # of a photograph
OCTETS, JPEG, JSON = "application/octet-stream", "image/jpeg", "application/json"


Scores = Mapping[str, float]


class NetworkError(LoadTestError):
    """A network cannot be built, or the two servers differ; the message says how."""


@dataclass(frozen=True, slots=True)
class Case:
    """A network, and how both servers are asked for it.

    Attributes:
        path: of the other server.
        adopt: options of `python -m export adopt`.
        different: requests that are prepared; those with float32 also get a number of their own.
        near: how much two scores may differ, as a share of the largest.
    """

    name: str
    title: str
    path: str
    media_type: str
    adopt: tuple[str, ...]
    different: int
    near: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One second of one server; CPU time is that of all its processes, per answer."""

    requests_per_s: float
    p99_ms: float
    cpu_ms: float


@dataclass(slots=True)
class Row:
    """A network at a number of connections: the turns of each server, in order."""

    case: Case
    connections: int
    turns: dict[str, list[Turn]] = field(default_factory=lambda: {OURS: [], THEIRS: []})

    def ratio(self, figure: str) -> Spread:
        """Return ours over theirs, round by round."""
        both = zip(self.turns[OURS], self.turns[THEIRS], strict=True)
        return Spread.of([getattr(ours, figure) / getattr(theirs, figure) for ours, theirs in both])

    def median(self, server: str, figure: str) -> float:
        """Return the median of a server's turns."""
        return Spread.of([getattr(turn, figure) for turn in self.turns[server]]).median


CASES = (
    Case(MOBILENET, "MobileNetV3-large, raw float32", "/numbers", OCTETS, (), 4, 1e-3),
    Case(
        *(RESNET, f"ResNet-50, JPEG of {WIDTH} x {HEIGHT}, best five", "/picture", JPEG),
        (
            *("--codec", "image", "--fit", "crop", "--resize-shorter", "256"),
            *("--mean", "imagenet", "--std", "imagenet"),
            *("--scores", "softmax", "--top-k", "5", "--labels", str(FOLDER / "labels.txt")),
        ),
        1024,
        0.1,  # their pixels are resized by other code
    ),
    Case(
        *(BERT, f"BERT, 6 layers of 384, {TOKENS} tokens, JSON", "/text", JSON),
        (
            *("--input", f"ids=int64[-1,1<=tokens<={LONGEST}] in 0..{WORDS - 1}"),
            *("--input", f"mask=int64[-1,1<=tokens<={LONGEST}]", "--pad", "tokens=mask"),
        ),
        32_768,
        1e-3,
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the comparison."""
    names = [case.name for case in CASES]
    parser.add_argument("--networks", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument("--pure", action="store_true", help="run ours without machine code")
    parser.add_argument(
        "--out", type=local_path, default=Path("reports"), help="for .json and .html"
    )


def compare(given: argparse.Namespace, console: Console, command: str) -> int:
    """Build what is missing, measure, print, write; return the exit code.

    Raises:
        LoadTestError: if a figure would be invalid.
    """
    check_writable(given.out)
    package = None if given.pure else COMPILED
    if package is not None:
        check_sources(package)
    cases = [case for case in CASES if case.name in given.networks]
    for case in cases:
        _build(case, console)
    found = {**conditions(command), "compiled": package is not None, "generator": wrk.version()}
    console.print(f"{found['machine']}, {found['date']}")
    for line in warnings(found["load_average"], usable_cores()):
        console.print(line)
    rows: list[Row] = []
    try:
        for case in cases:
            rows += _compared(case, package, given.rounds, console)
    finally:  # write what was measured, even if the rest is missing
        if rows:
            console.print(_table(rows))
            write(given.out, "networks", found | {"rows": [*map(_as_json, rows)]}, console)
    return 0


def _build(case: Case, console: Console) -> None:
    """Write a network and adopt it, once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = FOLDER / case.name
    if (folder / "1" / MANIFEST_FILE).exists():
        made = manifest_of(folder / "1").created_at
        console.print(f"{case.name}: adopted {made:%Y-%m-%d %H:%M} UTC; anew: rm -r {folder}")
        return
    console.print(f"{case.name}: building and adopting it, which takes some minutes")
    (FOLDER / "labels.txt").write_text("".join(f"class {at}\n" for at in range(CLASSES)))
    _run("loadtests.networks.definitions", case.name, str(FOLDER))
    adopt = ("adopt", str(FOLDER / f"{case.name}.pt2"), "--name", case.name, "--version", "1")
    _run("export", *adopt, "--out", str(FOLDER), *case.adopt)


def _run(module: str, *arguments: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    done = subprocess.run(  # nosec B603 # this program
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NetworkError(f"`{' '.join(command)}` failed: {(done.stdout + done.stderr)[-1000:]}")


def _compared(case: Case, package: Path | None, rounds: int, console: Console) -> list[Row]:
    bodies = _bodies(case)
    specs = _specs(case, package)
    paths = {OURS: f"/models/{case.name}/predict", THEIRS: case.path}
    found = [Row(case, connections) for connections in CONNECTIONS]
    with Fleet() as fleet, tempfile.TemporaryDirectory() as scratch:
        for spec in specs.values():
            fleet.start(spec)
        answers: dict[str, list[Scores]] = {}
        for name, spec in specs.items():
            with fleet.awake(spec) as server:
                first = bodies[:COMPARED]
                answers[name] = [_answer(server, paths[name], case, body) for body in first]
        _check(case, *answers.values())
        files = {name: Path(scratch) / name for name in specs}
        sent = dict.fromkeys(specs, COMPARED)
        for name, file in files.items():
            _requests(case, paths[name], bodies, ours=name == OURS).write(file)
        for row in found:
            for number in range(rounds + 1):
                for name in turns(list(specs), number):
                    plan = wrk.LoadPlan(row.connections, TURN_S if number else WARM_UP_S)
                    with fleet.awake(specs[name]) as server:
                        turn, more = _turn(server, files[name], sent[name], plan)
                    sent[name] += more
                    row.turns[name] += [turn] if number else []
                if case.media_type != OCTETS and max(sent.values()) > case.different:
                    raise NetworkError(
                        f"{case.title}: all {case.different} different requests are used in round "
                        f"{number}: give fewer --rounds"
                    )
            console.print(f"{case.title}, {row.connections} connection(s): measured")
    return found


def _specs(case: Case, package: Path | None) -> dict[str, ServerSpec]:
    serving = Serving(FOLDER / case.name / "1", Cores(None, None), package)
    theirs = (
        ("PYTHONPATH", str(ROOT)),
        ("NETWORK", str(FOLDER / f"{case.name}.onnx")),
        ("PORT", "{port}"),
        ("ORT_DISABLE_TELEMETRY", "1"),
    )
    peer = str(Path(__file__).with_name("peer.py"))
    return {
        OURS: ServerSpec(
            *("Torchlane", (sys.executable, "-m", "app"), own_environment(serving, package)),
            ready_path="/health/ready",
        ),
        THEIRS: ServerSpec(
            "FastAPI + ONNX Runtime", (sys.executable, peer), theirs, ready_path="/openapi.json"
        ),
    }


def _bodies(case: Case) -> list[bytes]:
    """Return the bodies for the other server."""
    rng = np.random.default_rng(1)
    if case.media_type == OCTETS:
        shape = (case.different, 3, SIDE, SIDE)
        return [each.tobytes() for each in rng.standard_normal(shape, dtype=np.float32)]
    if case.media_type == JPEG:
        return [_photograph(rng) for _ in range(case.different)]
    ids = rng.integers(0, WORDS, (case.different, TOKENS)).tolist()
    return [orjson.dumps({"ids": each, "mask": [1] * TOKENS}) for each in ids]


def _photograph(rng: np.random.Generator) -> bytes:
    """Make a JPEG that has shapes and grain, as a photograph has, and its size."""
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float32)
    grain = rng.normal(0, 8, smooth.shape)
    file = io.BytesIO()
    Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def _ours(case: Case, body: bytes) -> bytes:
    return b'{"input": ' + body + b"}" if case.media_type == JSON else body


def _requests(case: Case, path: str, bodies: Sequence[bytes], *, ours: bool) -> Bodies:
    """Return the requests; each with float32 gets its own first number, and so is different."""
    templates = []
    is_binary = case.media_type == OCTETS
    for each in bodies:
        body = _ours(case, each) if ours else each
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {case.media_type}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode("ascii")
        templates.append((head, body[4:]) if is_binary else (head + body,))
    order = tuple(range(len(templates)))
    return Bodies("binary" if is_binary else "none", tuple(templates), np.zeros(0), order, 0)


def _answer(server: Server, path: str, case: Case, body: bytes) -> Scores:
    """Return the scores in one answer, by class."""
    sent = _ours(case, body) if path != case.path else body
    got = exchange(server.url, "POST", path, {"Content-Type": case.media_type}, sent)
    if got.status != 200:
        raise NetworkError(f"{server.name} answered {got.status}: {got.body[:300]!r}")
    answer = orjson.loads(got.body)
    answer = answer.get("prediction", answer)
    if "outputs" in answer:
        answer = {"scores": next(iter(answer["outputs"].values()))}
    names = answer.get("labels") or answer.get("classes") or range(len(answer["scores"]))
    return {str(name): score for name, score in zip(names, answer["scores"], strict=True)}


def _check(case: Case, ours: Sequence[Scores], theirs: Sequence[Scores]) -> None:
    """Check that both compute the same, as far as both answer with the same classes."""
    for mine, other in zip(ours, theirs, strict=True):
        shared = mine.keys() & other.keys()
        most = max(map(abs, other.values()))
        if not shared or any(abs(mine[each] - other[each]) > case.near * most for each in shared):
            raise NetworkError(f"{case.name}: the servers disagree: {mine} and {other}")


def _turn(server: Server, file: Path, first: int, plan: wrk.LoadPlan) -> tuple[Turn, int]:
    before_s = server.cpu_s()
    run = wrk.load(server.port, file, first, plan)
    cpu_ms = (server.cpu_s() - before_s) * 1e3 / max(1, run.answered)
    if run.not_200 or not run.answered:
        raise NetworkError(f"{server.name}: {run.not_200} of {run.answered} answers were not 200")
    return Turn(run.requests_per_s, run.p99_ms, cpu_ms), run.sent


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE)
    for title in ("network", "connections", "requests/s", "theirs", "ratio", "min..max"):
        table.add_column(title, justify="left" if title == "network" else "right")
    for title in ("p99 ms", "theirs", "CPU ms", "theirs"):
        table.add_column(title, justify="right")
    for row in rows:
        ratio = row.ratio("requests_per_s")
        figures = [
            f"{row.median(server, figure):.{digits}f}"
            for figure, digits in (("requests_per_s", 1), ("p99_ms", 1), ("cpu_ms", 2))
            for server in (OURS, THEIRS)
        ]
        spread = (f"{ratio.median:.2f}", f"{ratio.low:.2f}..{ratio.high:.2f}")
        table.add_row(row.case.title, str(row.connections), *figures[:2], *spread, *figures[2:])
    return table


def _as_json(row: Row) -> Json:
    each = {
        server: [[turn.requests_per_s, turn.p99_ms, turn.cpu_ms] for turn in made]
        for server, made in row.turns.items()
    }
    return {"network": row.case.title, "connections": row.connections, "turns": each}
