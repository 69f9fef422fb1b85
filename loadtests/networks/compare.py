"""Compares this server with one that a user would write, on real networks: `make bench-networks`.

Both are up all the time, share all cores with the load, and get the same bodies, in turns of four
seconds. No body repeats, so nothing is cached.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from PIL import Image
from rich.console import Console

from loadtests.bench import wrk
from loadtests.bench.artifacts import manifest_of, run
from loadtests.bench.bodies import Bodies
from loadtests.bench.environments import ENVIRONMENTS, ROOT
from loadtests.bench.launch import TITLES, own_spec
from loadtests.bench.machine import prepare
from loadtests.bench.measuring import TurnFigures, load_server
from loadtests.bench.report import Round, as_json, print_figures, turns
from loadtests.bench.servers import Fleet, RunningServer, ServerSpec
from loadtests.bench.workloads import ONNX, OURS
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
from loadtests.reports import write
from loadtests.traffic.target import exchange
from models.manifest import MANIFEST_FILE

FOLDER = ENVIRONMENTS / "networks"
CONNECTIONS = (1, 16)
TURN_S, WARM_UP_S = 4, 2  # 16 requests for ResNet-50 may take more than a second
COMPARED = 4  # answers of both, before the load
WIDTH, HEIGHT = 500, 375  # of a photograph
OCTETS, JPEG, JSON = "application/octet-stream", "image/jpeg", "application/json"
Scores = Mapping[str, float]


class NetworkError(LoadTestError):
    """A network cannot be built, or the two servers differ; the message says how."""


@dataclass(frozen=True, slots=True)
class NetworkCase:
    """A network, and how both servers are asked for it.

    Attributes:
        path: of the other server.
        adopt: options of `torchlane adopt`.
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


CASES = (
    NetworkCase(MOBILENET, "MobileNetV3-large, raw float32", "/numbers", OCTETS, (), 4, 1e-3),
    NetworkCase(
        *(RESNET, f"ResNet-50, JPEG of {WIDTH} x {HEIGHT}, best five", "/picture", JPEG),
        (
            *("--codec", "image", "--fit", "crop", "--resize-shorter", "256"),
            *("--mean", "imagenet", "--std", "imagenet"),
            *("--scores", "softmax", "--top-k", "5", "--labels", str(FOLDER / "labels.txt")),
        ),
        1024,
        0.1,  # their pixels are resized by other code
    ),
    NetworkCase(
        *(BERT, f"BERT, 6 layers of 384, {TOKENS} tokens, JSON", "/text", JSON),
        (
            *("--input", f"ids=int64[-1,1<=tokens<={LONGEST}] in 0..{WORDS - 1}"),
            *("--input", f"mask=int64[-1,1<=tokens<={LONGEST}]", "--pad", "tokens=mask"),
        ),
        32_768,
        1e-3,
    ),
)


def compare(args: argparse.Namespace, console: Console, command: str) -> int:
    """Build what is missing, measure, print, write; return the exit code.

    Raises:
        LoadTestError: if a figure would be invalid.
    """
    generator, site = wrk.version(), prepare(args, console, command)
    cases = [case for case in CASES if case.name in args.networks]
    for case in cases:
        _build(case, console)
    results: dict[str, list[Round]] = {}
    try:
        for case in cases:
            for name, rounds in _compare_in_turns(case, site.package, args.rounds):
                results[name] = rounds
                console.print(f"{name}: measured")
    finally:  # write what was measured, even if the rest is missing
        if results:
            print_figures(console, results)
            report_fields = as_json(results, {**site.conditions, "generator": generator})
            write(args.out, "networks", report_fields, console)
    return 0


def _build(case: NetworkCase, console: Console) -> None:
    """Write a network and adopt it, once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = FOLDER / case.name
    if (folder / "1" / MANIFEST_FILE).exists():
        created = manifest_of(folder / "1").created_at
        console.print(f"{case.name}: adopted {created:%Y-%m-%d %H:%M} UTC; anew: rm -r {folder}")
        return
    console.print(f"{case.name}: building and adopting it, which takes some minutes")
    (FOLDER / "labels.txt").write_text("".join(f"class {at}\n" for at in range(CLASSES)))
    run("loadtests.networks.definitions", case.name, str(FOLDER))
    adopt = ("adopt", str(FOLDER / f"{case.name}.pt2"), "--name", case.name, "--version", "1")
    run("export.__main__", *adopt, "--out", str(FOLDER), *case.adopt)


def _compare_in_turns(
    case: NetworkCase, package: Path | None, rounds: int
) -> Iterator[tuple[str, list[Round]]]:
    """Yield a title and the rounds for each number of connections."""
    bodies = _bodies(case)
    specs = _specs(case, package)
    paths = {OURS: f"/models/{case.name}/predict", ONNX: case.path}
    with Fleet() as fleet, tempfile.TemporaryDirectory() as scratch:
        answers: dict[str, list[Scores]] = {}
        files = {name: Path(scratch) / name for name in specs}
        for name, spec in specs.items():
            fleet.start(spec)
            _requests(case, paths[name], bodies, ours=name == OURS).write(files[name])
            with fleet.awake(spec) as server:
                first = bodies[:COMPARED]
                answers[name] = [_answer(server, paths[name], case, body) for body in first]
        _check(case, *answers.values())
        counts = dict.fromkeys(specs, COMPARED)
        for connections in CONNECTIONS:
            results: list[Round] = []
            for number in range(rounds + 1):  # the first is the warm-up
                plan = wrk.LoadPlan(connections, TURN_S if number else WARM_UP_S)
                figures: dict[str, TurnFigures] = {}
                for name in turns(list(specs), number):
                    with fleet.awake(specs[name]) as server:
                        figures[name], of_wrk = load_server(server, files[name], counts[name], plan)
                    counts[name] += of_wrk.sent
                results += [figures] if number else []
                if case.media_type != OCTETS and max(counts.values()) > case.different:
                    raise NetworkError(
                        f"{case.title}: all {case.different} different requests are used in round "
                        f"{number}: give fewer --rounds"
                    )
            yield f"{case.title}, {connections} connection(s)", results


def _specs(case: NetworkCase, package: Path | None) -> dict[str, ServerSpec]:
    environment = (
        ("PYTHONPATH", str(ROOT)),
        ("NETWORK", str(FOLDER / f"{case.name}.onnx")),
        ("PORT", "{port}"),
        ("ORT_DISABLE_TELEMETRY", "1"),
    )
    command = (sys.executable, str(Path(__file__).with_name("peer.py")))
    return {
        OURS: own_spec(TITLES[OURS], FOLDER / case.name / "1", package, None),
        ONNX: ServerSpec(TITLES[ONNX], command, environment, "/openapi.json"),
    }


def _bodies(case: NetworkCase) -> list[bytes]:
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


def _ours(case: NetworkCase, body: bytes) -> bytes:
    return b'{"input": ' + body + b"}" if case.media_type == JSON else body


def _requests(case: NetworkCase, path: str, bodies: Sequence[bytes], *, ours: bool) -> Bodies:
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
    return Bodies("binary" if is_binary else "none", tuple(templates), order, 0)


def _answer(server: RunningServer, path: str, case: NetworkCase, body: bytes) -> Scores:
    """Return the scores in one answer, by class."""
    request = _ours(case, body) if path != case.path else body
    reply = exchange(server.url, "POST", path, {"Content-Type": case.media_type}, request)
    if reply.status != 200:
        raise NetworkError(f"{server.name} answered {reply.status}: {reply.body[:300]!r}")
    answer = orjson.loads(reply.body)
    answer = answer.get("prediction", answer)
    if "outputs" in answer:
        answer = {"scores": next(iter(answer["outputs"].values()))}
    names = answer.get("labels") or answer.get("classes") or range(len(answer["scores"]))
    return {str(name): score for name, score in zip(names, answer["scores"], strict=True)}


def _check(case: NetworkCase, ours: Sequence[Scores], theirs: Sequence[Scores]) -> None:
    """Check that both compute the same, as far as both answer with the same classes."""
    for mine, other in zip(ours, theirs, strict=True):
        shared = mine.keys() & other.keys()
        most = max(map(abs, other.values()))
        if not shared or any(abs(mine[each] - other[each]) > case.near * most for each in shared):
            raise NetworkError(f"{case.name}: the servers disagree: {mine} and {other}")
