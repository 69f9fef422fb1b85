"""The codec for each kind of input: a literal table."""

from __future__ import annotations

from collections.abc import Callable

from app.codecs.base import Codec
from app.codecs.image import ImageCodec
from app.codecs.tensor import TensorCodec
from models.manifest import Manifest

CODECS: dict[str, Callable[[Manifest], Codec]] = {"tensor": TensorCodec, "image": ImageCodec}


def codec_for(manifest: Manifest) -> Codec:
    """The codec of a model; every kind that the manifest's schema allows is in the table."""
    return CODECS[manifest.codec.kind](manifest)
