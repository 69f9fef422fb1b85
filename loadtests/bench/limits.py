"""Measures parsing and the forward alone: no HTTP, no batcher, one thread, our plan's forward."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import simdjson

from loadtests.bench.own_models import weights
from loadtests.bench.servers import pinned
from loadtests.bench.workloads import BATCH_ITEMS, LimitKind
from loadtests.traffic.sentences import sentence
from models.tensors import Array

LIMIT_TEXTS = 256


Limit = tuple[float, float]  # requests per second, and seconds of processor time per request


def limit(kind: LimitKind, folder: Path, core: int | None, seconds: float = 1.0) -> Limit:
    """Measure a separate process on one core.

    Args:
        kind: `batch` in JSON, one `image` in raw bytes, or one `text`, computed in batches of texts
            of similar lengths; `encoder`: the same with sentence-transformers.
        folder: an artifact.
        core: the core to use; None: any.
        seconds: the measured time.
    """
    context = multiprocessing.get_context("spawn")
    with pinned(core), ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_measured, kind, folder, seconds).result()


def _measured(kind: LimitKind, folder: Path, seconds: float) -> Limit:
    # torch only in this process
    from loadtests.bench.peers.encoder import Encoder  # noqa: PLC0415
    from loadtests.bench.peers.model import Model  # noqa: PLC0415

    if kind in ("text", "encoder"):
        texts = np.array([*map(sentence, range(LIMIT_TEXTS))])
        encode = Encoder(folder, "plan").vectors if kind == "text" else _plain_encode()
        per_s, cpu_s = _per_s(lambda: encode(texts), seconds)
        return LIMIT_TEXTS * per_s, cpu_s / LIMIT_TEXTS
    model = Model(folder, "plan")
    rng = np.random.default_rng(0)
    items = np.round(rng.normal(0, 1, (BATCH_ITEMS, *model.shape)), 5)
    if kind == "image":
        content = items[0].astype("<f4").tobytes()
        return _per_s(lambda: model.scores(model.array(content)), seconds)
    body = orjson.dumps({"inputs": items.tolist()})
    parses = (_by_orjson, _by_simdjson)
    return max(
        _per_s(lambda parse=parse: model.scores(parse(body).reshape(items.shape)), seconds)  # type: ignore[misc]
        for parse in parses
    )


def _plain_encode() -> Callable[[Array], object]:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415  # imports torch

    model = SentenceTransformer(str(weights()), device="cpu")
    return lambda texts: model.encode(texts.tolist(), show_progress_bar=False)


def _by_orjson(body: bytes) -> Array:
    return np.array(orjson.loads(body)["inputs"], np.float32)


def _by_simdjson(body: bytes) -> Array:
    parsed: Any = simdjson.Parser().parse(body)
    numbers = parsed["inputs"].as_buffer(of_type="d")
    return np.frombuffer(numbers, np.float64).astype(np.float32)


def _per_s(run: Callable[[], object], seconds: float) -> Limit:
    for _ in range(3):
        run()
    started, before_s, runs = time.perf_counter(), time.process_time(), 0
    while (taken := time.perf_counter() - started) < seconds:
        run()
        runs += 1
    return runs / taken, (time.process_time() - before_s) / runs
