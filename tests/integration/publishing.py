"""Versions whose answers tell which version gave them, and how they are published."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from app.serving.lifecycle import Lifecycle
from tests.artifacts import write_artifact
from tests.integration.harness import Api


class Times(nn.Module):
    """x [n, 2] -> x times a constant: the answer tells which version gave it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(float(factor)), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Publisher:
    """Puts versions into a repository as export does: there as a whole, or not at all."""

    def __init__(self, root: Path) -> None:
        self.repository = root / "repository"
        self.repository.mkdir()
        self._staging = root / "staging"

    def publish(self, version: int, name: str = "m", **more: Any) -> Path:
        made = write_artifact(self._staging, name, version, Times(version), **more)
        folder = self.repository / name / str(version)
        folder.parent.mkdir(exist_ok=True)
        return made.rename(folder)

    def publish_wrong(self, version: int) -> Path:
        """Its golden examples fail."""
        return self.publish(version, expected=[{"y": np.array([9.0, 9.0], np.float32)}])


def lifecycle(api: Api) -> Lifecycle:
    found: Lifecycle = api.app.state.lifecycle
    return found


async def answered_by(api: Api, path: str = "/predict", x: float = 1.0) -> int:
    """The version that answers."""
    answer = await api.client.post(path, json={"input": [x, 0]})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["prediction"]["outputs"]["y"][0] == x * body["version"]
    return int(body["version"])


async def states(api: Api, name: str = "m") -> dict[int, str]:
    info = (await api.client.get(f"/models/{name}")).json()
    return {each["version"]: each["state"] for each in info.get("versions", ())}


async def eventually(wanted: Callable[[], Any], value: object) -> None:
    async with asyncio.timeout(60):
        while await wanted() != value:
            await asyncio.sleep(0.01)
