"""Request bodies for any model, made from the public manifest that GET /models/{name} answers."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from PIL import Image
from pydantic import TypeAdapter

from models.manifest import CodecSpec, ImageCodecSpec
from models.tensors import Array, TensorSpec

FREE_SIZES = (1, 2, 3, 4, 5, 6, 7, 8)  # what a free dimension is drawn from
ZIPF_EXPONENT = 1.1  # the skew of popular inputs; web request popularity lies around 0.6 to 1.2


class Payloads:
    """Draws items of one model, and JSON bodies of them.

    Args:
        manifest: the `manifest` of GET /models/{name}.
        seed: two generators with one seed draw the same items.
        popular: how many different items the skewed draws choose from.
    """

    def __init__(self, manifest: Mapping[str, Any], seed: int, popular: int = 100) -> None:
        self._inputs = [TensorSpec.model_validate(spec) for spec in manifest["inputs"]]
        codec: CodecSpec = TypeAdapter[CodecSpec](CodecSpec).validate_python(manifest["codec"])
        self._codec = codec
        self._rng = np.random.default_rng(seed)
        # The same popular items whatever the seed: all users ask for the same ones.
        common = np.random.default_rng(0)
        self._popular = [self._draw(common) for _ in range(popular)]
        weights = np.arange(1, popular + 1, dtype=np.float64) ** -ZIPF_EXPONENT
        self._weights = weights / weights.sum()

    def unique(self) -> object:
        """An item that was very likely never sent before."""
        return self._draw(self._rng)

    def repeated(self) -> object:
        """One of the popular items, the first ones far more often than the last (Zipf)."""
        return self._popular[self._rng.choice(len(self._popular), p=self._weights)]

    def with_duplicates(self, size: int) -> list[object]:
        """A batch in which about half of the items stand twice or more."""
        distinct = [self.unique() for _ in range(max(1, size // 2))]
        picks = self._rng.integers(0, len(distinct), size=size - len(distinct))
        batch = [*distinct, *(distinct[pick] for pick in picks)]
        order = self._rng.permutation(size)
        return [batch[place] for place in order]

    def _draw(self, rng: np.random.Generator) -> object:
        if isinstance(self._codec, ImageCodecSpec):
            return _picture(self._codec, rng)
        arrays = {spec.name: _array(spec, rng).tolist() for spec in self._inputs}
        return arrays if len(arrays) > 1 else next(iter(arrays.values()))


def body(item: object) -> bytes:
    """The body of POST /predict."""
    return orjson.dumps({"input": item})


def batch_body(items: list[object]) -> bytes:
    """The body of POST /batch-predict."""
    return orjson.dumps({"inputs": items})


def _array(spec: TensorSpec, rng: np.random.Generator) -> Array:
    shape = tuple(int(rng.choice(FREE_SIZES)) if n == -1 else n for n in spec.item_shape)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0, 2, shape).astype(dtype)


def _picture(codec: ImageCodecSpec, rng: np.random.Generator) -> str:
    how = codec.preprocess
    shape = (how.height, how.width) if how.channels == 1 else (how.height, how.width, 3)
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")
