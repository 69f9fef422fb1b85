"""What the models of docs/gallery.md answer without the server: eager, or by their own library."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from app.types import Array

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CELLS: dict[object, object] = {None: float("nan"), "Roma": 1}  # of cities.txt


def eager(name: str, request: str, folder: Path) -> dict[str, Array]:
    """The outputs for the one item of a recipe's request.

    Args:
        name: the model.
        request: its shell commands, which have run in `folder`.
        folder: has what the recipes made.
    """
    with torch.inference_mode():
        if name in OTHERS:
            answers: Any = OTHERS[name](folder)
        else:
            program = torch.export.load(folder / f"{name}.pt2")
            assert program.example_inputs is not None
            dtypes = [example.dtype for example in program.example_inputs[0]]
            answers = program.module()(*inputs(name, request, folder, dtypes))
    named: dict[str, torch.Tensor]
    named = answers if isinstance(answers, dict) else {"output": answers}
    return {key: value[0].numpy() for key, value in named.items()}


def inputs(name: str, request: str, folder: Path, dtypes: list[torch.dtype]) -> list[torch.Tensor]:
    """The tensors of a request, of one item."""
    if name in SIDES:
        return [picture(folder, SIDES[name])]
    if name == "classifier":
        return [picture(folder, 64, shorter=73, normal=IMAGENET)]
    if name == "speech":
        return [sound(folder / "hum.flac", 8000)]
    text = re.search(r"-d '(.*)'", request) or re.search(r"-d @(\S+)", request)
    assert text is not None
    sent = json.loads(text[1] if text[1].startswith("{") else (folder / text[1]).read_text())
    values = sent["input"].values() if isinstance(sent["input"], dict) else [sent["input"]]
    rows = [value if isinstance(value, list) else CELLS.get(value, value) for value in values]
    return [torch.tensor([row], dtype=dtype) for row, dtype in zip(rows, dtypes, strict=True)]


def picture(
    folder: Path,
    side: int,
    *,
    shorter: int = 0,
    normal: tuple[tuple[float, ...], tuple[float, ...]] = ((0.0,), (1.0,)),
) -> torch.Tensor:
    """docs/three.png, a square, scaled by Pillow to `shorter` pixels, and its middle."""
    size = shorter or side
    with Image.open(folder / "docs/three.png") as file:
        scaled = file.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    start = round((size - side) / 2)
    cut = np.asarray(scaled, np.float32)[start : start + side, start : start + side] / 255
    mean, std = (np.array(each, np.float32) for each in normal)
    return torch.from_numpy((cut - mean) / std).permute(2, 0, 1)[None].float()


def sound(file: Path, rate: int) -> torch.Tensor:
    """The samples of a file at another rate, by the libraries that the server has."""
    import soundfile  # noqa: PLC0415
    import soxr  # noqa: PLC0415

    samples, from_rate = soundfile.read(file, dtype="float32")
    return torch.from_numpy(soxr.resample(samples, from_rate, rate))[None]


load: Any = torch.jit.load  # has no types


def tokens(folder: Path, text: str) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")


def encoder(folder: Path) -> torch.Tensor:
    """The mean of the last states, of length 1."""
    model = transformers.AutoModel.from_pretrained(folder / "encoder")
    states = model(**tokens(folder / "encoder", "cats purr")).last_hidden_state
    return torch.nn.functional.normalize(states.mean(1))


def sentiment(folder: Path) -> torch.Tensor:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "sentiment")
    return torch.softmax(model(**tokens(folder / "sentiment", "cats purr")).logits, 1)


def tagger(folder: Path) -> torch.Tensor:
    """The scores of B-PLACE, where that is the better label."""
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder / "tagger")
    logits = model(**tokens(folder / "tagger", "dogs bark in london")).logits
    scores = torch.softmax(logits, 2)[..., 1]
    return scores[scores > 0.5][None]


def clip_text(folder: Path) -> torch.Tensor:
    model = transformers.CLIPModel.from_pretrained(folder / "clip")
    return torch.nn.functional.normalize(
        model.get_text_features(**tokens(folder / "clip", "cats purr")).pooler_output
    )


def clip_vision(folder: Path) -> torch.Tensor:
    reader: Any = transformers.AutoImageProcessor
    processor = reader.from_pretrained(folder / "clip", backend="pil")
    model = transformers.CLIPModel.from_pretrained(folder / "clip")
    with Image.open(folder / "docs/three.png") as file:
        pixels = processor(file.convert("RGB"), return_tensors="pt")
    return torch.nn.functional.normalize(model.get_image_features(**pixels).pooler_output)


def archived(folder: Path) -> torch.Tensor:
    module = load(str(folder / "archived.pt"))
    return torch.softmax(module(picture(folder, 224, shorter=256, normal=IMAGENET)), 1)


def ssdlite(folder: Path) -> dict[str, torch.Tensor]:
    import torchvision  # noqa: F401, PLC0415

    module = load(str(folder / "ssdlite.pt"))
    answers: dict[str, torch.Tensor] = module(picture(folder, 320))
    return answers


SIDES = {"segmenter": 32, "detector": 64, "enlarge": 32}
OTHERS: dict[str, Callable[[Path], Any]] = {
    "encoder": encoder,
    "sentiment": sentiment,
    "tagger": tagger,
    "clip-text": clip_text,
    "clip-vision": clip_vision,
    "archived": archived,
    "ssdlite": ssdlite,
}
