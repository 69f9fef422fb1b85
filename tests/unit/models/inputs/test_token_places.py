"""Places of tokens in the caller's text: never with blanks around them, for every tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from models.codec_specs import TextCodecSpec
from models.inputs.tokenize import Tokenizer, Tokens

UNKNOWN = "[UNK]"
WORDS = ("London", "東京", "in", "calls")
PIECES = [(UNKNOWN, 0.0), ("▁", -2.0), *((word, -3.0) for word in WORDS)]
JOINED = [*PIECES, *((f"▁{word}", -3.0) for word in WORDS)]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def unigram(pieces: list[tuple[str, float]], scheme: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram(pieces, 0, False))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return made


def sentence_piece_by_normalizer() -> tokenizers.Tokenizer:
    """As converted Llama tokenizers have it."""
    made = tokenizers.Tokenizer(models.Unigram(JOINED, 0, False))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return made


def byte_level(*, adds_blank: bool, trims: bool | None) -> tokenizers.Tokenizer:
    """Byte-level BPE, which merges a blank with the word `London` alone."""
    pieces = ["Lo", "Lon", "Lond", "Londo", "London", "ĠLondon"]
    merges = [("L", "o"), *((pieces[at], pieces[at + 1][-1]) for at in range(4)), ("Ġ", "London")]
    vocabulary = {piece: number for number, piece in enumerate([*BYTES, *pieces])}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_blank)
    if trims is not None:
        made.post_processor = processors.ByteLevel(trim_offsets=trims, add_prefix_space=adds_blank)
    return made


def word_piece() -> tokenizers.Tokenizer:
    pieces = (UNKNOWN, "london", "call", "##s", "in", "東", "京", "Ġ", "##or")
    made = tokenizers.Tokenizer(
        models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token=UNKNOWN)
    )
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


KINDS = {
    "WordPiece": word_piece(),
    **{f"Metaspace {each}": unigram(JOINED, each) for each in ("always", "first", "never")},
    "Metaspace alone": unigram(PIECES, "always"),
    "by normalizer": sentence_piece_by_normalizer(),
    **{
        f"byte-level {adds} {trims}": byte_level(adds_blank=adds, trims=trims)
        for adds in (False, True)
        for trims in (None, False, True)
    },
}
TEXTS = (
    "London calls",
    " London",
    "in  London ",
    "\nLondon\t東京 in",
    "😀 London",
    "\u3000東京",
    "\xa0London\u2003",
    "   ",
    "",
)


def tokens(made: tokenizers.Tokenizer, text: str, prompt: str = "") -> Tokens:
    codec = TextCodecSpec(
        task="classify-tokens", max_tokens=64, labels=("O", "X"), prompt=prompt, type_ids=None
    )
    return Tokenizer(made.to_str().encode(), codec).tokens(text)


def parts(made: tokenizers.Tokenizer, text: str, prompt: str = "") -> list[str]:
    spans = tokens(made, text, prompt).spans
    assert spans is not None
    assert spans.dtype == np.int32
    assert (spans >= 0).all()
    assert (spans[:, 0] <= spans[:, 1]).all()
    assert (spans <= len(text)).all()
    return [text[start:end] for start, end in spans.tolist() if start != end]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("prompt", ["", "query: "])
@pytest.mark.parametrize("kind", KINDS)
def test_have_no_blanks_around_them(kind: str, prompt: str, text: str) -> None:
    found = parts(KINDS[kind], text, prompt)
    assert found == [each.strip() for each in found]
    assert set("".join(found)) == set("".join(text.split()))


@pytest.mark.parametrize("kind", [each for each in KINDS if "WordPiece" not in each])
def test_every_word_is_found_whole(kind: str) -> None:
    found = parts(KINDS[kind], "in London  London")
    assert found[-2:] == ["London", "London"]


@pytest.mark.parametrize("kind", ["Metaspace alone", "by normalizer", "byte-level True None"])
def test_a_blank_that_the_text_does_not_have_is_nowhere(kind: str) -> None:
    """Tokenizers put it in front, at the place of the first character."""
    spans = tokens(KINDS[kind], "xy").spans
    assert spans is not None
    assert spans[0, 0] == spans[0, 1]
    assert "".join(parts(KINDS[kind], "xy")) == "xy"


@pytest.mark.parametrize("text", ["Ġor", "▁ in"])
def test_a_mark_of_the_text_itself_is_a_character(text: str) -> None:
    kind = "WordPiece" if "Ġ" in text else "Metaspace never"
    assert parts(KINDS[kind], text)[0] == text[0]


def test_of_bytes_of_one_character_is_the_whole_character() -> None:
    assert set(parts(KINDS["byte-level False None"], "é😀")) == {"é", "😀"}


def test_normalization_that_changes_lengths_keeps_places_in_the_text() -> None:
    made = unigram(PIECES, "always")
    made.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])
    assert parts(made, "ﬁx ① London") == ["ﬁx", "①", "London"]
