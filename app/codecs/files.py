"""Items as files, such as pictures: base64 in JSON, or bytes; tensors are accepted too."""

from __future__ import annotations

from app.codecs.base import OCTET_STREAM, Budget, Files
from app.codecs.base64_files import decoded
from app.codecs.item_schema import JsonSchema
from app.codecs.sniffing import sniffed
from app.codecs.tensor import TensorCodec, check_media_type
from app.errors import InvalidInput
from app.types import Item
from models.manifest import Manifest


class FileCodec(TensorCodec):
    """See `app.codecs.base.Codec`. A payload that is not a file is read as a tensor.

    Args:
        manifest: its first input is what a file becomes.
        files: the files that `of_file` reads.
    """

    def __init__(self, manifest: Manifest, files: Files) -> None:
        super().__init__(manifest)
        self.files: Files | None = files
        self._files = files
        self._input = manifest.inputs[0]
        self._has_octets = OCTET_STREAM in self.media_types
        octets = () if self._has_octets else (OCTET_STREAM,)
        self.media_types = (*files.types, *octets, *self.media_types)

    def of_file(self, data: bytes, budget: Budget | None) -> Item:
        """The item of a file, which is charged to the request's budget.

        Raises:
            PayloadTooLarge, TooLongForLoop: if the budget is spent.
            InvalidInput: if the file cannot be read, or the model does not take it.
        """
        raise NotImplementedError

    def decode(self, value: object, budget: Budget | None = None) -> Item:
        """A base64 string (or data: URL), or numbers as the model takes them."""
        if not isinstance(value, str):
            return super().decode(value, budget)
        if budget is not None:
            budget.read(len(value))
        try:
            data = decoded(value)
        except ValueError as error:
            raise InvalidInput(
                f"{self._input.name!r}: a string must be {self._files.called} in base64; {error}"
            ) from error
        return self._read(data, budget)

    def decode_raw(
        self, media_type: str, body: bytes, *, max_items: int | None, budget: Budget | None = None
    ) -> list[Item]:
        """One file, or tensors; a file may also be sent as application/octet-stream."""
        if media_type in self._files.types:
            return [self._read(body, budget)]
        check_media_type(media_type, self.media_types)
        if media_type != OCTET_STREAM:
            return super().decode_raw(media_type, body, max_items=max_items, budget=budget)
        # No tensor of a fixed shape begins like a file; others are not read from their bytes.
        if not self._has_octets or sniffed(body) in self._files.types:
            return [self._read(body, budget)]
        try:
            return super().decode_raw(media_type, body, max_items=max_items)
        except InvalidInput as error:
            raise InvalidInput(f"{error}; it is not {self._files.called} either") from error

    def item_schema(self) -> JsonSchema:
        """A string with a file in base64, or the tensor."""
        file = {
            "type": "string",
            "contentEncoding": "base64",
            "description": f"{self._files.called} in base64, or as a data: URL",
        }
        tensors = super().item_schema()
        return {"anyOf": [file, *tensors.get("anyOf", [tensors])]}

    def _read(self, data: bytes, budget: Budget | None) -> Item:
        if budget is not None:
            budget.read(len(data))
        return self.of_file(data, budget)
