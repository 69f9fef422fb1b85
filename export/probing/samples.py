"""Draws inputs for a model of which only the input shapes are known."""

from __future__ import annotations

import base64
import io
import math
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from PIL import Image
from pydantic import JsonValue

from export.probing.examples import Examples, Shapes
from models.bounds import at_sizes, near_zero, safe_range
from models.codec_specs import AudioCodecSpec, CodecSpec, ImageCodecSpec, PicturePreprocess
from models.tensors import Array, Arrays, Axis, TensorSpec, unstack

GOLDEN = 3
SEED = 11
EXAMPLE_PICTURE = 16  # pixels to a side of a made-up picture
MAX_PICTURE = 64  # the same of a real one
MAX_EXAMPLE = 4096  # numbers; more are unreadable, and the example is in many documents
MAX_SAMPLES = 16_384  # of an example's sound
LOUDEST = 0.5  # of a made-up sound
DECIMALS = 2  # of an example's numbers, which are for people and may be many

MISSING, HAS_MISSING = 0.5, 0.6  # shares of an item's numbers, and of the items that lack some

# Pairs of sizes for free axes. Samples have the first pair on which the model runs: a network that
# halves its picture five times needs more than a few pixels, and an even number. The larger pairs
# show which axes of the outputs differ: with few pixels a stride of 8 always leaves one, and with
# few samples of a sound a window of 512.
FREE_SIZES = ((3, 5), (16, 24), (64, 96), (224, 256), (512, 768), (1024, 1536))
SMALL = FREE_SIZES[0][0]
STEPS = 3  # in equal ratios from the smallest to the largest size, if the smallest is larger
USUAL = 2  # the index of the largest of which samples are made too: sizes that requests may have


def draw(
    inputs: Sequence[TensorSpec],
    source: CodecSpec | Examples,
    rng: np.random.Generator,
    batch: int,
    shapes: Shapes,
) -> Arrays:
    """Draw a batch of real inputs, or of random ones.

    Args:
        inputs: of the model.
        source: real inputs; or the codec, which says how to normalise random pixels.
        rng: source of randomness.
        batch: its size.
        shapes: of each item.

    Returns:
        input name -> array with the batch axis.
    """
    if isinstance(source, Examples):
        return _with_missing(inputs, source.draw(inputs, rng, batch, shapes), rng)
    arrays = {}
    masks = {dimension.mask for spec in inputs for dimension in spec.dimensions}
    shape_of = {spec.name: shape for spec, shape in zip(inputs, shapes, strict=True)}
    picture = source.input_of(inputs).name if isinstance(source, ImageCodecSpec) else None
    for spec, item_shape in zip(at_sizes(inputs, shape_of), shapes, strict=True):
        shape = (batch, *item_shape)
        if spec.name in masks:
            arrays[spec.name] = np.ones(shape, spec.dtype)  # an item has no padding
        elif isinstance(source, ImageCodecSpec) and spec.name == picture:
            pixels = rng.integers(0, 256, shape, np.uint8)
            arrays[spec.name] = _normalise(pixels, source.preprocess)
        elif isinstance(source, AudioCodecSpec):
            arrays[spec.name] = rng.uniform(-LOUDEST, LOUDEST, shape).astype(np.float32)
        else:
            arrays[spec.name] = _numbers_of(spec, rng, shape)
    return _with_missing(inputs, arrays, rng)


def _with_missing(inputs: Sequence[TensorSpec], batch: Arrays, rng: np.random.Generator) -> Arrays:
    """Remove numbers that may be missing, of about half of the items; a list keeps at least one."""
    arrays = dict(batch)
    for spec in inputs:
        if not spec.nan:
            continue
        rows = np.array(arrays[spec.name]).reshape(len(arrays[spec.name]), -1)
        count, size = rows.shape
        is_missing = rng.random((count, size)) < MISSING
        is_missing &= rng.random((count, 1)) < HAS_MISSING
        if size > 1:
            is_missing[np.arange(count), rng.integers(0, size, count)] = False
        rows[is_missing] = np.nan
        arrays[spec.name] = rows.reshape(arrays[spec.name].shape)
    return arrays


def sample_bytes(inputs: Sequence[TensorSpec], batch: int, shapes: Shapes) -> int:
    """Return the number of bytes that `draw` would return."""
    return batch * sum(
        math.prod(shape) * np.dtype(spec.dtype).itemsize
        for spec, shape in zip(inputs, shapes, strict=True)
    )


def narrow(inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Reduce ranges to the two numbers nearest to 0: it is unknown whether the others work."""
    return tuple(
        spec.model_copy(update=dict(zip(("minimum", "maximum"), near_zero(spec), strict=True)))
        if (spec.minimum, spec.maximum, spec.below) != (None, None, None)
        else spec
        for spec in inputs
    )


def two_shapes(inputs: Sequence[TensorSpec], sizes: tuple[int, int]) -> tuple[Shapes, Shapes]:
    """Return shapes with the first and the second size on free axes, adjusted to their bounds.

    All free axes get the same two sizes if their bounds allow it: inputs often share sizes,
    declared or not, like tokens and their mask.
    """
    return _shapes(inputs, lambda least, most: _within(least, most, sizes))


def shapes_in_steps(inputs: Sequence[TensorSpec]) -> list[tuple[Shapes, Shapes]]:
    """Return pairs of shapes of increasing size, like `two_shapes`, without repetitions.

    A free axis has the sizes of FREE_SIZES; or if its smallest size is larger than those, that
    size, doubled repeatedly, in equal ratios up to the largest.
    """

    def pair(step: int, least: int, most: int) -> tuple[int, int]:
        if least <= SMALL:
            return _within(least, most, FREE_SIZES[step])
        doublings = int(math.log2(most / least))
        size = least << round(doublings * min(step, STEPS) / STEPS)
        if least < size == most:
            size //= 2
        return _within(least, most, (size, 2 * size))

    steps = range(len(FREE_SIZES))
    return list(dict.fromkeys(_shapes(inputs, partial(pair, step)) for step in steps))


def starts_large(inputs: Sequence[TensorSpec]) -> bool:
    """Whether a free axis has a smallest size that is not small: then its largest is known too."""
    return any(axis.least > SMALL for spec in inputs for axis in _free(spec))


def _shapes(
    inputs: Sequence[TensorSpec], choose: Callable[[int, int], tuple[int, int]]
) -> tuple[Shapes, Shapes]:
    """Return two shapes; `choose` returns two sizes of a free axis from its smallest to largest."""
    free = [axis for spec in inputs for axis in _free(spec)]
    low = max((axis.least for axis in free), default=0)
    high = min((axis.most for axis in free), default=0)
    alike = low < high

    def within(axis: Axis) -> tuple[int, int]:
        least, most = (low, high) if alike else (axis.least, axis.most)
        return choose(max(1, least), most)

    first, second = (
        tuple(
            tuple(
                within(axis)[which] if size == -1 else size
                for size, axis in zip(spec.item_shape, spec.axes, strict=True)
            )
            for spec in inputs
        )
        for which in (0, 1)
    )
    return first, second


def _within(least: int, most: int, sizes: tuple[int, int]) -> tuple[int, int]:
    """Return two sizes from `least` to `most`, near the given ones, and different if possible."""
    small, large = (max(least, min(size, most)) for size in sizes)
    if small == large and small > least:
        small -= 1
    elif small == large and large < most:
        large += 1
    return small, large


def _free(spec: TensorSpec) -> list[Axis]:
    return [axis for size, axis in zip(spec.item_shape, spec.axes, strict=True) if size == -1]


def _numbers_of(spec: TensorSpec, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw normally distributed numbers, or integers in the input's range.

    Without a range, integers may be indices into a table of any length, so they are 0 or 1. torch
    does not index with uint8, so such numbers are pixels or bytes.
    """
    if np.dtype(spec.dtype).kind == "f":
        return rng.standard_normal(shape, np.float32).astype(spec.dtype)
    low, high = safe_range(spec)
    if spec.dtype == "uint8":
        low, high = spec.minimum or 0, 255 if spec.maximum is None else spec.maximum
    high = max(low, high)  # there is no number below a size of 0, and no place for one
    return np.asarray(rng.integers(low, high, shape, np.dtype(spec.dtype), endpoint=True))


@dataclass(frozen=True, slots=True)
class Samples:
    """The inputs of a definition: drawn ones, golden ones, and an example for people.

    Attributes:
        codec: how a client sends it.
        shapes: of items on which the model ran; not empty.
        examples: real inputs, from which all others are drawn; None: they are random.
    """

    inputs: tuple[TensorSpec, ...]
    codec: CodecSpec
    shapes: tuple[Shapes, ...]
    examples: Examples | None = None

    def random_inputs(self, rng: np.random.Generator, batch: int) -> Arrays:
        shapes = self.shapes[int(rng.integers(len(self.shapes)))]
        return draw(self.inputs, self.examples or self.codec, rng, batch, shapes)

    def golden_inputs(self) -> list[Arrays]:
        """Return items of every shape, the same at every call."""
        if self.examples is not None:
            return self.examples.golden()
        rng = np.random.default_rng(SEED)
        shapes = [self.shapes[index % len(self.shapes)] for index in range(GOLDEN)]
        whole = [spec.model_copy(update={"nan": False}) for spec in self.inputs]  # it is shown
        batches = [draw(whole, self.codec, rng, 1, shapes[0])]
        batches += [draw(self.inputs, self.codec, rng, 1, each) for each in shapes[1:]]
        return [item for batch in batches for item in unstack(batch)]

    def example(self) -> JsonValue:
        """Return a small PNG or WAV file in base64, or a golden item as numbers.

        None for more than 4096 numbers, or 16,384 samples of a sound, which are too many to show. A
        picture has no details of its file, such as a place.
        """
        if self.examples is not None and self.examples.display is not None:
            return self.examples.display
        if isinstance(self.codec, ImageCodecSpec):
            return self._with_picture(self.codec)
        item = self.golden_inputs()[0]
        if isinstance(self.codec, AudioCodecSpec):
            samples = next(iter(item.values())).ravel()
            return wav(samples, self.codec.rate) if samples.size <= MAX_SAMPLES else None
        if sum(array.size for array in item.values()) > MAX_EXAMPLE:
            return None
        plain = {name: _numbers(array) for name, array in item.items()}
        return plain if len(plain) > 1 else next(iter(plain.values()))

    def _with_picture(self, codec: ImageCodecSpec) -> JsonValue:
        """Return a picture, or with other inputs an object."""
        name, item = codec.input_of(self.inputs).name, self.golden_inputs()[0]
        picture = self._picture(codec.preprocess, item[name])
        if len(item) == 1:
            return picture
        others = {each: array for each, array in item.items() if each != name}
        if sum(array.size for array in others.values()) > MAX_EXAMPLE:
            return None
        return {name: picture, **{each: _numbers(array) for each, array in others.items()}}

    def _picture(self, how: PicturePreprocess, golden: Array) -> str:
        if how.fit == "none":  # others than those of the shapes may not fit
            return png(_ramp(*golden.shape))
        if self.examples is None or how.polarity != "light-on-dark":  # it may be inverted
            return png(_ramp(how.channels, EXAMPLE_PICTURE, EXAMPLE_PICTURE))
        return png(picture_of(golden, how), MAX_PICTURE)


def _normalise(pixels: Array, how: PicturePreprocess) -> Array:
    """Normalise levels [n, channels, h, w] as `models.inputs.preprocess` does for the model."""
    if how.values == "levels":
        return pixels
    mean, std = (np.array(each, np.float32)[:, None, None] for each in (how.mean, how.std))
    return np.asarray((pixels.astype(np.float32) / 255 - mean) / std)


def _numbers(array: Array) -> JsonValue:
    if array.dtype.kind == "f":  # as float64: a rounded float32 has many digits in JSON
        array = array.astype(np.float64).round(DECIMALS)
        missing = np.isnan(array)
        if missing.any():
            array = array.astype(object)
            array[missing] = None
    numbers: JsonValue = array.tolist()
    return numbers


def picture_of(array: Array, how: PicturePreprocess) -> Image.Image:
    """Return a picture of a model's input [channels, h, w], the inverse of the normalisation."""
    levels = array
    if how.values == "normalized":
        mean, std = (np.array(each, np.float32)[:, None, None] for each in (how.mean, how.std))
        levels = ((array * std + mean) * 255).round().clip(0, 255).astype(np.uint8)
    return Image.fromarray(levels[0] if how.channels == 1 else levels.transpose(1, 2, 0))


def png(picture: Image.Image, most: int | None = None) -> str:
    """Return a picture as PNG in base64, of at most some pixels across and down."""
    if most is not None:
        picture.thumbnail((most, most))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def wav(samples: Array, rate: int) -> str:
    """Return samples from -1 to 1 as a WAV file of 16 bits in base64."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes((samples.clip(-1, 1) * 32_767).astype("<i2").tobytes())
    return base64.b64encode(file.getvalue()).decode("ascii")


def _ramp(channels: int, height: int, width: int) -> Image.Image:
    """Return a picture that gets lighter towards its ends, in each channel another way."""
    ramp, across = (
        np.add.outer(np.linspace(0, down, height), np.linspace(0, 255 - down, width))
        for down in (240, 15)
    )
    levels = ramp if channels == 1 else np.stack([ramp, across, ramp[::-1]], axis=-1)
    return Image.fromarray(levels.round().astype(np.uint8))
