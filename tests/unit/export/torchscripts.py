"""Files as others make them: fast TorchScript models, and TorchServe archives."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from export.adoption import adopt
from export.adoption.adopt import Adoption
from export.options.adoption import add_adopt

X3 = ("--name", "sums", "--input", "float32[-1,3]")
PICTURE = ("--name", "light", "--input", "float32[-1,3,8,6]", "--codec", "image")


class Sums(nn.Module):
    """x [n, 3] -> [n, 2]: the sum of each row, and less than nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T


class Brightness(nn.Module):
    """A picture [n, c, h, w] -> [n, 2]: dark or light, by its mean."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(dim=(1, 2, 3))
        return torch.stack([-mean, mean], dim=1)


def inline(body: str, returns: str = "Tensor", arguments: str = "x: Tensor") -> Any:
    """A TorchScript module without weights, whose forward has this body."""

    class Inline(nn.Module):
        pass

    module: Any = torch.jit.script(Inline()).eval()
    module.define(f"def forward(self, {arguments}) -> {returns}:\n    {body}\n")
    return module


def saved(module: nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return buffer.getvalue()


def traced(module: nn.Module, *example: torch.Tensor) -> bytes:
    """What plain `torch.jit.trace(...).save` writes."""
    trace: Callable[..., Any] = torch.jit.trace  # untyped in torch
    return saved(trace(module, example, check_trace=False))  # the check imports much


def scripted(module: nn.Module) -> bytes:
    return saved(torch.jit.script(module.eval()))


def pickled(value: object, *, is_zip: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=is_zip)
    return buffer.getvalue()


SUMS = traced(Sums(), torch.zeros(1, 3))
BRIGHTNESS = scripted(Brightness())
MODEL = {"modelName": "sums", "serializedFile": "sums.pt", "handler": "base_handler"}


def mar(files: Mapping[str, bytes], model: object = None, manifest: bytes | None = None) -> bytes:
    """A handmade archive; `model` is that part of the manifest, `manifest` the whole."""
    manifest = manifest or json.dumps({"model": MODEL if model is None else model}).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("MAR-INF/MANIFEST.json", manifest)
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def archived(folder: Path, files: Mapping[str, bytes], *options: str) -> Path:
    """The archive that the public torch-model-archiver makes of files, in a process of its own.

    Args:
        folder: where the files and the archive go.
        files: name -> content; the first one is the serialized model.
        options: further ones, such as --handler.
    """
    for name, content in files.items():
        (folder / name).write_bytes(content)
    first, *others = files
    command = [sys.executable, "-W", "ignore", "-m", "model_archiver.model_packaging"]
    command += ["--model-name", "packed", "--version", "1.0", "--serialized-file", first, *options]
    command += ["--extra-files", ",".join(others)] if others else []
    environment = os.environ | {"TMPDIR": str(folder)}  # it empties a folder there
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return folder / "packed.mar"


def run(file: Path, *arguments: object) -> Adoption:
    """Adopt a file as the command line does."""
    parser = argparse.ArgumentParser()
    add_adopt(parser)
    return adopt.adopt(parser.parse_args([str(file), *map(str, arguments)]))


def written(folder: Path, data: bytes, name: str = "model.pt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path
