"""Outputs with places in a picture, boxes and masks, and how a picture maps to a model's input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from pydantic import JsonValue

from models.parts import Part
from models.tensors import Name, TensorSpec

BoxForm = Literal["xyxy", "xywh", "cxcywh", "xy"]
FREE = -1  # the size of an axis in a shape


class Geometry(NamedTuple):
    """How a caller's picture maps to the input of a model.

    A point (x, y) of the picture is at (x * scale[0] + offset[0], y * scale[1] + offset[1]) in the
    input. Both are measured in pixels from the upper left corner of the upper left pixel.

    Attributes:
        width, height: of the upright picture, in pixels of the file.
        scale: across and down.
        offset: of the picture's upper left corner; negative if it was cut off.
    """

    width: int
    height: int
    scale: tuple[float, float]
    offset: tuple[float, float]

    def as_json(self) -> dict[str, JsonValue]:
        """Return it as clients see it."""
        return {
            "width": self.width,
            "height": self.height,
            "scale": [*self.scale],
            "offset": [*self.offset],
        }


class Boxes(Part):
    """An output with boxes or points in the model's input; answers have them in the picture.

    The first numbers of each row of the last axis are a box, any others stay as they are. With
    `columns`, each column of the last two axes begins with a box instead.

    Forms: `xyxy` is left, top, right, bottom; `xywh` is left, top, width, height; `cxcywh` is the
    centre, width and height; `xy` is a point. Relative numbers are 1 at the right or lower edge of
    the input; others are in its pixels.
    """

    output: Name
    form: BoxForm
    relative: bool = False
    columns: bool = False

    @property
    def numbers(self) -> int:
        """How many numbers a box or point has."""
        return len(self.form) if self.form in ("xy", "xyxy", "xywh") else 4


def check_places(
    boxes: Sequence[Boxes], masks: Sequence[Name], outputs: Sequence[TensorSpec]
) -> None:
    """Check the declaration of boxes and masks.

    Raises:
        ValueError: with the contradiction.
    """
    specs = {spec.name: spec for spec in outputs}
    names: set[Name] = set()
    for name in (*(each.output for each in boxes), *masks):
        if name not in specs:
            raise ValueError(f"{name!r} is not an output; the model has {', '.join(specs)}")
        if name in names:
            raise ValueError(f"{name!r} is declared twice, as boxes or as a mask; once is enough")
        names.add(name)
    for each in boxes:
        _check_boxes(each, specs[each.output])
    for name in masks:
        if len(specs[name].item_shape) < 2:
            raise ValueError(
                f"the mask {name!r} needs axes for height and width at its end, got shape "
                f"{list(specs[name].shape)}"
            )


def _check_boxes(boxes: Boxes, spec: TensorSpec) -> None:
    if spec.dtype not in ("float32", "float64"):
        raise ValueError(
            f"the boxes {spec.name!r} are {spec.dtype}; pixels of large pictures need float32 or "
            "float64: convert them in the model"
        )
    shape, axis = spec.item_shape, -2 if boxes.columns else -1
    if len(shape) < -axis or (shape[axis] != FREE and shape[axis] < boxes.numbers):
        where = "each column begins" if boxes.columns else "each row begins"
        raise ValueError(
            f"{where} with the {boxes.numbers} numbers of {boxes.form}, but {spec.name!r} has "
            f"shape {list(spec.shape)}"
        )


def with_free_masks(outputs: Sequence[TensorSpec], masks: Sequence[Name]) -> Iterator[TensorSpec]:
    """Yield the outputs, masks with free axes at their end, for a picture's height and width."""
    for spec in outputs:
        if spec.name not in masks:
            yield spec
        else:
            shape = (*spec.shape[:-2], FREE, FREE)
            yield spec.model_copy(update={"shape": shape, "dimensions": ()})
