"""Items as pictures: base64 in JSON, or PNG, JPEG, WebP or GIF bytes; tensors are accepted too."""

from __future__ import annotations

from app.codecs.base import GIF, JPEG, PNG, WEBP, Budget, Files
from app.codecs.files import FileCodec
from app.codecs.places import Places
from app.codecs.shared_sizes import check_equal
from app.errors import InvalidInput
from app.types import Item, Note
from models.bounds import shared_axes
from models.codec_specs import ImageCodecSpec
from models.inputs.pictures import PictureError
from models.inputs.preprocess import geometry_of, import_readers, open_picture, preprocess
from models.manifest import Manifest

PICTURES = Files((PNG, JPEG, WEBP, GIF), "a PNG, JPEG, WebP or GIF file")


class ImageCodec(FileCodec):
    """See `app.codecs.base.Codec`. A payload that is not a picture is read as a tensor.

    If outputs are boxes or masks, items of pictures have a note.

    Args:
        manifest: its codec must be of kind `image`.

    Raises:
        TypeError: if the manifest has another codec, which is a bug.
    """

    def __init__(self, manifest: Manifest) -> None:
        if not isinstance(manifest.codec, ImageCodecSpec):
            raise TypeError(f"bug: an image codec for {manifest.codec.kind!r}")
        spec = manifest.codec.input_of(manifest.inputs)
        others = [each.name for each in manifest.inputs if each is not spec]
        super().__init__(manifest, PICTURES, spec, tuple(others))
        self._how = manifest.codec.preprocess
        self._own_shared = shared_axes([spec])
        import_readers()  # now, so that no request waits for it
        if manifest.codec.boxes or manifest.codec.masks:
            self.places = Places(manifest)

    def of_file(self, data: bytes, budget: Budget | None) -> Item:
        try:
            charge = None if budget is None else budget.picture
            opened = open_picture(data, self._how, charge)
            if self._how.fit == "none":
                self._check_size(*opened.upright_size)
            item = Item({self._input.name: preprocess(opened, self._how)})
            if self.places is not None:
                item.note = Note(image=geometry_of(opened, self._how))
            return item
        except PictureError as error:
            raise InvalidInput(f"{self._input.name!r}: {error}") from error

    def _check_size(self, width: int, height: int) -> None:
        """Check the size of a picture that is not scaled, before it is decoded."""
        channels, down, across = self._input.axes
        for what, size, axis in (("height", height, down), ("width", width, across)):
            if not axis.least <= size <= axis.most:
                raise InvalidInput(
                    f"{self._input.name!r}: the picture has {width} x {height} pixels, the model "
                    f"takes a {what} of {axis.least} to {axis.most}, and pictures are not scaled",
                    [{"input": self._input.name, "got": size, "limit": axis.most}],
                )
        check_equal(self._own_shared, {self._input.name: (channels.most, height, width)})
