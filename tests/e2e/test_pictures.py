"""The most expensive pictures that are allowed, all at once, and what other callers notice of it.

    python -m pytest -s -m soak tests/e2e/test_pictures.py

prints the table of docs/security.md.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import json
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.inputs.preprocess import preprocess
from models.manifest import Manifest
from models.tensors import TensorSpec
from tests.artifacts import write_artifact
from tests.e2e.server import Server, running
from tests.unit.models.pictures import exif_data, jpeg, noise, png, webp

ATTACKERS = 8
SIDE = 2000  # MAX_PIXELS in all
COLOURS = {
    "grey": (0, (1, 2, 4, 8, 16)),
    "RGB": (2, (8, 16)),
    "palette": (3, (1, 2, 4, 8)),
    "grey and alpha": (4, (8, 16)),
    "RGBA": (6, (8, 16)),
}
UNCACHED = {"cache_bytes": "0"}  # else each picture would be decoded once
REPLICAS = "torchlane_model_replicas"
PREDICT = "/models/digits/predict"
BATCH = "/models/digits/batch-predict"
LARGE = "/models/brightness/predict"
LARGE_SHAPE = (3, 224, 224)


class Brightness(nn.Module):
    """[n, 3, 224, 224] -> mean and maximum [n, 2]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        flat = x.flatten(1)
        return torch.stack((flat.mean(dim=1), flat.amax(dim=1)), dim=1)


@pytest.fixture
def models(repository: Path, tmp_path: Path) -> Path:
    """A model of small pictures and one of large ones."""
    shutil.copytree(repository / "digits", tmp_path / "models/digits")
    how = PicturePreprocess(
        width=224, height=224, channels=3, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)
    )
    write_artifact(
        tmp_path / "models",
        "brightness",
        module=Brightness(),
        inputs=(TensorSpec(name="x", dtype="float32", shape=(-1, *LARGE_SHAPE)),),
        codec=ImageCodecSpec(preprocess=how),
        golden=[{"x": np.full(LARGE_SHAPE, 0.5, np.float32)}],
    )
    return tmp_path / "models"


def worst() -> Iterator[tuple[str, bytes]]:
    """The most expensive picture of each kind that is accepted."""
    for name, (colour, depths) in COLOURS.items():
        for depth, interlaced in itertools.product(depths, (False, True)):
            how = ", interlaced" if interlaced else ""
            made = png((SIDE, SIDE), colour, depth, interlaced=interlaced)
            yield f"PNG {name} {depth} bit{how}", made
    for mode, progressive in itertools.product(("L", "RGB", "CMYK"), (False, True)):
        channels = len(Image.new(mode, (1, 1)).getbands())
        pixels = noise(SIDE // 8, SIDE // 8, channels).squeeze()
        picture = Image.fromarray(pixels, mode).resize((SIDE, SIDE))
        how = ", progressive" if progressive else ""
        yield f"JPEG {mode}{how}", jpeg(picture, progressive=progressive, quality=95)
    photograph = Image.fromarray(noise(875, 875)).resize((7000, 7000), Image.Resampling.NEAREST)
    yield "JPEG RGB of 49 million pixels", jpeg(photograph, quality=50)
    for channels, lossless in itertools.product((3, 4), (True, False)):
        picture = Image.fromarray(noise(SIDE, SIDE, channels))
        how = "lossless" if lossless else "lossy"
        yield f"WebP {picture.mode}, {how}", webp(picture, lossless=lossless, quality=95, method=0)
    entries = exif_data("<", *((0x8000 + tag, 3, 1) for tag in range(2600)))
    yield "JPEG of 64 pixels, 2,600 EXIF entries", jpeg(Image.new("L", (8, 8)), exif=entries)


def ask(
    connection: http.client.HTTPConnection, path: str, body: bytes = b"", kind: str = ""
) -> tuple[int, bytes]:
    """Status and body of an answer."""
    headers = {"Content-Type": kind} if kind else {}
    connection.request("POST" if kind else "GET", path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


@contextlib.contextmanager
def attack(port: int) -> Iterator[list[int]]:
    """Send the worst pictures over and over; yields the statuses of all answers."""
    files = [made for _, made in worst()]
    one = b'"%s"' % base64.b64encode(png((SIDE, SIDE), 6, 16))
    tiny = png((1, 1), 2, 8)
    four = b'{"inputs": [%s]}' % b",".join([one] * 4)
    statuses: list[int] = []
    over = threading.Event()

    def send(index: int) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as sent:
            for at in itertools.count(index * 5):
                if over.is_set():
                    return
                if at % 7 == 0:
                    status, _ = ask(sent, BATCH, four, "application/json")
                elif at % 7 == 1:
                    status, _ = ask(sent, LARGE, tiny, "image/png")
                else:
                    status, _ = ask(sent, PREDICT, files[at % len(files)], "image/png")
                statuses.append(status)

    threads = [threading.Thread(target=send, args=(index,)) for index in range(ATTACKERS)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        over.set()
        for thread in threads:
            thread.join()


def latencies(server: Server, seconds: float) -> dict[str, float]:
    """The 99th percentile of each kind of request, in seconds."""
    taken: dict[str, list[float]] = {"/health/ready": [], "/health/live": [], PREDICT: []}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as to:
        end = time.monotonic() + seconds
        for number in itertools.count():
            if time.monotonic() > end:
                break
            numbers = json.dumps({"input": [number / 1000] * 1024}).encode()
            for path, times in taken.items():
                began = time.perf_counter()
                sent = (numbers, "application/json") if path == PREDICT else (b"", "")
                status, _ = ask(to, path, *sent)
                times.append(time.perf_counter() - began)
                assert status == 200
            time.sleep(0.01)
    return {path: statistics.quantiles(times, n=100)[-1] for path, times in taken.items()}


@pytest.mark.soak  # measures; tests/integration/test_off_loop.py has what it needs
@pytest.mark.parametrize("workers", ["1", "2"])
def test_slow_pictures_do_not_delay_other_requests(
    models: Path, tmp_path: Path, workers: str
) -> None:
    with running(models, tmp_path / "log", hang_s="2", workers=workers, **UNCACHED) as server:
        server.wait_for_metric(REPLICAS, lambda n: n == 2 * int(workers))  # in every worker
        alone = latencies(server, 1)
        with attack(server.port) as statuses:
            beside = latencies(server, 12)
        sys.stdout.write(f"\n{workers} workers, {len(statuses)} pictures, p99 without and with:\n")
        for path, p99_s in beside.items():
            sys.stdout.write(f"| {path} | {alone[path] * 1e3:.0f} ms | {p99_s * 1e3:.0f} ms |\n")
        assert set(statuses) <= {200, 503, 504}
        assert 200 in statuses
        assert beside["/health/ready"] < 0.25
        for path in ("/health/live", PREDICT):
            assert beside[path] - alone[path] < 0.1
        assert server.process.poll() is None


@pytest.mark.soak
def test_decoding_time_of_the_slowest_pictures(repository: Path) -> None:
    manifest = Manifest.model_validate_json((repository / "digits/1/manifest.json").read_text())
    how = manifest.codec.preprocess  # type: ignore[union-attr]
    for name, made in worst():
        taken = []
        for _ in range(5):
            began = time.perf_counter()
            preprocess(made, how)
            taken.append(time.perf_counter() - began)
        size, ms = len(made) / 1024, min(taken) * 1e3
        sys.stdout.write(f"| {name} | {size:,.0f} KiB | {ms:.0f} ms |\n")
        assert min(taken) < 2
