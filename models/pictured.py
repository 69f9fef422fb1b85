"""Outputs that are pictures: what the numbers of an item mean, for PNG files in answers."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self, TypeAlias

import numpy as np
from pydantic import Field, StringConstraints, model_validator

from models.parts import Part

MAX_CLASSES = 256  # an indexed PNG has a byte for each pixel
CHANNELS = (1, 3)
Colour = Annotated[str, StringConstraints(pattern=r"^#[0-9a-f]{6}$")]
Label = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class ImageOutput(Part):
    """Brightness, as an RGB or grey picture: [height, width], [C, height, width] or [.., .., C].

    Attributes:
        range: the numbers of black and white; others are cut off. None: 0..255 for uint8, 0..1 for
            floats.
    """

    kind: Literal["image"] = "image"
    range: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError(f"the range {self.range[0]:g}..{self.range[1]:g} is empty")
        return self


class MaskOutput(Part):
    """The class of each pixel, as an indexed picture whose pixels are the numbers of classes.

    Integers or booleans [height, width] are classes; of floats [classes, height, width] the
    highest one is the class.

    Attributes:
        palette: the colour of each class; empty: the colours of PASCAL VOC, class 0 is black.
        classes: the name of each class; empty: unknown.
    """

    kind: Literal["mask"] = "mask"
    palette: tuple[Colour, ...] = Field(default=(), max_length=MAX_CLASSES)
    classes: tuple[Label, ...] = Field(default=(), max_length=MAX_CLASSES)


PictureOutput: TypeAlias = Annotated[ImageOutput | MaskOutput, Field(discriminator="kind")]


class ChannelLayout(NamedTuple):
    """Where an output has its channels or scores: the index of that axis, None if it has none.

    Attributes:
        channels: the size of that axis; 1 if there is none.
    """

    axis: int | None
    channels: int


def layout(form: ImageOutput | MaskOutput, dtype: str, shape: tuple[int, ...]) -> ChannelLayout:
    """Return the layout of an output that is declared as a picture.

    The shape is that of an item, -1 for free axes.

    Raises:
        ValueError: if such an output is no picture; the message says what it must be.
    """
    if isinstance(form, MaskOutput):
        return _mask_layout(form, dtype, shape)
    if dtype == "bool" or (form.range is None and np.dtype(dtype).kind != "f" and dtype != "uint8"):
        raise ValueError(
            f"an image of {dtype} needs a range, such as 0..65535; booleans are a mask"
        )
    if len(shape) == 2:
        return ChannelLayout(None, 1)
    if len(shape) == 3:
        for axis in (0, 2):
            if shape[axis] in CHANNELS:
                return ChannelLayout(axis, shape[axis])
    raise ValueError(
        f"an image needs items of shape [height, width], [C, height, width] or [height, width, C] "
        f"with C of 1 or 3, got {list(shape)}"
    )


def _mask_layout(form: MaskOutput, dtype: str, shape: tuple[int, ...]) -> ChannelLayout:
    if np.dtype(dtype).kind == "f":
        if len(shape) != 3 or not 2 <= shape[0] <= MAX_CLASSES:
            raise ValueError(
                f"a mask of {dtype} needs a score for each class, [classes, height, width] with 2 "
                f"to {MAX_CLASSES} classes, got {list(shape)}; one channel is an image"
            )
        for what, entries in (("palette", form.palette), ("classes", form.classes)):
            if entries and len(entries) != shape[0]:
                raise ValueError(f"the {what} has {len(entries)} entries for {shape[0]} classes")
        return ChannelLayout(0, shape[0])
    if len(shape) == 2 or (len(shape) == 3 and shape[0] == 1):
        return ChannelLayout(0 if len(shape) == 3 else None, 1)
    raise ValueError(
        f"a mask of {dtype} needs items of shape [height, width] or [1, height, width], got "
        f"{list(shape)}"
    )


def colours(form: MaskOutput) -> bytes:
    """Return the palette of a PNG file, 256 colours of three bytes."""
    palette = [bytes.fromhex(each[1:]) for each in form.palette]
    return b"".join((*palette, *(_voc(index) for index in range(len(palette), MAX_CLASSES))))


def _voc(index: int) -> bytes:
    """The colour of a class in PASCAL VOC's segmentations: its bits, spread over the channels."""
    channels = [0, 0, 0]
    for bit in range(7, -1, -1):
        for channel in range(3):
            channels[channel] |= (index >> channel & 1) << bit
        index >>= 3
    return bytes(channels)
