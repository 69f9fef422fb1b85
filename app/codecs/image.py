"""Items as pictures: base64 in JSON, PNG or JPEG bytes; preprocessed tensors are accepted too."""

from __future__ import annotations

from app.codecs.base import JPEG, OCTET_STREAM, PNG, Budget
from app.codecs.base64_files import decoded
from app.codecs.item_schema import JsonSchema
from app.codecs.places import Places
from app.codecs.sniffing import sniffed
from app.codecs.tensor import TensorCodec, check_media_type
from app.errors import InvalidInput
from app.types import Item, Note
from models.codec_specs import ImageCodecSpec
from models.manifest import Manifest
from models.pictures import PictureError
from models.preprocess import geometry_of, open_picture, preprocess

PICTURES = (PNG, JPEG)


class ImageCodec(TensorCodec):
    """See `app.codecs.base.Codec`. A payload that is not a picture is read as a tensor.

    If outputs are boxes or masks, items of pictures have a note.

    Args:
        manifest: its codec must be of kind `image`; the picture is its only input.

    Raises:
        TypeError: if the manifest has another codec, which is a bug.
    """

    def __init__(self, manifest: Manifest) -> None:
        if not isinstance(manifest.codec, ImageCodecSpec):
            raise TypeError(f"bug: an image codec for {manifest.codec.kind!r}")
        super().__init__(manifest)
        self._how = manifest.codec.preprocess
        if manifest.codec.boxes or manifest.codec.masks:
            self.places = Places(manifest)
        self._input = manifest.inputs[0]
        self.media_types = (*PICTURES, *self.media_types)

    def decode(self, value: object, budget: Budget | None = None) -> Item:
        """A base64 string (or data: URL), or numbers that are already preprocessed."""
        if not isinstance(value, str):
            return super().decode(value, budget)
        if budget is not None:
            budget.read(len(value))
        try:
            data = decoded(value)
        except ValueError as error:
            raise InvalidInput(
                f"{self._input.name!r}: a string must be a PNG or JPEG file in base64; {error}"
            ) from error
        return self._picture(data, budget)

    def decode_raw(
        self, media_type: str, body: bytes, *, max_items: int | None, budget: Budget | None = None
    ) -> list[Item]:
        """One picture, or tensors; a picture file may also be sent as application/octet-stream."""
        if media_type in PICTURES:
            return [self._picture(body, budget)]
        check_media_type(media_type, self.media_types)
        if media_type != OCTET_STREAM:
            return super().decode_raw(media_type, body, max_items=max_items, budget=budget)
        if sniffed(body) in PICTURES:  # no preprocessed tensor begins like a file
            return [self._picture(body, budget)]
        try:
            return super().decode_raw(media_type, body, max_items=max_items)
        except InvalidInput as error:
            raise InvalidInput(f"{error}; it is not a PNG or JPEG file either") from error

    def item_schema(self) -> JsonSchema:
        """A string with a base64 picture, or the tensor."""
        picture = {
            "type": "string",
            "contentEncoding": "base64",
            "description": "a PNG or JPEG file in base64, or as a data: URL",
        }
        return {"anyOf": [picture, *super().item_schema()["anyOf"]]}

    def _picture(self, data: bytes, budget: Budget | None) -> Item:
        try:
            if budget is not None:
                budget.read(len(data))
            opened = open_picture(data, self._how)
            if budget is not None:
                budget.picture(opened.picture.width * opened.picture.height, opened.cost)
            item = Item({self._input.name: preprocess(opened, self._how)})
            if self.places is not None:
                item.note = Note(image=geometry_of(opened, self._how))
            return item
        except PictureError as error:
            raise InvalidInput(f"{self._input.name!r}: {error}") from error
