"""Converts texts to tokens, for export, load payloads and serving."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from models.codec_specs import TextCodecSpec
from models.tensors import Array, Arrays

# The package's `encode` holds the GIL: about a millisecond for this `weight`, two at worst.
# `encode_batch` releases it.
MAX_GIL_WEIGHT = 4096
NOT_ASCII_WEIGHT = 6  # most of a character: normalization turns some into several
BLANK_MARKS = "\u2581\u0120"  # in vocabularies: of SentencePiece, and of byte-level BPE
# By code point; the last one stands for all above.
IS_BLANK = np.array([chr(code).isspace() for code in range(0x3002)])
MISSING = "models that read text need the package `tokenizers`: pip install 'torchlane[text]'"


class TextError(Exception):
    """The text or the tokenizer cannot be used; the message gives the reason."""


class Tokens(NamedTuple):
    """The tokens of one item.

    Attributes:
        ids: int64 [n].
        type_ids: int64 [n]: 0 for tokens of the first text, 1 for those of the second.
        cut: how many tokens were cut off.
        spans: int32 [n, 2]: each token's place in its text without blanks around it, the first
            character and the one after the last; equal for tokens that are not in it, or blank.
            None unless tokens are classified.
    """

    ids: Array
    type_ids: Array
    cut: int
    spans: Array | None


class Tokenizer:
    """The tokenizer of one model; thread-safe.

    Ignores padding and truncation in its file: the model's `max_tokens` is the limit, and the
    engine pads.

    Args:
        data: the file, as `tokenizers` writes it.
        codec: has the most tokens of an item, and the inputs for them.

    Raises:
        TextError: if the package is missing, the file is not a tokenizer, or its special tokens
            leave no room for others.
    """

    def __init__(self, data: bytes, codec: TextCodecSpec) -> None:
        try:
            import tokenizers  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise TextError(MISSING) from error
        # Else `encode_batch` starts a thread per core, which would compete with the replicas.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(data)
        except BaseException as error:  # the package raises nothing more specific
            _check_raised(error)
            raise TextError(f"{codec.tokenizer}: not a file of `tokenizers`: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._codec = codec
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True) if codec.of_tokens else {}
        self._blanks = np.array(
            [number for token, number in vocabulary.items() if not token.strip(BLANK_MARKS)],
            np.int64,
        )
        special = self._tokenizer.num_special_tokens_to_add(codec.pairs)
        if special >= codec.max_tokens:
            raise TextError(f"{codec.max_tokens} tokens leave no room next to {special} special")

    @property
    def vocabulary(self) -> int:
        """The largest token id plus 1; some smaller ids may be unused."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def tokens(self, text: str, second: str | None = None) -> Tokens:
        """Tokenize a text or a pair of texts, with special tokens.

        A text that is too long is cut off at its end; the longer text of a pair is cut first.

        Raises:
            TextError: if a text has unpaired surrogates, or the tokenizer fails.
        """
        full_text = self._codec.prompt + text
        try:
            if weight(full_text) + weight(second or "") <= MAX_GIL_WEIGHT:
                encoding = self._tokenizer.encode(full_text, second)
            else:
                texts = full_text if second is None else (full_text, second)
                (encoding,) = self._tokenizer.encode_batch([texts])
        except TypeError as error:  # the package's error for an unpaired surrogate
            raise TextError("the text has an unpaired surrogate, which is not text") from error
        except BaseException as error:
            _check_raised(error)
            raise TextError(f"the tokenizer fails on the text: {error}") from error
        ids, type_ids = np.array(encoding.ids, np.int64), np.array(encoding.type_ids, np.int64)
        spans = self._spans(text, ids, encoding.offsets) if self._codec.of_tokens else None
        cut = max(0, len(ids) - self._codec.max_tokens)
        if cut:
            indices = self._indices_to_keep(encoding.sequence_ids)
            ids, type_ids = ids[indices], type_ids[indices]
            spans = None if spans is None else spans[indices]
        return Tokens(ids, type_ids, cut, spans)

    def arrays(self, tokens: Tokens) -> Arrays:
        """Return the model's inputs for some tokens, without the batch axis."""
        return inputs_of(self._codec, tokens.ids, tokens.type_ids)

    def _spans(self, text: str, ids: Array, offsets: Sequence[tuple[int, int]]) -> Array:
        """Return the spans in the text, without the prompt in front of it.

        Most tokenizers make the blank before a word a part of its token, or a token of its own.
        Some put such a token in front of every text: its place is then that of the first character.
        """
        places = np.array(offsets, np.int32).reshape(-1, 2)  # also without tokens
        places = _trim(text, np.maximum(places - len(self._codec.prompt), 0))
        if self._blanks.size:
            is_mark = np.isin(ids, self._blanks) & (places[:, 0] < places[:, 1])
            for token in np.flatnonzero(is_mark).tolist():
                start, end = places[token].tolist()
                if text[start:end].strip(BLANK_MARKS):  # else the text itself has such a mark
                    places[token] = start
        return places

    def _indices_to_keep(self, sequences: Sequence[int | None]) -> Array:
        """Return the indices of the tokens to keep if there are too many.

        The package's own truncation would also build every removed part in full size.

        Args:
            sequences: the text of each token; None: a special token.
        """
        first, second = sequences.count(0), sequences.count(1)
        special = len(sequences) - first - second
        limits = _limits(first, second, self._codec.max_tokens - special)
        of = np.array(sequences, np.float32)  # None becomes NaN
        parts = [np.flatnonzero(of == text)[:limit] for text, limit in enumerate(limits)]
        return np.sort(np.concatenate([*parts, np.flatnonzero(np.isnan(of))]))


def _trim(text: str, places: Array) -> Array:
    """Return places [n, 2] in a text without the blanks at both ends; a blank one becomes empty."""
    size = len(text)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    is_blank = IS_BLANK[np.minimum(codes, len(IS_BLANK) - 1)]
    if not is_blank.any():
        return places
    at = np.arange(size, dtype=np.int32)
    following = np.full(size + 1, size, np.int32)  # the first other character from here on
    following[:-1] = np.minimum.accumulate(np.where(is_blank, size, at)[::-1])[::-1]
    ends = np.zeros(size + 1, np.int32)  # the end of the last other character before here
    ends[1:] = np.maximum.accumulate(np.where(is_blank, 0, at + 1))
    starts = following[np.minimum(places[:, 0], size)]
    stops = ends[np.minimum(places[:, 1], size)]
    empty = starts >= stops
    return np.stack((np.where(empty, stops, starts), stops), axis=1)


def weight(text: str) -> int:
    """Estimate the time to tokenize a text, in ASCII characters at 0.25 us each."""
    return len(text) if text.isascii() else NOT_ASCII_WEIGHT * len(text)


def _check_raised(error: BaseException) -> None:
    """Raise the error again, unless it is an Exception or a panic of the package."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def inputs_of(codec: TextCodecSpec, ids: Array, type_ids: Array | None = None) -> Arrays:
    """Return the model's inputs for token ids, without the batch axis; default type ids are 0."""
    inputs = {codec.ids: ids}
    if codec.mask is not None:
        inputs[codec.mask] = np.ones(len(ids), np.int64)
    if codec.type_ids is not None:
        inputs[codec.type_ids] = np.zeros(len(ids), np.int64) if type_ids is None else type_ids
    return inputs


def _limits(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts to keep; 0 for the second if there is only one.

    The longer text is cut first.
    """
    short = min(first, second, room // 2)
    if first <= second:
        return short, min(second, room - short)
    return min(first, room - short), short
