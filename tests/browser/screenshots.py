"""`make screenshots`: the pictures of the page that the README shows, of a server under load."""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
from pathlib import Path
from threading import Thread

import httpx
import numpy as np
from PIL import Image
from playwright.sync_api import FloatRect, Page, expect

from loadtests.openloop.address import reach
from loadtests.openloop.generator import TrialLimits, send
from tests.browser.chromium import chromium
from tests.browser.test_try import THREE, draw_three, predict
from tests.e2e.server import running

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHTS = 1280, {"try.png": 655, "watch.png": 770}
MOST_BYTES = 150_000
SECONDS = 75.0
PICTURES = 4000  # that are different; a few of them are asked for most of the time
SIDE = 32  # pixels of a digit's picture


def requests(rng: np.random.Generator, number: int) -> list[bytes]:
    """Pictures of noise, as raw numbers."""
    head = (
        "POST /models/digits/predict HTTP/1.1\r\nHost: loopback\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {SIDE * SIDE * 4}\r\n\r\n"
    ).encode()
    bodies = rng.random((PICTURES, SIDE * SIDE), dtype=np.float32)
    return [head + bodies[min(drawn, PICTURES) - 1].tobytes() for drawn in rng.zipf(1.4, number)]


def load(url: str) -> None:
    """Users that come and go: the rate swings between about 60 and 300 requests/s."""
    rng = np.random.default_rng(7)
    seconds = np.arange(0, SECONDS)
    numbers = rng.poisson(180 + 120 * np.sin(seconds / 9))
    due_s = np.sort(np.repeat(seconds, numbers) + rng.random(numbers.sum()))
    asyncio.run(send(reach(url), due_s, requests(rng, len(due_s)), TrialLimits()))


def keep(page: Page, name: str) -> None:
    """Write a picture with a palette.

    Raises:
        ValueError: if it is too large for a README.
    """
    clip: FloatRect = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHTS[name]}
    with Image.open(io.BytesIO(page.screenshot(clip=clip))) as shot:
        small = shot.convert("RGB").quantize(dither=Image.Dither.NONE)
    IMAGES.mkdir(parents=True, exist_ok=True)
    small.save(IMAGES / name, optimize=True)
    size = (IMAGES / name).stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{name} has {size} bytes, more than {MOST_BYTES}")
    sys.stdout.write(f"docs/images/{name}: {size} bytes\n")


def main() -> None:
    """Make both pictures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running(ROOT / "artifacts", Path(folder) / "log", default_model="digits") as server,
        chromium() as browser,
    ):
        page = browser.new_page(viewport={"width": WIDTH, "height": 800}, locale="en-GB")
        page.goto(server.url)
        httpx.post(
            f"{server.url}/predict", content=THREE.read_bytes()
        )  # the first one takes longer
        draw_three(page)
        predict(page)
        keep(page, "try.png")
        page.get_by_role("tab", name="Watch").click()
        loading = Thread(target=load, args=(server.url,))
        loading.start()
        page.wait_for_timeout((SECONDS - 3) * 1000)
        expect(page.get_by_role("status").first).to_have_text("Live")
        keep(page, "watch.png")
        loading.join()


if __name__ == "__main__":
    main()
