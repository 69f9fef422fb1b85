"""Texts, pairs of texts and token ids in JSON, and plain text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import orjson

from app.api.payloads import read_items
from app.codecs.base import JSON, TEXT
from app.errors import TorchlaneError
from tests.fuzz.oracle import MAX_ITEMS, outcome
from tests.fuzz.target import Finding, Target
from tests.texts import MAX_TOKENS, WORDS, text_codec, tiny_text_codec
from tests.unit.models.manifests import spec

LABELS = ("O", "B-x", "I-x", "y")
TAGS = text_codec(task="classify-tokens", labels=LABELS, prompt="new: ")
CODECS = (
    tiny_text_codec(),
    tiny_text_codec(text_codec(task="rerank", pairs=True)),
    tiny_text_codec(text_codec(type_ids=False)),
    tiny_text_codec(TAGS, [spec("scores", shape=(-1, -1, len(LABELS)))]),
)


def case(data: bytes) -> None:
    """The first byte names the codec, the second the kind of body; the rest is the body."""
    if len(data) < 2:
        return
    codec, many, body = CODECS[data[0] % len(CODECS)], bool(data[1] & 1), data[2:]
    media_type = (JSON, TEXT)[data[1] >> 1 & 1]
    outcome(codec, media_type, body, many=many)
    try:
        items = read_items(codec, media_type, body, many=many, max_items=MAX_ITEMS)
    except TorchlaneError:
        return
    for item in items:
        note = item.note
        if note is None or note.tokens != item.length or (note.cut and note.tokens != MAX_TOKENS):
            raise Finding(f"{note} of {item.length} tokens")
        if note.spans is not None:
            scores = np.eye(len(LABELS), dtype=np.float32)[item.arrays["input_ids"] % len(LABELS)]
            _check_spans(codec.encode({"scores": scores}, None, note)["spans"], note.text)
    if media_type == TEXT and len(items) == 1:
        as_json = orjson.dumps({"input": body.decode()})
        if outcome(codec, JSON, as_json, many=False) != outcome(codec, TEXT, body, many=False):
            raise Finding("plain text and JSON differ")


def _check_spans(spans: object, text: str) -> None:
    """They are in order, in the text, and can be sent."""
    if not isinstance(spans, list):
        raise Finding(f"no list: {spans}")
    at = 0
    for span in spans:
        if not at <= span["start"] < span["end"] <= len(text):
            raise Finding(f"{span} after {at} in {len(text)} characters")
        if span["text"] != text[span["start"] : span["end"]] or not 0 <= span["score"] <= 1:
            raise Finding(f"{span} of {text!r}")
        at = span["end"]
    orjson.dumps(spans)


def seeds() -> Iterator[bytes]:
    """A text of every kind of item, alone and with others."""
    by_name = {"input_ids": [2, 6, 3], "attention_mask": [1] * 3, "token_type_ids": [0] * 3}
    items: list[object] = ["A cats in London.", "dog " * 9, [2, 6, 3], by_name]
    items += [["cat", "dogs"], {"text": "cat", "text_pair": "dogs in new London " * 2}]
    for at in range(len(CODECS)):
        for item in items:
            yield bytes((at, 0)) + orjson.dumps({"input": item})
            yield bytes((at, 1)) + orjson.dumps({"inputs": [item, item]})
        yield bytes((at, 2)) + "Cats in\n„Löndon“ 😀 e\u0301".encode()


MARKS = (b"\\ud800", b"\\u0000", b"\\ud83d\\ude00", b"\xed\xa0\x80", b"\xff", b"\0", b"\xcc\x81")
NAMES = (b'"input"', b'"inputs"', b'"text"', b'"text_pair"', b'"input_ids"', b'"attention_mask"')
OTHERS = ("\u200b", "\ufeff", "\u4e2d", "İ", "ß", "ﬁ", "\u0130", "\u2028", "##s", "new: ")
WORDS_OF_TEXTS = (*(word.encode() for word in WORDS), *MARKS, *NAMES)
TARGET = Target(
    case, seeds, (*WORDS_OF_TEXTS, *(other.encode() for other in OTHERS)), max_bytes=1024
)
