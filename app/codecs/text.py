"""Items as texts, which a tokenizer converts to tokens; token ids and tensors are accepted too."""

from __future__ import annotations

from collections.abc import Callable

from app.codecs.base import JSON, TEXT, Budget
from app.codecs.item_schema import JsonSchema, tensor_item
from app.codecs.tensor import TensorCodec, check_media_type, convert_numbers, kind
from app.codecs.values import check_values, misshapen
from app.errors import ArtifactInvalid, InvalidInput, UnsupportedMediaType
from app.types import Array, Item, Note
from models.codec_specs import TextCodecSpec
from models.inputs.tokenize import TextError, Tokenizer, inputs_of, weight
from models.manifest import Manifest
from models.system.byte_order import NotUtf8Error, strip_byte_order_mark
from models.tensors import FileName, TensorSpec

# Per item: several times what most models can use; takes a tenth of a second in a thread.
MAX_TEXT_CHARACTERS = 100_000
MAX_TOKEN_CHARACTERS = 10  # per token: a model with a high token limit accepts longer texts
MAX_UTF_8_BYTES = 4  # per character
FIRST, SECOND = "text", "text_pair"


class TextCodec(TensorCodec):
    """See `app.codecs.base.Codec`. Items of JSON and texts have a note.

    Args:
        manifest: its codec must be of kind `text`.
        read: returns the bytes of a file of its artifact.

    Raises:
        ArtifactInvalid: if the tokenizer cannot be used.
        TypeError: if the manifest has another codec, which is a bug.
    """

    def __init__(self, manifest: Manifest, read: Callable[[FileName], bytes]) -> None:
        if not isinstance(manifest.codec, TextCodecSpec):
            raise TypeError(f"bug: a text codec for {manifest.codec.kind!r}")
        self._how = manifest.codec
        try:
            self._tokenizer = Tokenizer(read(self._how.tokenizer), self._how)
        except TextError as error:
            raise ArtifactInvalid(str(error)) from error
        inputs = [self._bounded(spec) for spec in manifest.inputs]
        self._most = max(MAX_TEXT_CHARACTERS, MAX_TOKEN_CHARACTERS * self._how.max_tokens)
        self._ids = next(spec for spec in inputs if spec.name == self._how.ids)
        texts = f"a list of two texts or {{{FIRST!r}, {SECOND!r}}}" if self._how.pairs else "a text"
        names = ", ".join(repr(spec.name) for spec in inputs)
        self._wanted = f"{texts}, a list of token ids, or an object with {names}"
        super().__init__(manifest.model_copy(update={"inputs": tuple(inputs)}))
        self._mask = self._how.mask  # a row must not be masked entirely, padded or not
        self.manifest = manifest
        self.media_types = (*[TEXT] * (not self._how.pairs), *self.media_types)

    def decode(self, value: object, budget: Budget | None = None) -> Item:
        """An item from a text, a pair of texts, token ids, or an object with inputs by name."""
        how = self._how
        if isinstance(value, str):
            return self._item(value, None, budget)
        if isinstance(value, list):
            if any(isinstance(each, str) for each in value):
                return self._item(value[0], value[1] if len(value) == 2 else value, budget)
            return self._of_ids(value, budget)
        if isinstance(value, dict) and FIRST in value and FIRST not in how.inputs:
            if not value.keys() <= {FIRST, SECOND}:
                raise InvalidInput(
                    f"expected {self._wanted}, got other names in addition to {FIRST!r}"
                )
            return self._item(value[FIRST], value.get(SECOND), budget)
        if not isinstance(value, dict):
            raise InvalidInput(f"expected {self._wanted}, got {kind(value)}")
        item = super().decode(value, budget)
        return _noted(item, Note(len(item.arrays[how.ids])), budget)

    def decode_raw(
        self, media_type: str, body: bytes, *, max_items: int | None, budget: Budget | None = None
    ) -> list[Item]:
        """One text in UTF-8, or an .npy file if token ids are the only input."""
        check_media_type(media_type, self.media_types)
        if media_type != TEXT:
            return super().decode_raw(media_type, body, max_items=max_items, budget=budget)
        if max_items is not None:
            raise UnsupportedMediaType(
                f'{TEXT} is one text, not several; send them as {JSON}, {{"inputs": ["...", ...]}}'
            )
        body = _text(body)
        if len(body) > MAX_UTF_8_BYTES * self._most:
            raise InvalidInput(
                f"a text may have at most {self._most} characters, got {len(body)} bytes; split it"
            )
        if budget is not None:
            budget.read(len(body))
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"the text is not UTF-8: byte {body[error.start]:#04x} at {error.start}"
            ) from error
        return [self._item(text, None, budget)]

    def item_schema(self) -> JsonSchema:
        """One text or two, token ids, or the inputs by name."""
        text: JsonSchema = {"type": "string", "maxLength": self._most}
        tensors = super().item_schema()
        forms = list(tensors.get("anyOf", [tensors]))
        if not self._how.pairs:
            if len(self._how.inputs) > 1:
                (ids,) = tensor_item([self._ids])["anyOf"][:1]
                forms.insert(0, ids)
            return {"anyOf": [text, *forms]}
        pair = {"type": "array", "items": text, "minItems": 2, "maxItems": 2}
        by_name = {
            "type": "object",
            "properties": {FIRST: text, SECOND: text},
            "required": [FIRST, SECOND],
            "additionalProperties": False,
        }
        return {"anyOf": [pair, by_name, *forms]}

    def _item(self, first: object, second: object, budget: Budget | None) -> Item:
        """The item of one text or two."""
        if not isinstance(first, str) or not isinstance(second, str | None):
            raise InvalidInput(f"expected {self._wanted}")
        if (second is not None) != self._how.pairs:
            got = "one text" if second is None else "two texts"
            raise InvalidInput(f"expected {self._wanted}, got {got}")
        size = len(first) if second is None else len(first) + len(second)
        if size > self._most:
            raise InvalidInput(
                f"a text may have at most {self._most} characters, got {size}; split it",
                [{"got": size, "limit": self._most}],
            )
        if budget is not None:
            budget.text(size, weight(first) + weight(second or ""))
        try:
            tokens = self._tokenizer.tokens(first, second)
        except TextError as error:
            raise InvalidInput(str(error)) from error
        if len(tokens.ids) < self._ids.axes[0].least:
            raise InvalidInput(
                f"the text has {len(tokens.ids)} tokens, the model needs at least "
                f"{self._ids.axes[0].least}"
            )
        note = Note(
            len(tokens.ids), tokens.cut, "" if tokens.spans is None else first, tokens.spans
        )
        return _noted(self._fed(tokens.ids, tokens.type_ids), note, budget)

    def _of_ids(self, value: list[object], budget: Budget | None) -> Item:
        """The item of token ids, exactly as sent."""
        if self._how.pairs and self._how.type_ids is not None:
            raise InvalidInput(
                f"token ids do not say to which text they belong; expected {self._wanted}"
            )
        if budget is not None:
            budget.ids(len(value))
        ids = convert_numbers(self._ids, value)
        if not self._ids.takes(ids.shape):
            raise misshapen(self._ids, ids.shape)
        return _noted(self._fed(ids), Note(len(ids)), budget)

    def _fed(self, ids: Array, type_ids: Array | None = None) -> Item:
        check_values(self._ids, ids)
        arrays = inputs_of(self._how, ids, type_ids)
        return self.item({spec.name: arrays[spec.name] for spec in self.manifest.inputs})

    def _bounded(self, spec: TensorSpec) -> TensorSpec:
        """The input with limits of its values; the manifest's limits take precedence."""
        how = self._how
        most = {how.ids: self._tokenizer.vocabulary - 1, how.mask: 1, how.type_ids: int(how.pairs)}
        least, limit = spec.minimum, spec.maximum
        return spec.model_copy(
            update={
                "minimum": 0 if least is None else least,
                "maximum": most[spec.name] if limit is None else limit,
            }
        )


def _text(body: bytes) -> bytes:
    try:
        return strip_byte_order_mark(body)
    except NotUtf8Error as error:
        raise InvalidInput(f"the text is not UTF-8: {error}") from error


def _noted(item: Item, note: Note, budget: Budget | None) -> Item:
    if budget is not None:
        budget.tokens(note.tokens, labelled=note.spans is not None)
    item.note = note
    return item
