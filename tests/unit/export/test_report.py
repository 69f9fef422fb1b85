"""The table that an export ends with."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from export.report import table_of
from tests.unit.models.manifests import make_manifest


def printed(accuracy: float | None) -> str:
    variant = make_manifest().variants["script"].model_copy(update={"accuracy": accuracy})
    manifest = make_manifest().model_copy(
        update={"accuracy": accuracy, "variants": {"script": variant}}
    )
    out = io.StringIO()
    Console(file=out, width=160).print(table_of(manifest, Path("/some/where")))
    return out.getvalue()


def test_every_fact_has_its_row() -> None:
    table = printed(0.98765)
    for fact in (
        "tiny version 3",
        "script.pt, 12 bytes, float32",
        "torch.jit.script, torch 2.13.0",
        "largest difference 1.0e-07, batch 1 to 2 and golden (allowed: 1e-05 + 0.0001 * |value|)",
        "script: held-out accuracy",
        "eager: held-out accuracy",
        "0.9877",
        "golden examples",
        "/some/where",
    ):
        assert fact in table


def test_no_accuracy_no_row() -> None:
    assert "accuracy" not in printed(None)
