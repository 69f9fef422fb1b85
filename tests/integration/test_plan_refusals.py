"""Artifacts that must not be served: missing, altered, for another machine, or wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from export.artifact import digest_of
from models.integrity import read_artifact
from models.tensors import EncodedArray
from tests.artifacts import scripted, small_module, write_manifest, write_small
from tests.integration.harness import serving
from tests.integration.small import foreign, info, reason


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (
            {"variant": "trace"},
            *("small/1 has no variant 'trace' (TORCHLANE_VARIANT); it has: script, bf16",),
        ),
        (
            {"variant": "script", "plan_precision": "bf16"},
            *("variant 'script' (TORCHLANE_VARIANT) computes in float32, TORCHLANE_PLAN_PREC",),
        ),
    ],
)
async def test_a_missing_variant_or_precision_prevents_readiness(
    tmp_path: Path, chosen: dict[str, Any], says: str
) -> None:
    write_small(tmp_path, ["script", "bf16"])
    async with serving(tmp_path, wait_ready=False, **chosen) as api:
        assert says in await reason(api)
        found = await info(api)
        assert (found["state"], found["replicas"][0]["plan"]) == ("failed", None)


async def test_a_missing_pinned_variant_never_serves_an_older_version(tmp_path: Path) -> None:
    write_small(tmp_path, ["script", "bf16"])
    write_small(tmp_path, ["script"], version=2)
    async with serving(tmp_path, wait_ready=False, variant="bf16") as api:
        assert "small/2 has no variant 'bf16'" in await reason(api)


async def test_an_unusable_pinned_variant_never_serves_older_versions(tmp_path: Path) -> None:
    write_small(tmp_path, ["script"])
    write_small(tmp_path, ["script"], version=2, changed={"compiled": foreign()})
    async with serving(tmp_path, wait_ready=False, devices="cpu", variant="compiled") as api:
        assert "compiled for riscv64" in await reason(api)


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sha256", "script.pt", "bf16.pt"])
async def test_one_flipped_byte_in_any_file_is_rejected(tmp_path: Path, name: str) -> None:
    folder = write_small(tmp_path, ["script", "bf16"])
    before = digest_of(folder / name).sha256
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 3] ^= 0x10
    (folder / name).write_bytes(data)
    async with serving(tmp_path, wait_ready=False) as api:
        found = await reason(api)
    assert name in found
    assert str(tmp_path) not in found
    digests = re.findall(r"\b[0-9a-f]{64}\b", found)
    if name != "manifest.sha256":
        assert digests == [digest_of(folder / name).sha256, before]


async def test_an_altered_golden_example_is_detected(tmp_path: Path) -> None:
    index, folder = 2, write_small(tmp_path, ["script", "int8"])
    manifest = read_artifact(folder).manifest
    content = json.loads(manifest.model_dump_json())
    wrong = manifest.golden[index].outputs["y"].array() + np.array([0, 0, 0.01], np.float32)
    content["golden"][index]["outputs"]["y"] = EncodedArray.of(wrong).model_dump()
    write_manifest(folder, type(manifest).model_validate(content))
    read_artifact(folder)  # intact, as far as digests can tell
    async with serving(tmp_path, wait_ready=False, devices="cpu") as api:
        assert f"golden example {index} in a batch of 1: output 'y' differs by" in await reason(api)


class Slow(nn.Module):
    """Like another model alone or in a pair, but slower; wrong in larger batches."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, picture: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        for _ in range(1000):
            picture = picture * 1.0
        made: torch.Tensor = self.inner(picture, shift)
        return made + 0.5 if picture.shape[0] > 2 else made


async def test_a_wrong_variant_is_detected_even_if_unused(tmp_path: Path) -> None:
    write_small(tmp_path, ["script"], changed={"slow": scripted(Slow(small_module()), "slow")})
    async with serving(tmp_path, wait_ready=False, devices="cpu", max_batch_size=4) as api:
        assert "in a batch of 4: output 'y' differs by up to 0.5 " in await reason(api)
