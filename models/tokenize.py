"""Turns texts into tokens, for export, load payloads and serving."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.manifest import TextCodecSpec
from models.tensors import Array, Arrays

MISSING = "models that read text need the package `tokenizers`: pip install 'torchlane[text]'"


class TextError(Exception):
    """The text, or the tokenizer, cannot be used; the message says why."""


class Tokens(NamedTuple):
    """The tokens of one item.

    Attributes:
        ids: int64 [n].
        type_ids: int64 [n]: 0 for tokens of the first text, 1 for those of the second.
        cut: how many tokens were cut off.
        spans: of each token, where it stands in its text: first character and the one after the
            last; (0, 0) for special tokens.
    """

    ids: Array
    type_ids: Array
    cut: int
    spans: tuple[tuple[int, int], ...]


class Tokenizer:
    """The tokenizer of one model; it may be called from several threads.

    Padding and truncation that its file asks for are ignored: the model's `max_tokens` counts, and
    the engine pads.

    Args:
        data: the file, as `tokenizers` writes it.
        codec: says how many tokens an item has at most, and which inputs take them.

    Raises:
        TextError: if the package is missing, or the file is no tokenizer, or its special tokens
            leave no room for others.
    """

    def __init__(self, data: bytes, codec: TextCodecSpec) -> None:
        try:
            import tokenizers  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise TextError(MISSING) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:  # the package raises nothing more exact
            raise TextError(f"{codec.tokenizer}: not a file of `tokenizers`: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._codec = codec
        special = self._tokenizer.num_special_tokens_to_add(codec.pairs)
        self._room = codec.max_tokens - special
        if self._room < 1:
            raise TextError(f"{codec.max_tokens} tokens leave no room next to {special} special")

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        return int(self._tokenizer.get_vocab_size())

    def tokens(self, text: str, second: str | None = None) -> Tokens:
        """The tokens of a text, or of a pair of texts, special ones included.

        What is too long is cut off at the end; of a pair from the longer text first.

        Raises:
            TextError: if a text has surrogates that are not in pairs.
        """
        first = self._encoded(self._codec.prompt + text)
        other = None if second is None else self._encoded(second)
        over = len(first) + (len(other) if other is not None else 0) - self._room
        if over > 0:
            kept = _kept(len(first), None if other is None else len(other), self._room)
            first.truncate(kept[0])
            if other is not None:
                other.truncate(kept[1])
        whole = self._tokenizer.post_process(first, other)
        return Tokens(
            np.array(whole.ids, np.int64),
            np.array(whole.type_ids, np.int64),
            max(0, over),
            tuple(whole.offsets),
        )

    def arrays(self, tokens: Tokens) -> Arrays:
        """The model's inputs, without the batch axis, of some tokens."""
        return inputs_of(self._codec, tokens.ids, tokens.type_ids)

    def _encoded(self, text: str):  # type: ignore[no-untyped-def]  # an `Encoding`
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except TypeError as error:  # what the package says of half a pair of surrogates
            raise TextError("the text has an unpaired surrogate, which is no character") from error


def inputs_of(codec: TextCodecSpec, ids: Array, type_ids: Array | None = None) -> Arrays:
    """The model's inputs, without the batch axis, of token ids; without type ids all are 0."""
    made = {codec.ids: ids}
    if codec.mask is not None:
        made[codec.mask] = np.ones(len(ids), np.int64)
    if codec.type_ids is not None:
        made[codec.type_ids] = np.zeros(len(ids), np.int64) if type_ids is None else type_ids
    return made


def _kept(first: int, second: int | None, room: int) -> tuple[int, int]:
    """How many tokens of two texts are kept: the longer one is cut first."""
    if second is None:
        return min(first, room), 0
    short = min(first, second, room // 2)
    return (short, min(second, room - short)) if first <= second else (room - short, short)
