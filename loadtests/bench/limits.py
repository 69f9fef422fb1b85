"""`python -m loadtests.bench.limits KIND FOLDER`: what parsing and the forward alone allow.

No HTTP, no batcher, one thread, the very forward of our plan. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import orjson

from loadtests.bench.workloads import BATCH_ITEMS
from models.tensors import Array

Parse = Callable[[bytes], Array]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.limits")
    parser.add_argument("kind", choices=("batch", "image"))
    parser.add_argument("folder", type=Path, help="an artifact")
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args(arguments)
    from loadtests.bench.peers.model import Model  # noqa: PLC0415  # torch: in this process only

    model = Model(given.folder, "plan")
    rng = np.random.default_rng(0)
    size = BATCH_ITEMS if given.kind == "batch" else 1
    items = np.round(rng.normal(0, 1, (size, *model.shape)), 5).astype(np.float32)
    if given.kind == "image":
        content = items.astype("<f4").tobytes()
        found = {"forward": _per_s(lambda: model.scores(model.array(content)), given.seconds)}
    else:
        body = orjson.dumps({"inputs": np.round(items.astype(np.float64), 5).tolist()})
        found = {
            name: _per_s(_parsed_then_run(parse, body, items.shape, model.scores), given.seconds)
            for name, parse in parsers().items()
        }
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _parsed_then_run(
    parse: Parse, body: bytes, shape: tuple[int, ...], forward: Callable[[Array], object]
) -> Callable[[], object]:
    return lambda: forward(parse(body).reshape(shape))


def parsers() -> dict[str, Parse]:
    """Ways to parse a batch body that are at hand: bytes -> float32 of any shape."""
    found: dict[str, Parse] = {"orjson": _by_orjson}
    if importlib.util.find_spec("simdjson") is not None:
        found["simdjson"] = _by_simdjson()
    return found


def _by_orjson(body: bytes) -> Array:
    return np.array(orjson.loads(body)["inputs"], np.float32)


def _by_simdjson() -> Parse:
    parser = importlib.import_module("simdjson").Parser()

    def parse(body: bytes) -> Array:
        numbers = parser.parse(body)["inputs"].as_buffer(of_type="d")
        return np.frombuffer(numbers, np.float64).astype(np.float32)

    return parse


def _per_s(run: Callable[[], object], seconds: float) -> float:
    """How often it can be run in a second."""
    for _ in range(3):
        run()
    started, runs = time.perf_counter(), 0
    while (taken := time.perf_counter() - started) < seconds:
        run()
        runs += 1
    return runs / taken


if __name__ == "__main__":
    sys.exit(main())
