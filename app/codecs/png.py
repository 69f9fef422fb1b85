"""Outputs that are pictures, as PNG files."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from app.errors import NotAcceptable
from app.types import Array
from models.pictured import MAX_CLASSES, ImageOutput, MaskOutput, colours, layout
from models.tensors import TensorSpec

# Levels of compression: higher ones take several times as long for a few per cent.
IMAGE_LEVEL, MASK_LEVEL = 1, 3
WHITE = 255


class PngWriter:
    """Writes the pictures of one output; Pillow and numpy release the GIL for the slow parts.

    Args:
        spec: the output, which is declared as a picture.

    Raises:
        TypeError: if it is not, which is a bug.
    """

    def __init__(self, spec: TensorSpec) -> None:
        if spec.picture is None:
            raise TypeError(f"bug: {spec.name!r} is not declared as a picture")
        self._name = spec.name
        self._form = spec.picture
        self._axis = layout(spec.picture, spec.dtype, spec.item_shape).axis
        self._palette = colours(spec.picture) if isinstance(spec.picture, MaskOutput) else b""

    def write(self, output: Array) -> bytes:
        """The output of one item as a PNG file.

        Raises:
            NotAcceptable: if it is empty, or has a class that such a file cannot have.
        """
        if output.size == 0:
            raise NotAcceptable(
                f"{self._name!r} is empty, shape {list(output.shape)}, which no picture can be; "
                "request application/json"
            )
        if isinstance(self._form, MaskOutput):
            picture = Image.fromarray(self._classes(output))
            picture.putpalette(self._palette)
            level = MASK_LEVEL
        else:
            picture = Image.fromarray(self._brightness(output, self._form))
            level = IMAGE_LEVEL
        file = io.BytesIO()
        picture.save(file, "PNG", compress_level=level)
        return file.getvalue()

    def _classes(self, output: Array) -> Array:
        """The class of each pixel, uint8 [height, width]."""
        if output.dtype.kind == "f":
            return np.asarray(output.argmax(axis=0), dtype=np.uint8)
        classes = output if output.ndim == 2 else output[0]
        least, most = int(classes.min()), int(classes.max())
        if least < 0 or most >= MAX_CLASSES:
            raise NotAcceptable(
                f"{self._name!r} has classes from {least} to {most}; a PNG mask has classes from 0 "
                f"to {MAX_CLASSES - 1}, so request application/json"
            )
        return np.ascontiguousarray(classes, dtype=np.uint8)

    def _brightness(self, output: Array, form: ImageOutput) -> Array:
        """Levels, uint8 [height, width] or [height, width, 3]."""
        if self._axis == 0:
            output = np.moveaxis(output, 0, 2)
        if output.ndim == 3 and output.shape[2] == 1:
            output = output[:, :, 0]
        if form.range is None and output.dtype == np.uint8:
            return np.ascontiguousarray(output)
        low, high = form.range or (0.0, 1.0)
        wide = np.asarray(output, np.float64 if output.dtype.itemsize > 4 else np.float32)
        levels = np.multiply(np.subtract(wide, low), WHITE / (high - low))
        return np.ascontiguousarray(np.rint(levels.clip(0, WHITE)), dtype=np.uint8)


def png_writers(outputs: Sequence[TensorSpec]) -> dict[str, PngWriter]:
    """A writer for each output that is declared as a picture, by its name."""
    return {spec.name: PngWriter(spec) for spec in outputs if spec.picture is not None}
