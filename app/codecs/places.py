"""Maps a model's boxes and masks from the model's input to the caller's picture.

The engine and the cache keep the outputs in the model's input: pictures of different sizes may
become the same input. The geometry of each picture is in its item's note.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from app.errors import ItemFailed
from app.types import Array, Arrays, Note, Outcome
from models.codec_specs import ImageCodecSpec
from models.manifest import Manifest
from models.pictured import MAX_CLASSES, MaskOutput
from models.places import Boxes, Geometry
from models.tensors import Name, TensorSpec

T = TypeVar("T")
STEP_NUMBERS = 1 << 15  # of a mask's interpolated numbers, made at once: takes about a millisecond


class Places:
    """Maps the declared outputs of one model.

    Masks with a score for each class, of which PNG files have the highest, become these classes as
    they are mapped if they are drawn: the scores of a photograph are a gigabyte.

    Args:
        manifest: its codec is of kind `image`.

    Attributes:
        reduces: whether there are such masks.
        smaller: what to request or change if mapped masks are too large.

    Raises:
        TypeError: if the manifest has another codec, which is a bug.
    """

    def __init__(self, manifest: Manifest) -> None:
        codec = manifest.codec
        if not isinstance(codec, ImageCodecSpec):
            raise TypeError(f"bug: places in a {codec.kind!r}")
        self._size = (codec.preprocess.width, codec.preprocess.height)
        self._boxes = codec.boxes
        self._masks = codec.masks
        self._counts = {spec.name: spec.count for spec in manifest.outputs if spec.count}
        scores = [each for each in manifest.outputs if each.name in codec.masks and _scores(each)]
        drawn = frozenset(
            each.name for each in scores if isinstance(each.picture, MaskOutput) and not each.count
        )
        self._drawn = drawn
        self.reduces = bool(drawn)
        self.smaller = "send smaller pictures, or fewer at once"
        if drawn:
            self.smaller += ", or request only the class of each pixel, by /predict with Accept: "
            self.smaller += "image/png, or with ?pictures=base64"
        elif scores:
            self.smaller += f", or adopt the model with --as {scores[0].name}=mask and request "
            self.smaller += "image/png, which has only the class of each pixel"

    def size_of(self, outcome: Outcome, note: Note | None, *, drawn: bool = False) -> int:
        """The bytes of an item's outputs once they are mapped, as they are if it is no picture."""
        if isinstance(outcome, ItemFailed):
            return 0
        if note is None or note.image is None:
            return sum(array.nbytes for array in outcome.values())
        return self.nbytes(outcome, note.image, drawn=drawn)

    def nbytes(self, outputs: Arrays, image: Geometry, *, drawn: bool = False) -> int:
        """The bytes of all outputs of an item once they are mapped."""
        size = 0
        for name, array in outputs.items():
            if drawn and name in self._drawn:
                size += image.height * image.width
            elif name in self._masks:
                numbers = math.prod(array.shape[:-2]) * image.height * image.width
                size += numbers * array.itemsize
            else:
                size += array.nbytes
        return size

    def scores_of(self, outcome: Outcome, note: Note | None) -> int:
        """The scores of an item that are interpolated for the classes of a PNG file."""
        if isinstance(outcome, ItemFailed) or note is None or note.image is None:
            return 0
        classes = sum(len(array) for name, array in outcome.items() if name in self._drawn)
        return classes * note.image.height * note.image.width

    def mapped(self, outputs: Arrays, image: Geometry) -> Arrays:
        """The outputs of an item in the caller's picture; see `steps`."""
        return at_once(self.steps(outputs, image))

    def steps(
        self, outputs: Arrays, image: Geometry, *, drawn: bool = False
    ) -> Generator[bytes, None, Arrays]:
        """The outputs of an item in the caller's picture, in quick steps, which yield nothing.

        Filler after counted rows stays as it is in boxes, and is 0 in masks.

        Args:
            outputs: the item's outputs, as the model returned them; perhaps not all.
            image: its picture.
            drawn: whether scores of classes that PNG files show become classes.

        Returns:
            arrays of the same dtypes, C-contiguous; masks have the picture's height and width.
            Classes instead of scores are uint8 [height, width].
        """
        found = dict(outputs)
        for boxes in self._boxes:
            if boxes.output not in outputs:
                continue
            array = np.array(outputs[boxes.output], order="C")
            rows = self._rows(outputs, boxes.output)
            _map_boxes(array if rows is None else array[:rows], boxes, self._size, image)
            found[boxes.output] = array
            yield b""
        for name in self._masks:
            if name not in outputs:
                continue
            mask = outputs[name]
            if drawn and name in self._drawn:
                found[name] = yield from self._classes(mask, image)
                continue
            made = np.zeros((*mask.shape[:-2], image.height, image.width), mask.dtype)
            rows = self._rows(outputs, name)
            yield from self._resize(
                mask if rows is None else mask[:rows], made if rows is None else made[:rows], image
            )
            found[name] = made
        return found

    def _rows(self, outputs: Arrays, name: Name) -> int | None:
        """The number of counted rows; None if all rows count."""
        count = self._counts.get(name)
        return None if count is None else max(0, int(outputs[count]))

    def _resize(self, mask: Array, made: Array, image: Geometry) -> Generator[bytes, None, None]:
        """Fill `made`; parts of the picture that the model did not see stay 0."""
        down, across = self._seen(mask, image)
        planes = mask.reshape(-1, *mask.shape[-2:])
        targets = made.reshape(-1, image.height, image.width)
        for plane, target in zip(planes, targets, strict=True):
            for lines, part in _parts(target, down, across):
                part[...] = _sampled(plane, down, lines, across)
                yield b""

    def _classes(self, scores: Array, image: Geometry) -> Generator[bytes, None, Array]:
        """The class with the highest score [classes, height, width], the first of equal ones."""
        down, across = self._seen(scores, image)
        made = np.zeros((image.height, image.width), np.uint8)
        for lines, part in _parts(made, down, across):
            highest = _sampled(scores[0], down, lines, across)
            yield b""
            for index in range(1, len(scores)):
                other = _sampled(scores[index], down, lines, across)
                part[other > highest] = index
                np.maximum(highest, other, out=highest)
                yield b""
        return made

    def _seen(self, mask: Array, image: Geometry) -> tuple[Sources, Sources]:
        """The sources of the rows and the columns of a picture that the model has seen."""
        height, width = mask.shape[-2:]
        return (
            _sources(image.height, image.scale[1], image.offset[1], self._size[1], height),
            _sources(image.width, image.scale[0], image.offset[0], self._size[0], width),
        )


def _scores(spec: TensorSpec) -> bool:
    """Whether an output has a score for each class and pixel."""
    shape = spec.item_shape
    return spec.dtype.startswith("float") and len(shape) == 3 and 2 <= shape[0] <= MAX_CLASSES


def at_once(steps: Generator[bytes, None, T]) -> T:
    """Take all steps, which yield nothing; returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found: T = stop.value
            return found


class Sources(NamedTuple):
    """Where the numbers of one axis of a resized mask come from.

    Attributes:
        first: index of the first pixel of the picture that the model saw; the others follow.
        nearest: for each of these, the index of the mask's number that covers its centre.
        before: index of the number whose centre is at or before it.
        after: index of the next number.
        share: of the number after it, 0 to 1.
    """

    first: int
    nearest: Array
    before: Array
    after: Array
    share: Array


def _sources(pixels: int, scale: float, offset: float, size: int, numbers: int) -> Sources:
    """The sources of one axis.

    Args:
        pixels: of the picture.
        scale: see `Geometry`.
        offset: see `Geometry`.
        size: of the model's input, in pixels.
        numbers: of the mask.
    """
    places = (np.arange(pixels) + 0.5) * scale + offset  # of the pixels' centres
    seen = np.flatnonzero((places >= 0) & (places < size))
    at = places[seen] * (numbers / size)
    nearest = np.clip(np.floor(at), 0, numbers - 1).astype(np.intp)
    centred = np.clip(at - 0.5, 0, numbers - 1)
    before = np.floor(centred).astype(np.intp)
    after = np.minimum(before + 1, numbers - 1)
    return Sources(int(seen[0]) if len(seen) else 0, nearest, before, after, (centred - before))


def _parts(target: Array, down: Sources, across: Sources) -> Iterator[tuple[slice, Array]]:
    """Parts of a plane in the picture that are quick to fill, and their lines among the sources."""
    rows = max(1, STEP_NUMBERS // max(1, target.shape[1]))
    columns = slice(across.first, across.first + len(across.nearest))
    seen = target[down.first : down.first + len(down.nearest), columns]
    for at in range(0, len(seen), rows) if seen.size else ():
        lines = slice(at, at + rows)
        yield lines, seen[lines]


def _sampled(plane: Array, down: Sources, lines: slice, across: Sources) -> Array:
    """Lines of a resized plane: the nearest numbers, or between floating-point numbers linear."""
    if plane.dtype.kind != "f":
        return plane[down.nearest[lines]][:, across.nearest]
    share = down.share[lines, None].astype(plane.dtype)
    rows = plane[down.before[lines]] * (1 - share) + plane[down.after[lines]] * share
    share = across.share.astype(plane.dtype)
    return np.asarray(rows[:, across.before] * (1 - share) + rows[:, across.after] * share)


def _map_boxes(array: Array, boxes: Boxes, size: tuple[int, int], image: Geometry) -> None:
    """Map boxes in place, and clip them to the picture."""
    numbers = np.moveaxis(array, -2, -1) if boxes.columns else array
    of_box = numbers[..., : boxes.numbers].astype(np.float64)
    corners = of_box
    if boxes.form in ("xywh", "cxcywh"):
        extent = of_box[..., 2:]
        first = of_box[..., :2] - (extent / 2 if boxes.form == "cxcywh" else 0)
        corners = np.concatenate((first, first + extent), axis=-1)
    repeats = corners.shape[-1] // 2
    unit = np.tile(size if boxes.relative else (1, 1), repeats)
    placed = (corners * unit - np.tile(image.offset, repeats)) / np.tile(image.scale, repeats)
    placed = np.clip(placed, 0, np.tile((image.width, image.height), repeats))
    if boxes.form in ("xywh", "cxcywh"):
        first, extent = placed[..., :2], placed[..., 2:] - placed[..., :2]
        if boxes.form == "cxcywh":
            first = first + extent / 2
        placed = np.concatenate((first, extent), axis=-1)
    numbers[..., : boxes.numbers] = placed
