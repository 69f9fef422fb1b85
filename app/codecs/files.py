"""Items as files, such as pictures: base64 in JSON, or bytes; tensors are accepted too."""

from __future__ import annotations

from app.codecs.base import FLAC, JPEG, OCTET_STREAM, Budget, Files
from app.codecs.base64_files import decoded
from app.codecs.item_schema import JsonSchema
from app.codecs.sniffing import sniffed
from app.codecs.tensor import TensorCodec, check_media_type, listed, numbers_of
from app.errors import InvalidInput, UnsupportedMediaType
from app.types import Item
from models.manifest import Manifest
from models.tensors import TensorSpec

SHORT = (JPEG, FLAC)  # their files begin with only three or four known bytes


class FileCodec(TensorCodec):
    """See `app.codecs.base.Codec`. A payload that is not a file is read as a tensor.

    Args:
        manifest: describes the inputs.
        files: the files that `of_file` reads.
        spec: the input that a file becomes.
        others: the names of the inputs that an item has in addition to its file.
    """

    def __init__(
        self, manifest: Manifest, files: Files, spec: TensorSpec, others: tuple[str, ...] = ()
    ) -> None:
        super().__init__(manifest)
        self._files = files
        self._input = spec
        self._specs = {each.name: each for each in manifest.inputs}
        self._others = others
        self._names = frozenset((spec.name, *others))
        self._has_octets = OCTET_STREAM in self.media_types
        if others:
            self.parts = (spec.name, *others)
            return
        self.files = files
        octets = () if self._has_octets else (OCTET_STREAM,)
        self.media_types = (*files.types, *octets, *self.media_types)

    def of_file(self, data: bytes, budget: Budget | None) -> Item:
        """The item of a file, which is charged to the request's budget; without other inputs.

        Raises:
            PayloadTooLarge, TooLongForLoop: if the budget is spent.
            InvalidInput: if the file cannot be read, or the model does not take it.
        """
        raise NotImplementedError

    def decode(self, value: object, budget: Budget | None = None) -> Item:
        """A base64 string (or data: URL), or numbers; by name with other inputs."""
        if isinstance(value, str):
            if self.parts:
                raise InvalidInput(f"a file alone is not an item; send {self._wanted()}")
            return self._read(value, budget)
        if isinstance(value, dict):
            file = value.get(self._input.name)
            if isinstance(file, str | bytes):
                return self._named(value, file, budget)
        return super().decode(value, budget)

    def decode_raw(
        self, media_type: str, body: bytes, *, max_items: int | None, budget: Budget | None = None
    ) -> list[Item]:
        """One file, or tensors; a file may also be sent as application/octet-stream."""
        if media_type in self._files.types:
            if self.parts:
                raise UnsupportedMediaType(
                    f"{media_type} alone is not an item of this model; send {self._wanted()}"
                )
            return [self._read(body, budget)]
        check_media_type(media_type, self.media_types)
        if media_type != OCTET_STREAM:
            return super().decode_raw(media_type, body, max_items=max_items, budget=budget)
        found = sniffed(body)
        if not self._has_octets or found in self._files.types:
            try:
                return [self._read(body, budget)]
            except InvalidInput:
                is_sure = found not in SHORT or not self._has_octets
                if is_sure or not self.has_whole_items(body, many=max_items is not None):
                    raise  # else numbers begin like a file
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
        if not self.parts:
            return {"anyOf": [file, *tensors.get("anyOf", [tensors])]}
        inputs = dict(tensors["properties"])
        inputs[self._input.name] = {"anyOf": [file, inputs[self._input.name]]}
        return {**tensors, "properties": inputs}

    def _read(self, given: str | bytes, budget: Budget | None) -> Item:
        if budget is not None:
            budget.read(len(given))
        if isinstance(given, bytes):
            return self.of_file(given, budget)
        try:
            data = decoded(given)
        except ValueError as error:
            raise InvalidInput(
                f"{self._input.name!r}: a string must be {self._files.called} in base64; {error}"
            ) from error
        return self.of_file(data, budget)

    def _named(self, value: dict[str, object], file: str | bytes, budget: Budget | None) -> Item:
        """An item of a file and other inputs, by name."""
        if not self._names - self.optional <= set(value) <= self._names:
            raise InvalidInput(f"expected {self._wanted()}, got {listed(list(value))}")
        specs = self._specs
        made = {name: numbers_of(specs[name], value.get(name), flat=False) for name in self._others}
        item = self._read(file, budget)
        if not self._others:
            return item
        made |= item.arrays
        arrays = {name: made[name] for name in specs}
        self.check_together(arrays)
        named = self.item(arrays)
        named.note = item.note
        return named

    def _wanted(self) -> str:
        names = self.parts or (self._input.name,)
        return f"an object with {listed(list(names))}, or a form with those parts"
