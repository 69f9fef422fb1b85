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
from models.inputs.preprocess import preprocess
from models.places import Boxes
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
TRAINING_PICTURES, HELD_OUT_PICTURES = 2400, 300
PREPROCESS = PicturePreprocess(width=SIDE, height=SIDE, channels=1, mean=(0.3,), std=(0.25,))


class Detections(NamedTuple):
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
        for in_channels, out_channels, stride in (
            (1, 16, 2),
            (16, 32, 2),
            (32, 32, 1),
            (32, 32, 1),
        ):
            layers += [
                nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(out_channels),
                nn.ReLU(),
            ]
        wide = nn.Conv2d(32, 32, 3, padding=2, dilation=2)  # sees 27 pixels: a whole shape
        self.grid = nn.Sequential(*layers, wide, nn.ReLU(), nn.Conv2d(32, len(LABELS) + 4, 1))
        self.rows, self.side, self.step, self.half_size = ROWS, SIDE, STEP, SIZE / 2
        self.least_score = LEAST_SCORE
        at = (torch.arange(GRID, dtype=torch.float32) + 0.5) * STEP
        self.register_buffer("centre_x", at.repeat(GRID))
        self.register_buffer("centre_y", at.repeat_interleave(GRID))

    def forward(self, picture: torch.Tensor) -> Detections:
        """Return shapes in the order of the grid, so that nearly equal scores never swap."""
        grid = self.grid(picture)
        score, kind = grid[:, :3].sigmoid().max(dim=1)  # each [n, 16, 16]
        best = functional.max_pool2d(score, 3, stride=1, padding=1)
        peak = ((score == best) & (score > self.least_score)).flatten(1)
        count = peak.sum(dim=1).clamp(max=self.rows)
        order = torch.argsort((~peak).to(torch.int64), dim=1, stable=True)[:, : self.rows]
        fills = torch.arange(self.rows, device=picture.device) >= count.unsqueeze(1)
        at = grid[:, 3:].flatten(2).transpose(1, 2)  # [n, 256, 4]
        x = self.centre_x + at[:, :, 0] * self.step
        y = self.centre_y + at[:, :, 1] * self.step
        right, down = at[:, :, 2] * self.half_size, at[:, :, 3] * self.half_size
        edges = torch.stack([x - right, y - down, x + right, y + down], dim=2).clamp(0, self.side)
        boxes = edges.gather(1, order.unsqueeze(2).expand(-1, -1, 4))
        scores = score.flatten(1).gather(1, order)
        classes = kind.flatten(1).gather(1, order)
        return Detections(
            boxes.masked_fill(fills.unsqueeze(2), 0.0),
            scores.masked_fill(fills, 0.0),
            classes.masked_fill(fills, 0),
            count,
        )


def draw_picture(rng: np.random.Generator) -> tuple[Image.Image, Array]:
    """Draw a picture of 1 to 4 separate shapes, with its truth, see `pictures`."""
    background = rng.integers(0, 90)
    picture = Image.new("L", (SIDE, SIDE), int(background))
    draw = ImageDraw.Draw(picture)
    truth = np.full((MOST_SHAPES, 5), -1, np.float32)
    count = 0
    for _ in range(int(rng.integers(1, MOST_SHAPES + 1))):
        radius = int(rng.integers(RADIUS[0], RADIUS[1] + 1))
        x, y = rng.integers(radius + 1, SIDE - radius - 1, 2).tolist()
        box = [x - radius, y - radius, x + radius, y + radius]
        if any(_touch(box, other[1:].tolist()) for other in truth[:count]):
            continue
        kind, light = int(rng.integers(len(LABELS))), int(rng.integers(background + 70, 256))
        if kind == 0:
            draw.ellipse(box, fill=light)
        elif kind == 1:
            draw.rectangle(box, fill=light)
        else:
            draw.polygon([x, box[1], box[2], box[3], box[0], box[3]], fill=light)
        truth[count] = (kind, *box)
        count += 1
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
    samples = [draw_picture(rng) for _ in range(count)]
    images = np.stack([preprocess(picture, PREPROCESS) for picture, _ in samples])
    return images, np.stack([truth for _, truth in samples])


def average_precision(outputs: Arrays, truth: Array) -> float:
    """Return the mean over classes of the area under precision by recall, at an IoU of 0.5.

    Args:
        outputs: see `Detections`.
        truth: see `pictures`.
    """
    areas = []
    for kind in range(len(LABELS)):
        rows = sorted(_judge_rows(outputs, truth, kind), reverse=True)
        right = np.cumsum([fits for _, fits in rows])
        precision = right / np.arange(1, len(rows) + 1)
        envelope = np.maximum.accumulate(precision[::-1])[::-1]  # the best at this recall or higher
        fits = np.array([fits for _, fits in rows], bool)
        areas.append(float(envelope[fits].sum()) / max(1, int((truth[:, :, 0] == kind).sum())))
    return float(np.mean(areas))


def _judge_rows(outputs: Arrays, truth: Array, kind: int) -> Iterator[tuple[float, bool]]:
    """Yield each row's score in a class, and whether it fits a shape that no better row fits."""
    for index, count in enumerate(outputs["found"].tolist()):
        boxes = [each[1:] for each in truth[index] if each[0] == kind]
        rows = np.arange(count)[outputs["classes"][index, :count] == kind]
        scores = outputs["scores"][index]
        for row in sorted(rows.tolist(), key=lambda row: -scores[row]):
            fits = [
                at for at, box in enumerate(boxes) if _overlap(outputs["boxes"][index, row], box)
            ]
            if fits:
                boxes.pop(fits[0])
            yield float(scores[row]), bool(fits)


def _overlap(one: Array, other: Array) -> bool:
    """Whether the intersection of two boxes is at least half of their union."""
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    intersection = float(np.prod(np.maximum(sides, 0)))
    area_sum = float(np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]))
    return intersection >= 0.5 * (area_sum - intersection)


def _targets(truth: Array) -> torch.Tensor:
    """Return [n, 8, 16, 16]: each class's heat, a box's four numbers, whether it is a centre."""
    targets = np.zeros((len(truth), len(LABELS) + 5, GRID, GRID), np.float32)
    for index, row in np.argwhere(truth[:, :, 0] >= 0):
        kind, left, top, right, bottom = truth[index, row]
        x, y = (left + right) / 2 / STEP, (top + bottom) / 2 / STEP
        at = targets[index, :, int(y), int(x)]
        at[int(kind)] = 1
        at[3:7] = (
            *(x - int(x) - 0.5, y - int(y) - 0.5),
            *((right - left) / SIZE, (bottom - top) / SIZE),
        )
        at[7] = 1
    return torch.from_numpy(targets)


def _rows(seed: int, count: int) -> Rows:
    images, truth = pictures(np.random.default_rng(seed), count)
    return Rows(torch.from_numpy(images), _targets(truth))


def _loss(grid: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    heat, boxes, centres = target[:, :3], target[:, 3:7], target[:, 7:]
    heat_loss = functional.binary_cross_entropy_with_logits(
        grid[:, :3], heat, pos_weight=torch.tensor(8.0, device=grid.device), reduction="sum"
    )
    box_loss = functional.smooth_l1_loss(grid[:, 3:] * centres, boxes, beta=0.1, reduction="sum")
    return (heat_loss + 5 * box_loss) / len(grid)


def _right_class_share(grid: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the share of centres at which the correct class scores highest."""
    right = grid[:, :3].argmax(1) == target[:, :3].argmax(1)  # [n, 16, 16]
    centres = target[:, 7] > 0
    return (right & centres).sum() / centres.sum()


def _grid(module: nn.Module) -> nn.Module:
    if not isinstance(module, Shapes):
        raise TypeError(f"bug: not the detector but {type(module).__name__}")
    return module.grid


TRAINING = Training(
    source=f"{TRAINING_PICTURES:,} pictures drawn with seed {SEED}",
    data=lambda: _rows(SEED, TRAINING_PICTURES),
    loss=_loss,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=4e-3),
    epochs=7,
    batch=48,
    seed=SEED,
    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-2, total_steps=steps
    ),
    evaluation=lambda: _rows(SEED + 4, HELD_OUT_PICTURES),
    metrics={"right class": _right_class_share},
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
    draw_picture(np.random.default_rng(SEED + 1))[0].save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _held_out() -> HeldOut:
    images, truth = pictures(np.random.default_rng(SEED + 2), HELD_OUT_PICTURES)
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
