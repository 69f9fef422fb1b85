"""A detector of circles, squares and triangles in generated pictures of 64x64.

Each shape is found at one point of a 16x16 grid, its centre, where its class scores highest, as in
CenterNet (X. Zhou et al., Objects as Points, arXiv:1904.07850).
"""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw
from pydantic import JsonValue
from torch import nn
from torch.nn import functional

from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.definitions.definition import Definition, HeldOut
from models.definitions.training import Rows, Training
from models.places import Boxes
from models.preprocess import preprocess
from models.tensors import Array, Arrays, TensorSpec

SEED = 21
SIDE = 64  # pixels of a picture
STEP = 4  # pixels from one point of the grid to the next
GRID = SIDE // STEP
ROWS = 16  # most shapes found in a picture
MOST_SHAPES = 4  # in a generated picture
RADIUS = (5, 11)  # of a shape, pixels
SIZE = 32  # pixels, the meaning of a predicted 1
LEAST_SCORE = 0.05  # of a counted shape
LABELS = ("circle", "square", "triangle")
TRAINED_ON, HELD_OUT = 2400, 300
PREPROCESS = PicturePreprocess(width=SIDE, height=SIDE, channels=1, mean=(0.3,), std=(0.25,))


class Found(NamedTuple):
    """The shapes found in each picture; rows after the counted ones are 0.

    Attributes:
        boxes: float32 [n, 16, 4]: left, top, right and bottom edge in pixels.
        scores: float32 [n, 16], 0 to 1.
        classes: int64 [n, 16], indices of LABELS.
        found: int64 [n]: the number of valid rows.
    """

    boxes: torch.Tensor
    scores: torch.Tensor
    classes: torch.Tensor
    found: torch.Tensor


class Shapes(nn.Module):
    """Convolutions to a grid, [n, 1, 64, 64] -> [n, 7, 16, 16], and the shapes at its peaks."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for taken, given, stride in ((1, 16, 2), (16, 32, 2), (32, 32, 1), (32, 32, 1)):
            layers += [
                nn.Conv2d(taken, given, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(given),
                nn.ReLU(),
            ]
        wide = nn.Conv2d(32, 32, 3, padding=2, dilation=2)  # sees 27 pixels: a whole shape
        self.grid = nn.Sequential(*layers, wide, nn.ReLU(), nn.Conv2d(32, len(LABELS) + 4, 1))
        self.rows, self.side, self.step, self.half_size = ROWS, SIDE, STEP, SIZE / 2
        self.least_score = LEAST_SCORE
        at = (torch.arange(GRID, dtype=torch.float32) + 0.5) * STEP
        self.register_buffer("centre_x", at.repeat(GRID))
        self.register_buffer("centre_y", at.repeat_interleave(GRID))

    def forward(self, picture: torch.Tensor) -> Found:
        """Return shapes in the order of the grid, so that nearly equal scores never swap."""
        made = self.grid(picture)
        score, kind = made[:, :3].sigmoid().max(dim=1)  # each [n, 16, 16]
        best = functional.max_pool2d(score, 3, stride=1, padding=1)
        peak = ((score == best) & (score > self.least_score)).flatten(1)
        count = peak.sum(dim=1).clamp(max=self.rows)
        order = torch.argsort((~peak).to(torch.int64), dim=1, stable=True)[:, : self.rows]
        fills = torch.arange(self.rows, device=picture.device) >= count.unsqueeze(1)
        at = made[:, 3:].flatten(2).transpose(1, 2)  # [n, 256, 4]
        x = self.centre_x + at[:, :, 0] * self.step
        y = self.centre_y + at[:, :, 1] * self.step
        right, down = at[:, :, 2] * self.half_size, at[:, :, 3] * self.half_size
        edges = torch.stack([x - right, y - down, x + right, y + down], dim=2).clamp(0, self.side)
        boxes = edges.gather(1, order.unsqueeze(2).expand(-1, -1, 4))
        scores = score.flatten(1).gather(1, order)
        classes = kind.flatten(1).gather(1, order)
        return Found(
            boxes.masked_fill(fills.unsqueeze(2), 0.0),
            scores.masked_fill(fills, 0.0),
            classes.masked_fill(fills, 0),
            count,
        )


def drawn(rng: np.random.Generator) -> tuple[Image.Image, Array]:
    """Draw a picture of 1 to 4 separate shapes, with its truth, see `pictures`."""
    background = rng.integers(0, 90)
    picture = Image.new("L", (SIDE, SIDE), int(background))
    draw = ImageDraw.Draw(picture)
    truth = np.full((MOST_SHAPES, 5), -1, np.float32)
    placed = 0
    for _ in range(int(rng.integers(1, MOST_SHAPES + 1))):
        radius = int(rng.integers(RADIUS[0], RADIUS[1] + 1))
        x, y = rng.integers(radius + 1, SIDE - radius - 1, 2).tolist()
        box = [x - radius, y - radius, x + radius, y + radius]
        if any(_touch(box, other[1:].tolist()) for other in truth[:placed]):
            continue
        kind, light = int(rng.integers(len(LABELS))), int(rng.integers(background + 70, 256))
        if kind == 0:
            draw.ellipse(box, fill=light)
        elif kind == 1:
            draw.rectangle(box, fill=light)
        else:
            draw.polygon([x, box[1], box[2], box[3], box[0], box[3]], fill=light)
        truth[placed] = (kind, *box)
        placed += 1
    noise = rng.normal(0, 8, (SIDE, SIDE))
    levels = np.clip(np.asarray(picture, np.float32) + noise, 0, 255).astype(np.uint8)
    return Image.fromarray(levels), truth


def _touch(one: list[int], other: list[float]) -> bool:
    return bool(
        one[0] <= other[2] + 2
        and other[0] <= one[2] + 2
        and one[1] <= other[3] + 2
        and other[1] <= one[3] + 2
    )


def pictures(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Draw pictures in the model's format, with the places of their shapes.

    Returns:
        float32 [n, 1, 64, 64]; and [n, 4, 5]: class, left, top, right, bottom, all -1 for missing
        shapes.
    """
    made = [drawn(rng) for _ in range(count)]
    images = np.stack([preprocess(picture, PREPROCESS) for picture, _ in made])
    return images, np.stack([truth for _, truth in made])


def average_precision(found: Arrays, truth: Array) -> float:
    """Return the mean over classes of the area under precision by recall, at an IoU of 0.5.

    Args:
        found: see `Found`.
        truth: see `pictures`.
    """
    areas = []
    for kind in range(len(LABELS)):
        ranked = sorted(_judged(found, truth, kind), reverse=True)
        right = np.cumsum([fits for _, fits in ranked])
        precision = right / np.arange(1, len(ranked) + 1)
        envelope = np.maximum.accumulate(precision[::-1])[::-1]  # the best at this recall or higher
        fits = np.array([fits for _, fits in ranked], bool)
        areas.append(float(envelope[fits].sum()) / max(1, int((truth[:, :, 0] == kind).sum())))
    return float(np.mean(areas))


def _judged(found: Arrays, truth: Array, kind: int) -> Iterator[tuple[float, bool]]:
    """Yield each row's score in a class, and whether it fits a shape that no better row fits."""
    for index, count in enumerate(found["found"].tolist()):
        wanted = [each[1:] for each in truth[index] if each[0] == kind]
        rows = np.arange(count)[found["classes"][index, :count] == kind]
        scores = found["scores"][index]
        for row in sorted(rows.tolist(), key=lambda row: -scores[row]):
            fits = [at for at, box in enumerate(wanted) if _iou(found["boxes"][index, row], box)]
            if fits:
                wanted.pop(fits[0])
            yield float(scores[row]), bool(fits)


def _iou(one: Array, other: Array) -> bool:
    """Whether the intersection of two boxes is at least half of their union."""
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    shared = float(np.prod(np.maximum(sides, 0)))
    both = float(np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]))
    return shared >= 0.5 * (both - shared)


def _targets(truth: Array) -> torch.Tensor:
    """Return [n, 8, 16, 16]: each class's heat, a box's four numbers, whether it is a centre."""
    made = np.zeros((len(truth), len(LABELS) + 5, GRID, GRID), np.float32)
    for index, row in np.argwhere(truth[:, :, 0] >= 0):
        kind, left, top, right, bottom = truth[index, row]
        x, y = (left + right) / 2 / STEP, (top + bottom) / 2 / STEP
        at = made[index, :, int(y), int(x)]
        at[int(kind)] = 1
        at[3:7] = (
            *(x - int(x) - 0.5, y - int(y) - 0.5),
            *((right - left) / SIZE, (bottom - top) / SIZE),
        )
        at[7] = 1
    return torch.from_numpy(made)


def _rows(seed: int, count: int) -> Rows:
    images, truth = pictures(np.random.default_rng(seed), count)
    return Rows(torch.from_numpy(images), _targets(truth))


def _loss(made: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    heat, boxes, centres = target[:, :3], target[:, 3:7], target[:, 7:]
    found = functional.binary_cross_entropy_with_logits(
        made[:, :3], heat, pos_weight=torch.tensor(8.0, device=made.device), reduction="sum"
    )
    placed = functional.smooth_l1_loss(made[:, 3:] * centres, boxes, beta=0.1, reduction="sum")
    return (found + 5 * placed) / len(made)


def _named(made: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the share of centres at which the correct class scores highest."""
    right = made[:, :3].argmax(1) == target[:, :3].argmax(1)  # [n, 16, 16]
    centres = target[:, 7] > 0
    return (right & centres).sum() / centres.sum()


def _grid(module: nn.Module) -> nn.Module:
    if not isinstance(module, Shapes):
        raise TypeError(f"bug: not the detector but {type(module).__name__}")
    return module.grid


TRAINING = Training(
    source=f"{TRAINED_ON:,} pictures drawn with seed {SEED}",
    data=lambda: _rows(SEED, TRAINED_ON),
    loss=_loss,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=4e-3),
    epochs=7,
    batch=48,
    seed=SEED,
    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-2, total_steps=steps
    ),
    evaluation=lambda: _rows(SEED + 4, HELD_OUT),
    metrics={"right class": _named},
    keep="best",
    part=_grid,
)


def _random_inputs(rng: np.random.Generator, batch: int) -> Arrays:
    return {"picture": pictures(rng, batch)[0]}


@functools.cache
def _golden() -> Array:
    return pictures(np.random.default_rng(SEED + 1), 4)[0]


def _example() -> JsonValue:
    buffer = io.BytesIO()
    drawn(np.random.default_rng(SEED + 1))[0].save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _held_out() -> HeldOut:
    images, truth = pictures(np.random.default_rng(SEED + 2), HELD_OUT)
    return HeldOut({"picture": images}, truth, average_precision)


def _calibration() -> list[Arrays]:
    return [{"picture": pictures(np.random.default_rng(SEED + 3), 128)[0]}]


DEFINITION = Definition(
    description="Circles, squares and triangles in a picture, each with a box and a score.",
    inputs=(TensorSpec(name="picture", dtype="float32", shape=(-1, 1, SIDE, SIDE)),),
    outputs=(
        TensorSpec(name="boxes", dtype="float32", shape=(-1, ROWS, 4), count="found"),
        TensorSpec(name="scores", dtype="float32", shape=(-1, ROWS), count="found"),
        TensorSpec(name="classes", dtype="int64", shape=(-1, ROWS), count="found"),
        TensorSpec(name="found", dtype="int64", shape=(-1,)),
    ),
    codec=ImageCodecSpec(
        preprocess=PREPROCESS,
        labels=LABELS,
        ranked_by="scores",
        threshold=0.5,
        classes="classes",
        boxes=(Boxes(output="boxes", form="xyxy"),),
    ),
    build=lambda: Shapes().eval(),
    train=TRAINING.fit,
    random_inputs=_random_inputs,
    golden_inputs=lambda: [{"picture": picture} for picture in _golden()],
    example=_example,
    held_out=_held_out,
    calibration=_calibration,
    training=TRAINING,
)
