"""`make page-states`: pictures of the page in each state, wide and narrow, light and dark.

What takes a server long to reach, such as ten minutes of load, is sent to the page in its place.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from app.access.entries import make_key
from export.cli import main as export
from models.catalog import CATALOG
from tests.artifacts import change_manifest
from tests.browser.chromium import PICTURES, chromium
from tests.browser.live_data import send_live
from tests.browser.test_page import serious
from tests.browser.test_try import THREE, draw_three, predict
from tests.e2e.server import Server, running
from tests.text_models import write_text_model

WIDE = 1280
WIDTHS = {WIDE: 800, 360: 740}
SCHEMES = ("light", "dark")
MODELS = PICTURES / "models"  # exported once
STATES = PICTURES / "states"
QUICK = ("--variants", "script", "--max-batch-size", "8")
NOW = 1_800_000_000.0
DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def load_of(name: str, version: int, items: float, compute_ms: float, wait_ms: float) -> Any:
    """A model of a snapshot."""
    return {
        "name": name,
        "version": version,
        "items_per_s": items,
        "computed_per_s": 0.6 * items,
        "batches_per_s": items / 5,
        "batch_items": 3.0 if items else None,
        "queue_items": items / 20,
        "queue_limit_items": 1024,
        "predicted_wait_ms": wait_ms,
        "hit_per_s": 0.3 * items,
        "miss_per_s": 0.6 * items,
        "joined_per_s": 0.1 * items,
        "queue_ms": wait_ms if items else None,
        "compute_ms": compute_ms if items else None,
    }


def total_of(name: str, version: int, requests: int, ms: float, **failed: int) -> Any:
    """What a version has done since the server started."""
    most = requests - sum(failed.values())
    return {
        "name": name,
        "version": version,
        "requests": requests,
        "failed": sum(failed.values()),
        "failed_items": failed,
        "latency_ms": {f"{ms:g}": most - most // 50, f"{10 * ms:g}": most // 50} if most else {},
    }


def snapshots(*, idle: bool = False, seconds: int = 600) -> list[Any]:
    """Ten minutes of a server that has two versions of a model, and is overloaded at the end."""
    sent = []
    ever: dict[str, float] = {}
    for second in range(seconds):
        rate = 0.0 if idle else 1400 + 900 * math.sin(second / 40) + 60 * math.sin(second * 1.7)
        late = rate > 2200
        failed = {"overloaded": rate / 30, "deadline_exceeded": 4.0} if late else {}
        if second % 97 == 0 and not idle:
            failed = {**failed, "backend_failed": 1.0, "rate_limited": 3.0}
        for code, count in failed.items():
            ever[code] = ever.get(code, 0.0) + count
        served = 0 if idle else 1000 * second
        faults = 0 if idle else second // 97
        known = [
            total_of("digits", 3, served // 2, 1.6),
            total_of("digits", 2, served // 3, 2.5, backend_failed=faults, overloaded=served // 99),
            total_of("digits", 1, 700_000, 2.5, backend_failed=3),
            total_of("minilm", 1, served // 100, 63),
        ]
        models = [
            load_of("digits", 3, rate * 0.5, 0.9, 0.4),
            load_of("digits", 2, rate * 0.3, 1.3, 0.6),
            load_of("minilm", 1, rate * 0.01, 48.0, 35.0 if rate else 0.0),
        ]
        sent.append(
            {
                "at": NOW - seconds + second,
                "interval_s": 1.0,
                "ready": True,
                "requests": {
                    "per_s": rate,
                    "in_flight": round(rate / 100),
                    "p50_ms": None if idle else 1.1 + rate / 4000,
                    "p99_ms": None if idle else 9 + (180 if late else 0) + rate / 300,
                    "failed_per_s": failed,
                    "failed_total": {code: round(count) for code, count in ever.items()},
                },
                "models": models,
                "totals": [each for each in known if each["requests"]],
                "replicas": [
                    {
                        "name": f"cpu#{number}",
                        "device": "cpu",
                        "ready": True,
                        "state": "ready",
                        "busy_share": min(1.0, rate / 2400),
                        "items_per_s": rate * 0.4,
                    }
                    for number in range(2)
                ],
                "devices": [],
                "cache": {"bytes": 3_400_000, "limit_bytes": 64 << 20, "entries": 5312},
                "versions": [
                    {"name": each["name"], "version": each["version"], "state": "ready"}
                    for each in models
                ],
            }
        )
    return sent


def status(version: int, state: str, **more: Any) -> dict[str, Any]:
    """A version in the answer to GET /models."""
    empty = {"problem": None, "step": None, "seconds": None, "progress": None}
    return {"version": version, "state": state, **empty, **more}


def listed(name: str, *versions: dict[str, Any], default: bool = False) -> dict[str, Any]:
    """A model in the answer to GET /models."""
    served = [each["version"] for each in versions if each["state"] == "ready"]
    state = "ready" if served else versions[0]["state"]
    newest = served[0] if served else None
    return {
        **{"name": name, "default": default, "state": state},
        **{"version": newest, "versions": list(versions)},
    }


LOADING = [
    listed("minilm", status(1, "loading", step="warm", seconds=12.4, progress=0.6)),
    listed("pairwise", status(1, "loading")),
    listed("digits", status(2, "ready"), status(1, "unloaded"), default=True),
]
FAILED = [
    listed(
        "digits",
        status(3, "failed", problem=f"digits/3: script.pt has SHA-256 {DIGEST}, the manifest says "
               f"{DIGEST[::-1]}"),
        status(2, "ready"),
        default=True,
    ),
    listed("shapes", status(1, "failed", problem="shapes/1: openvino is not installed: pip install "
                            "'torchlane[openvino]'")),
]  # fmt: skip


MIB = 1 << 20
MANY = [
    {
        **listed(
            "digits",
            status(3, "ready", memory_bytes=14 * MIB),
            status(2, "ready", memory_bytes=15 * MIB),
            status(1, "unloaded"),
            default=True,
        ),
        "weights": {
            "versions": [{"version": 2, "share": 0.9}, {"version": 3, "share": 0.1}],
            "problem": None,
        },
        "release": {
            **{"to": 3, "old": 2, "state": "running", "step": 2, "steps": [1, 10, 50, 100]},
            **{"percent": 10, "seconds": 75.2, "reason": None, "problem": None},
        },
        "shadow": {
            **{"version": 3, "share": 0.1, "problem": None, "compared": 1234, "agreement": 0.9943},
        },
    },
    {
        **listed("embed", status(2, "ready", memory_bytes=91 * MIB), status(1, "ready")),
        "weights": {"versions": [{"version": 1, "share": 1}], "problem": None},
        "release": {
            **{"to": 2, "old": 1, "state": "rolled_back", "step": 1, "steps": [1, 100]},
            **{"percent": 0, "seconds": 9.0, "problem": None},
            "reason": "version 2 agreed with the old version on 49 of 80 items (0.613), less than "
            "agreement_below = 0.98",
        },
    },
    listed("minilm", status(1, "ready", memory_bytes=131 * MIB, idle_s=312.0)),
    listed("pairwise", status(1, "cold", left_s=5.2)),
    listed("segments", status(1, "loading", seconds=2.1, left_s=3.4)),
    listed("shapes", status(1, "cold")),
]


class Visit:
    """A page of a server.

    Args:
        page: the page, which is still empty.
        server: a server without keys, with the models of `MODELS`.
        guarded: the address of one that asks for keys.
    """

    def __init__(self, page: Page, server: Server, guarded: Server) -> None:
        self.page = page
        self.server = server
        self.guarded = guarded

    def open(self, path: str = "/") -> Page:
        """Open a page of the server."""
        self.page.goto(self.server.url + path)
        return self.page

    def choose(self, model: str) -> Page:
        """Open Try with a model, and wait for the answer to its example."""
        page = self.open()
        expect(page.get_by_role("region", name="Example")).to_be_visible()
        page.get_by_label("Model", exact=True).select_option(model)
        expect(page.get_by_role("region", name="Example")).to_contain_text(model)
        return page

    def models(self, models: list[dict[str, Any]]) -> Page:
        """Open Models where the server has these models."""
        body = json.dumps({"models": models})
        self.page.route("**/models", lambda route: route.fulfill(body=body))
        return self.open("/#models")

    def watch(self, sent: list[Any], *, ends: bool = False) -> Page:
        """Open Watch with this live data."""
        send_live(self.page, sent, ends=ends)
        page = self.open("/#watch")
        expect(page.locator("figure canvas").first).to_be_visible()
        return page


def first_visit(visit: Visit) -> None:
    page = visit.open()
    expect(page.get_by_role("region", name="Example")).to_be_visible()


def answered(visit: Visit) -> None:
    first_visit(visit)
    draw_three(visit.page)
    predict(visit.page)


def batch(visit: Visit) -> None:
    first_visit(visit)
    visit.page.get_by_label("Choose pictures").set_input_files([THREE, THREE])
    predict(visit.page)


def detector(visit: Visit) -> None:
    visit.choose("shapes")


def text(visit: Visit) -> None:
    visit.choose("embed")


def numbers(visit: Visit) -> None:
    visit.choose("pairwise")


def error(visit: Visit) -> None:
    page = visit.choose("pairwise")
    page.get_by_role("textbox").first.fill("[1, 2, 3]")
    page.get_by_role("button", name="Predict").click()
    expect(page.get_by_role("alert").first).to_be_visible()


def loading(visit: Visit) -> None:
    page = visit.models(LOADING)
    expect(page.get_by_role("progressbar")).to_be_visible()


def failed(visit: Visit) -> None:
    page = visit.models(FAILED)
    expect(page.get_by_text("failed").first).to_be_visible()


def many(visit: Visit) -> None:
    send_live(visit.page, snapshots(seconds=60))
    page = visit.models(MANY)
    expect(page.get_by_text("agrees on").first).to_be_visible()
    expect(page.get_by_role("row", name="slowest")).to_be_visible()


def error_codes(visit: Visit) -> None:
    page = visit.watch(snapshots())
    page.get_by_text("All error codes").click()


def no_model(visit: Visit) -> None:
    page = visit.models([])
    expect(page.get_by_text("no models").first).to_be_visible()


def try_without_models(visit: Visit) -> None:
    visit.models([])
    visit.page.get_by_role("tab", name="Try").click()
    expect(visit.page.get_by_text("no models").first).to_be_visible()


def models(visit: Visit) -> None:
    page = visit.open("/#models")
    page.get_by_text("Inputs, limits and plan").first.click()
    expect(page.locator("#panel-models dl").first).to_be_visible()


def under_load(visit: Visit) -> None:
    visit.watch(snapshots())


def idle(visit: Visit) -> None:
    visit.watch(snapshots(idle=True, seconds=40))


def offline(visit: Visit) -> None:
    page = visit.watch(snapshots(), ends=True)
    expect(page.get_by_role("status").first).to_contain_text("Disconnected")


def keys(visit: Visit) -> None:
    visit.page.goto(visit.guarded.url)
    expect(visit.page.get_by_role("dialog")).to_be_visible()


def keys_explained(visit: Visit) -> None:
    visit.open("/#keys")
    expect(visit.page.get_by_text("torchlane keys NAME")).to_be_visible()


def docs(visit: Visit) -> None:
    page = visit.open("/docs")
    expect(page.locator(".opblock").first).to_be_visible()


def unknown_path(visit: Visit) -> None:
    visit.open("/nowhere")


EACH: tuple[Callable[[Visit], None], ...] = (
    *(first_visit, answered, batch, detector, text, numbers, error, try_without_models),
    *(
        under_load,
        error_codes,
        idle,
        offline,
        models,
        loading,
        failed,
        many,
        no_model,
        keys,
        keys_explained,
        docs,
        unknown_path,
    ),
)


def prepare() -> None:
    """Export the models once."""
    for name in ("digits", "shapes", "pairwise"):
        if not (MODELS / name).exists() and export([name, *QUICK, "--out", str(MODELS)], CATALOG):
            raise SystemExit(f"{name} could not be exported")
    if not (MODELS / "embed").exists():
        write_text_model(MODELS, "embed", "embed", 4)
        example = {"example": "A dog in London", "description": "Texts to vectors of four numbers."}
        change_manifest(MODELS / "embed" / "1", lambda manifest: manifest.update(example))


def main(names: list[str]) -> None:
    """Take the pictures of these states, or of all; fails if axe finds a serious problem."""
    prepare()
    STATES.mkdir(parents=True, exist_ok=True)
    problems = []
    began = time.monotonic()
    _, line = make_key("somebody", ["predict"])
    with (
        tempfile.TemporaryDirectory() as folder,
        running(MODELS, Path(folder) / "log", default_model="digits") as server,
        running(MODELS, Path(folder) / "keys", default_model="digits", api_keys=line) as guarded,
        chromium() as browser,
    ):
        for take in EACH:
            if names and take.__name__ not in names:
                continue
            for width, height in WIDTHS.items():
                for scheme in SCHEMES:
                    context = browser.new_context(
                        viewport={"width": width, "height": height},
                        color_scheme="dark" if scheme == "dark" else "light",
                        locale="en-GB",
                    )
                    page = context.new_page()
                    take(Visit(page, server, guarded))
                    page.wait_for_timeout(200)  # what is drawn a moment later
                    page.screenshot(
                        path=STATES / f"{take.__name__}-{width}-{scheme}.png", full_page=True
                    )
                    found = serious(Axe(), page)
                    problems += [f"{take.__name__}, {width}, {scheme}: {each}" for each in found]
                    context.close()
    sys.stdout.write("\n".join([*problems, f"{STATES}: {time.monotonic() - began:.0f} s\n"]))
    if problems:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
