"""Inputs for a model of which no more is known than what shapes it takes."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from pydantic import JsonValue

from models.manifest import CodecSpec, ImageCodecSpec, PicturePreprocess
from models.tensors import Array, Arrays, Dtype, TensorSpec

GOLDEN = 3
SEED = 11
EXAMPLE_PICTURE = 16  # pixels to a side
MAX_EXAMPLE = 4096  # numbers; more are read by nobody, and stand in many documents
DECIMALS = 2  # of the numbers of an example: they are read by people, and there may be many

Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


def _floats(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape, np.float32)


def _zero_or_one(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 2, shape, np.uint8)


def _bytes(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 256, shape, np.uint8)


# Integers may be indices into a table of any length, so they are 0 or 1; but torch takes no 8-bit
# number for an index: a uint8 is a pixel or a byte.
DRAWS: Mapping[Dtype, Draw] = {
    **dict.fromkeys(("float16", "float32", "float64"), _floats),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "bool"), _zero_or_one),
    "uint8": _bytes,
}


def draw(
    inputs: Sequence[TensorSpec], codec: CodecSpec, rng: np.random.Generator, sizes: tuple[int, int]
) -> Arrays:
    """A batch of random inputs.

    Args:
        inputs: what the model takes.
        codec: pictures are drawn as pixels and normalised as it says.
        rng: where chance comes from.
        sizes: the batch size, and the size of every free dimension: one for all, since inputs often
            share their free dimensions (as tokens and their mask do).

    Returns:
        input name -> array with the batch axis.
    """
    made = {}
    for spec in inputs:
        shape = _shape(spec, sizes)
        if isinstance(codec, ImageCodecSpec):
            made[spec.name] = _normalised(_bytes(rng, shape), codec.preprocess)
        else:
            made[spec.name] = DRAWS[spec.dtype](rng, shape).astype(spec.dtype)
    return made


def sample_bytes(inputs: Sequence[TensorSpec], sizes: tuple[int, int]) -> int:
    """How many bytes `draw` would give back."""
    return sum(math.prod(_shape(spec, sizes)) * np.dtype(spec.dtype).itemsize for spec in inputs)


def _shape(spec: TensorSpec, sizes: tuple[int, int]) -> tuple[int, ...]:
    batch, free = sizes
    return (batch, *(free if size == -1 else size for size in spec.item_shape))


@dataclass(frozen=True, slots=True)
class Samples:
    """What a definition needs: random inputs, golden ones, and an example for people.

    Attributes:
        inputs: what the model takes.
        codec: how a client sends it.
        free_sizes: sizes of free dimensions on which the model was seen to run; not empty.
    """

    inputs: tuple[TensorSpec, ...]
    codec: CodecSpec
    free_sizes: tuple[int, ...]

    def random_inputs(self, rng: np.random.Generator, batch: int) -> Arrays:
        """See `Definition.random_inputs`."""
        free = int(rng.choice(self.free_sizes))
        return draw(self.inputs, self.codec, rng, (batch, free))

    def golden_inputs(self) -> list[Arrays]:
        """See `Definition.golden_inputs`; the same at every call, in every free size."""
        rng = np.random.default_rng(SEED)
        frees = [self.free_sizes[index % len(self.free_sizes)] for index in range(GOLDEN)]
        batches = [draw(self.inputs, self.codec, rng, (1, free)) for free in frees]
        return [{name: array[0] for name, array in batch.items()} for batch in batches]

    def example(self) -> JsonValue:
        """See `Definition.example`: a small PNG in base64, or the first golden item in numbers.

        None where that would be more than 4096 numbers: too large to show.
        """
        if isinstance(self.codec, ImageCodecSpec):
            return _png(self.codec.preprocess.channels)
        item = self.golden_inputs()[0]
        if sum(array.size for array in item.values()) > MAX_EXAMPLE:
            return None
        plain = {name: _numbers(array) for name, array in item.items()}
        return plain if len(plain) > 1 else next(iter(plain.values()))


def _normalised(pixels: Array, how: PicturePreprocess) -> Array:
    """Levels [n, channels, h, w] as `models.preprocess` would hand them to the model."""
    mean, std = (np.array(each, np.float32)[:, None, None] for each in (how.mean, how.std))
    return np.asarray((pixels.astype(np.float32) / 255 - mean) / std)


def _numbers(array: Array) -> JsonValue:
    if array.dtype.kind == "f":  # by way of float64: a rounded float32 has many digits in JSON
        array = array.astype(np.float64).round(DECIMALS)
    numbers: JsonValue = array.tolist()
    return numbers


def _png(channels: int) -> str:
    ramp = np.arange(EXAMPLE_PICTURE**2, dtype=np.uint8).reshape(EXAMPLE_PICTURE, -1)
    levels = ramp if channels == 1 else np.stack([ramp, ramp.T, ramp[::-1]], axis=-1)
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")
