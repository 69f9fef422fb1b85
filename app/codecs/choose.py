"""The codec for each kind of input: a literal table."""

from __future__ import annotations

from collections.abc import Callable

from app.codecs.audio import AudioCodec
from app.codecs.base import Codec
from app.codecs.image import ImageCodec
from app.codecs.tensor import TensorCodec
from app.codecs.text import TextCodec
from app.errors import ArtifactInvalid
from models.manifest import Manifest
from models.tensors import FileName

Read = Callable[[FileName], bytes]
CODECS: dict[str, Callable[[Manifest, Read], Codec]] = {
    "tensor": lambda manifest, _: TensorCodec(manifest),
    "image": lambda manifest, _: ImageCodec(manifest),
    "audio": lambda manifest, _: AudioCodec(manifest),
    "text": TextCodec,
}


def no_files(name: FileName) -> bytes:
    """Stand in for reading files, for models whose codec needs none.

    Raises:
        ArtifactInvalid: always.
    """
    raise ArtifactInvalid(f"{name} cannot be read: the artifact is not available")


def codec_for(manifest: Manifest, read: Read = no_files) -> Codec:
    """The codec of a model; the table has every kind that the manifest's schema allows.

    Args:
        manifest: the model's manifest.
        read: returns the verified bytes of a file of its artifact.

    Raises:
        ArtifactInvalid: if the codec cannot use a file that it needs.
    """
    return CODECS[manifest.codec.kind](manifest, read)
